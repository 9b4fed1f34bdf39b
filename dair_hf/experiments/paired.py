"""Differences between the methods of a comparison, paired over its test rows and seeds.

A table of means hides that all methods answer the same rows. Paired over them, a difference has a smaller error. It is
computed from the `outcomes` of the records, which `compare` adds where a recipe keeps predictions.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dair_hf.data.view_columns import variant_number
from dair_hf.errors import DataError
from dair_hf.evaluation.paired import PairedDifference, paired_difference
from dair_hf.evaluation.statistics import CM_MIN_PAIRS
from dair_hf.experiments.run_records import lambda_of, records_by_method
from dair_hf.io.files import write_json, write_text
from dair_hf.io.records import CLUSTER_KEY, read_predictions

_BASELINE = "da"
_CONSTANT = (
    "Several seeds without an interval: the difference is the same in every {} and seed, which leaves no variance to "
    "estimate one from."
)
# Metric -> heading and (numerator, denominator), of `_Outcomes.sums`.
_METRICS: Mapping[str, tuple[str, str, str]] = {
    "original_accuracy": ("original", "original", "rows"),
    "augmented_accuracy_pairs": ("augmented", "augmented", "pairs"),
    "cm": ("CM", "cm_both", "cm_original"),
    "both_correct": ("both right", "both", "pairs"),
}


class _Outcomes(NamedTuple):
    """Correct answers of a run."""

    test_set: str
    original: np.ndarray
    augmented: np.ndarray
    same_answer: np.ndarray | None
    clusters: tuple[int, ...] | None

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """Sums over the views of each row, `[N]` each; a row with several partners counts as many pairs.

        `rows` and `pairs` (numbers), `original` (originals that are right), `augmented` (partners that are right) and
        `both` (also with a right original). Over the pairs of the headline CM (pairs with different
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
    def from_json(cls, stored: Mapping[str, Any]) -> _Outcomes:
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


def read_outcomes(path: Path) -> _Outcomes:
    """Read the outcomes of a `predictions.jsonl`."""
    rows: dict[str, dict[int, bool]] = {}
    references: dict[str, dict[int, Any]] = {}
    clusters: dict[str, str] = {}
    for view in read_predictions(path):
        name, number = str(view["row_id"]), variant_number(view["variant"])
        if number is None or number in rows.get(name, {}):
            raise DataError(f"{path}: expected each view of a row once, got {view['variant']!r} of row {name!r}")
        rows.setdefault(name, {})[number] = view["correct"]
        references.setdefault(name, {})[number] = view["reference"]
        if CLUSTER_KEY in view:
            clusters.setdefault(name, view[CLUSTER_KEY])
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
    return _Outcomes(
        hashlib.sha256(names.encode()).hexdigest()[:16],
        correct[:, 0],
        correct[:, 1:],
        same_answer[:, 1:],
        tuple(numbers[cluster] for cluster in clusters.values()) or None,
    )


def paired_differences(records: Sequence[Mapping[str, Any]], baseline: str = _BASELINE) -> dict[str, Any] | None:
    """Compare every method with the baseline, or else the first one, on the same test rows and seeds."""
    by_method = records_by_method(records)
    rows = {
        name: {run["seed"]: _Outcomes.from_json(run["outcomes"]) for run in runs if "outcomes" in run}
        for name, runs in by_method.items()
    }
    left_out = {name: "has no outcomes in its records" for name, runs in rows.items() if not runs}
    rows = {name: runs for name, runs in rows.items() if runs}
    lambdas_of = Counter(_without_lambda(by_method[name][0]) for name in rows)
    single = [name for name in rows if lambdas_of[_without_lambda(by_method[name][0])] == 1]
    if len(rows) < 2 or not (single or baseline in rows):
        return None
    baseline = baseline if baseline in rows else single[0]
    reference = rows.pop(baseline)
    test_set = next(iter(reference.values()))
    differences = {}
    for method, runs in rows.items():
        seeds = sorted(runs.keys() & reference.keys())
        pairs = [(runs[seed], reference[seed]) for seed in seeds]
        if not pairs:
            left_out[method] = f"has no seed in common with {baseline}"
        elif any(one.test_set != test_set.test_set for pair in pairs for one in pair):
            left_out[method] = "was tested on other rows"
        elif not (found := _differences(*zip(*pairs, strict=True))):
            left_out[method] = "has too few test rows"
        else:
            differences[method] = {"seeds": seeds, **{key: value._asdict() for key, value in found.items()}}
    return {
        "baseline": baseline,
        "rows": len(test_set.original),
        "clusters": test_set.units,
        "differences": differences,
        "left_out": left_out,
    }


def write_paired(folder: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """Write the differences of a comparison to `paired.json` and `paired.md`, and return the table.

    Without outcomes of two methods it returns "", and files of an earlier comparison are removed.
    """
    paired = paired_differences(records)
    if paired is None:
        for name in ("paired.json", "paired.md"):
            (folder / name).unlink(missing_ok=True)
        return ""
    table = _paired_table(paired)
    write_json(folder / "paired.json", paired)
    write_text(folder / "paired.md", table + "\n")
    return table


def _paired_table(paired: Mapping[str, Any]) -> str:
    """Return the differences as Markdown; bold if their interval excludes 0."""
    differences = paired["differences"]
    units = "" if paired["clusters"] == paired["rows"] else f" in {paired['clusters']:,} independent groups"
    lines = []
    if differences:
        keys = [key for key in _METRICS if any(key in found for found in differences.values())]
        lines += [
            f"Difference to {paired['baseline']}, paired over {paired['rows']:,} test rows{units} and the seeds of "
            "both, ± half width of the 95 % interval:",
            "",
            f"| method | seeds | {' | '.join(_METRICS[key][0] for key in keys)} |",
            "|---|---|" + "---|" * len(keys),
        ]
        for method, found in differences.items():
            cells = " | ".join(difference_text(found.get(key)) for key in keys)
            lines.append(f"| {method} | {len(found['seeds'])} | {cells} |")
        if any(len(found["seeds"]) == 1 for found in differences.values()):
            lines += ["", "One seed says nothing about others: no interval."]
        if any(_is_constant(found) for found in differences.values()):
            lines += ["", _CONSTANT.format("row" if paired["clusters"] == paired["rows"] else "group")]
    lines += ["", *(f"{method} {reason}." for method, reason in paired["left_out"].items())]
    return "\n".join(lines).strip()


def difference_text(found: Mapping[str, float | None] | None) -> str:
    """Return a difference with the half-width of its interval, bold if it is significant."""
    if found is None:
        return "-"
    difference = PairedDifference(**found)  # type: ignore[arg-type]
    text = f"{difference.difference:+.3f}"
    if difference.half_width is not None:
        text += f" ± {difference.half_width:.3f}"
    return f"**{text}**" if difference.is_significant else text


def _is_constant(found: Mapping[str, Any]) -> bool:
    """Return whether a difference of several seeds has no interval."""
    values = [found[key] for key in _METRICS if key in found]
    return len(found["seeds"]) > 1 and any(value["half_width"] is None for value in values)


def _without_lambda(record: Mapping[str, Any]) -> Any:
    """Return the key that the rows of a table share if they differ only in lambda."""
    training = record["config"]["training"] if lambda_of(record) is not None else {}
    return (training["method"], training.get("regularizer")) if training else record["method"]


def _differences(first: Sequence[_Outcomes], second: Sequence[_Outcomes]) -> dict[str, PairedDifference]:
    """Return the difference of each metric that is defined in all of these runs."""
    if first[0].units < 2:
        return {}
    sums = [[run.sums for run in runs] for runs in (first, second)]
    clusters = None if first[0].clusters is None else [str(cluster) for cluster in first[0].clusters]
    found = {}
    for key, (_, *names) in _METRICS.items():
        left, right = ([np.stack([run[name] for run in runs]) for name in names] for runs in sums)
        needed = CM_MIN_PAIRS if key == "cm" else 1
        if all((part[1].sum(1) >= needed).all() for part in (left, right)):
            found[key] = paired_difference(left, right, clusters)
    return found


def _text(correct: np.ndarray) -> str:
    return "".join("-" if np.isnan(value) else str(int(value)) for value in correct)


def _columns(texts: list[str], rows: int) -> np.ndarray:
    return np.array([_numbers(text) for text in texts]).reshape(-1, rows).T


def _numbers(text: str) -> np.ndarray:
    return np.array([np.nan if char == "-" else float(char) for char in text])
