"""Correct answers of a run, view by view, as its record keeps them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dair_hf.data.view_columns import variant_number
from dair_hf.errors import DataError
from dair_hf.io.pair_files import CLUSTER_KEY, read_predictions


class Outcomes(NamedTuple):
    """Correct answers of a run."""

    test_set: str
    original: np.ndarray
    augmented: np.ndarray
    same_answer: np.ndarray | None
    clusters: tuple[int, ...] | None

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """Sums over the views of each row, `[N]` each; a row with several partners counts as many pairs.

        `rows` and `pairs` (numbers), `original` (originals that are right), `augmented` and `both` (partners that are
        right, and those whose original is right, too). Over the pairs of the headline CM (those with different
        references, or all of them if no reference differs) `cm_both` and `cm_original`.
        """
        pairs = (~np.isnan(self.augmented)).sum(1).astype(float)
        right = np.nansum(self.augmented, axis=1)
        of_cm = ~np.isnan(self.augmented)
        if self.same_answer is not None and (self.same_answer == 0).any():
            of_cm = self.same_answer == 0
        return {
            "rows": np.ones_like(self.original),
            "original": self.original,
            "pairs": pairs,
            "augmented": right,
            "both": self.original * right,
            "cm_original": self.original * of_cm.sum(1),
            "cm_both": self.original * np.where(of_cm, self.augmented, 0.0).sum(1),
        }

    @property
    def units(self) -> int:
        """Number of independent units."""
        return len(self.original if self.clusters is None else set(self.clusters))

    def to_json(self) -> dict[str, Any]:
        """Return the outcomes as a record stores them: "1" is right, "0" wrong, "-" absent, one character per row."""
        stored: dict[str, Any] = {
            "test_set": self.test_set,
            "original": _text(self.original),
            "augmented": [_text(partner) for partner in self.augmented.T],
        }
        if self.same_answer is not None:
            stored["same_answer"] = [_text(partner) for partner in self.same_answer.T]
        return stored if self.clusters is None else {**stored, "clusters": " ".join(map(str, self.clusters))}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcomes:
        """Return the outcomes of a record."""
        original = _numbers(stored["original"])
        same_answer = stored.get("same_answer")
        clusters = stored.get("clusters")
        return cls(
            stored["test_set"],
            original,
            _columns(stored["augmented"], len(original)),
            None if same_answer is None else _columns(same_answer, len(original)),
            None if clusters is None else tuple(map(int, clusters.split(" "))),
        )


def read_outcomes(path: Path) -> Outcomes:
    """Read the outcomes of a `predictions.jsonl`."""
    rows: dict[str, dict[int, bool]] = {}
    references: dict[str, dict[int, Any]] = {}
    clusters: dict[str, str] = {}
    for view in read_predictions(path):
        name, number = str(view["row_id"]), variant_number(view["variant"])
        if number is None:
            raise DataError(f"{path}: row {name!r} has an unknown variant, {view['variant']!r}; evaluate again")
        if number in rows.get(name, {}) or (number and name not in rows):
            raise DataError(
                f"{path}: row {name!r} {'occurs twice' if name in rows else 'has no original'}; evaluate again"
            )
        rows.setdefault(name, {})[number] = view["correct"]
        references.setdefault(name, {})[number] = view["reference"]
        if CLUSTER_KEY in view:
            clusters.setdefault(name, view[CLUSTER_KEY])
    if clusters and len(clusters) < len(rows):
        raise DataError(f"{path}: some rows have a {CLUSTER_KEY} and some have none; evaluate again")
    partners = max((number for views in rows.values() for number in views), default=0)
    same = [{number: other == views[0] for number, other in views.items()} for views in references.values()]
    correct, same_answer = (
        np.array(
            [[views.get(number, np.nan) for number in range(partners + 1)] for views in of_rows], dtype=float
        ).reshape(len(rows), partners + 1)
        for of_rows in (rows.values(), same)
    )
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters.values()))}
    names = json.dumps([list(rows), clusters])
    return Outcomes(
        hashlib.sha256(names.encode()).hexdigest()[:16],
        correct[:, 0],
        correct[:, 1:],
        same_answer[:, 1:],
        tuple(numbers[cluster] for cluster in clusters.values()) or None,
    )


def _text(correct: np.ndarray) -> str:
    return "".join("-" if np.isnan(value) else str(int(value)) for value in correct)


def _columns(texts: list[str], rows: int) -> np.ndarray:
    return np.array([_numbers(text) for text in texts]).reshape(-1, rows).T


def _numbers(text: str) -> np.ndarray:
    return np.array([np.nan if char == "-" else float(char) for char in text])
