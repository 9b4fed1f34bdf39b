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
    """Correct answers of a run.

    Attributes:
        test_set: Digest of the names of the rows and their clusters; equal ones are the same rows in the same order.
        original: `[N]`, 1 if the original is right, else 0.
        augmented: `[N, P]`, likewise for each partner; NaN if it is absent.
        clusters: `[N]`, number of the unit of each row that is independent of the others; None: the row itself.
    """

    test_set: str
    original: np.ndarray
    augmented: np.ndarray
    clusters: tuple[int, ...] | None

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """Sums over the views of each row, `[N]` each; a row with several partners counts as many pairs.

        `rows` and `pairs` (numbers), `original` and `original_of_pairs` (originals that are right, counted once and per
        pair), `augmented` and `both` (partners that are right, and those whose original is right, too).
        """
        pairs = (~np.isnan(self.augmented)).sum(1).astype(float)
        right = np.nansum(self.augmented, axis=1)
        return {
            "rows": np.ones_like(self.original),
            "original": self.original,
            "pairs": pairs,
            "original_of_pairs": self.original * pairs,
            "augmented": right,
            "both": self.original * right,
        }

    @property
    def units(self) -> int:
        """Number of independent units."""
        return len(self.original if self.clusters is None else set(self.clusters))

    def to_json(self) -> dict[str, Any]:
        """Return the outcomes as a record stores them: "1" is right, "0" wrong, "-" absent, one character per row."""
        stored = {
            "test_set": self.test_set,
            "original": _text(self.original),
            "augmented": [_text(partner) for partner in self.augmented.T],
        }
        return stored if self.clusters is None else {**stored, "clusters": " ".join(map(str, self.clusters))}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcomes:
        """Return the outcomes of a record."""
        original = _numbers(stored["original"])
        partners = [_numbers(text) for text in stored["augmented"]]
        clusters = stored.get("clusters")
        return cls(
            stored["test_set"],
            original,
            np.stack(partners, axis=1) if partners else np.empty((len(original), 0)),
            None if clusters is None else tuple(map(int, clusters.split(" "))),
        )


def read_outcomes(path: Path) -> Outcomes:
    """Read the outcomes of a `predictions.jsonl`.

    Raises:
        DataError: As `read_predictions`, a row occurs twice, or a partner belongs to no row.
    """
    rows: dict[str, dict[int, bool]] = {}
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
        if CLUSTER_KEY in view:
            clusters.setdefault(name, view[CLUSTER_KEY])
    if clusters and len(clusters) < len(rows):
        raise DataError(f"{path}: some rows have a {CLUSTER_KEY} and some have none; evaluate again")
    partners = max((number for views in rows.values() for number in views), default=0)
    correct = np.array(
        [[views.get(number, np.nan) for number in range(partners + 1)] for views in rows.values()], dtype=float
    ).reshape(len(rows), partners + 1)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters.values()))}
    names = json.dumps([list(rows), clusters])
    return Outcomes(
        hashlib.sha256(names.encode()).hexdigest()[:16],
        correct[:, 0],
        correct[:, 1:],
        tuple(numbers[cluster] for cluster in clusters.values()) or None,
    )


def _text(correct: np.ndarray) -> str:
    return "".join("-" if np.isnan(value) else str(int(value)) for value in correct)


def _numbers(text: str) -> np.ndarray:
    return np.array([np.nan if char == "-" else float(char) for char in text])
