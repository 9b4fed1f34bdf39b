"""Differences between the methods of a comparison, paired over test rows and seeds.

A table of means hides that all methods answer the same rows. Paired over them, a difference has a smaller error. It is
computed from `runs/NAME/predictions.jsonl` of each run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dair_hf.data.view_columns import variant_number
from dair_hf.evaluation.paired import paired_difference
from dair_hf.experiments.run_records import SETTINGS_NOTE
from dair_hf.io.files import read_bytes, write_json, write_text
from dair_hf.io.pair_files import CLUSTER_KEY

BASELINE = "da"
# Metric -> heading and (numerator, denominator), sums over the views of a row.
METRICS: Mapping[str, tuple[str, str, str]] = {
    "original_accuracy": ("original", "original", "rows"),
    "augmented_accuracy_pairs": ("augmented", "augmented", "pairs"),
    "cm": ("CM", "both", "original_of_pairs"),
    "both_correct": ("both right", "both", "pairs"),
}


class Outcomes(NamedTuple):
    """Correct answers of a run, as counts for each row.

    Attributes:
        rows: Names of the rows, N of them.
        clusters: Unit of each row that is independent of the others; None: the row itself.
        counts: Name -> `[N]`, the sums of `METRICS`.
    """

    rows: tuple[str, ...]
    clusters: tuple[str, ...] | None
    counts: Mapping[str, np.ndarray]


def read_outcomes(path: Path) -> Outcomes:
    """Read a `predictions.jsonl`; a row with several partners counts as many pairs."""
    originals: dict[str, bool] = {}
    partners: dict[str, list[bool]] = {}
    clusters: dict[str, str] = {}
    for line in read_bytes(path).decode("utf-8", errors="replace").splitlines():
        view = json.loads(line)
        name = str(view["row_id"])
        if variant_number(view["variant"]) == 0:
            originals[name] = view["correct"]
            if CLUSTER_KEY in view:
                clusters[name] = view[CLUSTER_KEY]
        else:
            partners.setdefault(name, []).append(view["correct"])
    original = np.array(list(originals.values()), dtype=float)
    right = np.array([sum(partners.get(name, ())) for name in originals], dtype=float)
    pairs = np.array([len(partners.get(name, ())) for name in originals], dtype=float)
    counts = {
        "rows": np.ones_like(original),
        "original": original,
        "pairs": pairs,
        "original_of_pairs": original * pairs,
        "augmented": right,
        "both": original * right,
    }
    return Outcomes(tuple(originals), tuple(clusters.values()) or None, counts)


def paired_differences(folder: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compare every method with the baseline on the same test rows and seeds.

    Args:
        folder: Folder of a comparison.
        records: Its records.

    Returns:
        `baseline` (DA-ERM, or else the first method), `rows`, `clusters` (number of independent units), and
        `differences`: method -> `seeds` (those that both have), and for each of `METRICS` its `difference` and
        `standard_error`. None if there are no two methods whose predictions are at hand.
    """
    outcomes: dict[str, dict[int, Outcomes]] = {}
    for record in records:
        run = folder / "runs" / record["name"]
        if _is_of(run, record) and (run / "predictions.jsonl").is_file():
            outcomes.setdefault(record["method"], {})[record["seed"]] = read_outcomes(run / "predictions.jsonl")
    baseline = BASELINE if BASELINE in outcomes else next(iter(outcomes), BASELINE)
    reference = outcomes.pop(baseline, {})
    differences = {}
    for method, runs in outcomes.items():
        seeds = sorted(runs.keys() & reference.keys())
        pairs = [(runs[seed], reference[seed]) for seed in seeds]
        if not pairs or any(one.rows != pairs[0][0].rows for pair in pairs for one in pair):
            continue
        differences[method] = {"seeds": seeds, **_differences(*zip(*pairs, strict=True))}
    if not differences:
        return None
    first = next(iter(reference.values()))
    units = len(set(first.clusters or first.rows))
    return {"baseline": baseline, "rows": len(first.rows), "clusters": units, "differences": differences}


def write_paired(folder: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """Write the differences of a comparison to `paired.json` and `paired.md`, and return the table.

    Without predictions of two methods it returns "", and files of an earlier comparison are removed.
    """
    paired = paired_differences(folder, records)
    if paired is None:
        for name in ("paired.json", "paired.md"):
            (folder / name).unlink(missing_ok=True)
        return ""
    table = paired_table(paired)
    write_json(folder / "paired.json", paired)
    write_text(folder / "paired.md", table + "\n")
    return table


def paired_table(paired: Mapping[str, Any]) -> str:
    """Return the differences as Markdown, each with its standard error and, in brackets, their ratio.

    Example:
        >>> of_cm = {"cm": {"difference": 0.03, "standard_error": 0.01}}
        >>> paired = {"baseline": "da", "rows": 4, "clusters": 4, "differences": {"dair": {"seeds": [0, 1], **of_cm}}}
        >>> print(paired_table(paired))
        Difference to da, paired over 4 test rows and the seeds of both, ± standard error (and their ratio):
        <BLANKLINE>
        | method | seeds | CM |
        |---|---|---|
        | dair | 2 | +0.030 ± 0.010 (+3.0) |
    """
    differences = paired["differences"]
    keys = [key for key in METRICS if any(key in found for found in differences.values())]
    units = "" if paired["clusters"] == paired["rows"] else f" in {paired['clusters']:,} independent groups"
    lines = [
        f"Difference to {paired['baseline']}, paired over {paired['rows']:,} test rows{units} and the seeds of both, "
        "± standard error (and their ratio):",
        "",
        f"| method | seeds | {' | '.join(METRICS[key][0] for key in keys)} |",
        "|---|---|" + "---|" * len(keys),
    ]
    for method, found in differences.items():
        cells = " | ".join(_cell(found.get(key)) for key in keys)
        lines.append(f"| {method} | {len(found['seeds'])} | {cells} |")
    return "\n".join(lines)


def _is_of(run: Path, record: Mapping[str, Any]) -> bool:
    """Return whether the folder of a run is that of its record, which may have been copied from elsewhere."""
    note = run / SETTINGS_NOTE
    return note.is_file() and note.read_text(encoding="utf-8").strip() == record["settings_fingerprint"]


def _differences(first: Sequence[Outcomes], second: Sequence[Outcomes]) -> dict[str, dict[str, float]]:
    """Return the difference of each metric that is defined in all of these runs."""

    def ratio(runs: Sequence[Outcomes], *names: str) -> tuple[np.ndarray, ...]:
        return tuple(np.stack([run.counts[name] for run in runs]) for name in names)

    found = {}
    for key, (_, *names) in METRICS.items():
        left, right = ratio(first, *names), ratio(second, *names)
        if len(set(first[0].clusters or first[0].rows)) > 1 and all(part[1].sum(1).all() for part in (left, right)):
            found[key] = paired_difference(left, right, first[0].clusters)._asdict()
    return found


def _cell(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    difference, error = found["difference"], found["standard_error"]
    ratio = f" ({difference / error:+.1f})" if error else ""
    return f"{difference:+.3f} ± {error:.3f}{ratio}"
