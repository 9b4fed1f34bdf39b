"""Differences between the methods of a comparison, paired over its test rows and seeds.

A table of means hides that all methods answer the same rows. Paired over them, a difference has a smaller error. It is
computed from the `outcomes` of the records, which `compare` adds where a recipe keeps predictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dair_hf.evaluation.paired import PairedDifference, paired_difference
from dair_hf.evaluation.statistics import CM_MIN_PAIRS
from dair_hf.experiments.outcomes import Outcomes
from dair_hf.experiments.run_records import lambda_of, records_by_method
from dair_hf.io.files import write_json, write_text

BASELINE = "da"
CONSTANT = (
    "Several seeds without an interval: the difference is the same in every {} and seed, which leaves no variance to "
    "estimate one from."
)
# Metric -> heading and (numerator, denominator), of `Outcomes.sums`.
METRICS: Mapping[str, tuple[str, str, str]] = {
    "original_accuracy": ("original", "original", "rows"),
    "augmented_accuracy_pairs": ("augmented", "augmented", "pairs"),
    "cm": ("CM", "cm_both", "cm_original"),
    "both_correct": ("both right", "both", "pairs"),
}


def paired_differences(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compare every method with the baseline on the same test rows and seeds."""
    by_method = records_by_method(records)
    rows = {
        name: {run["seed"]: Outcomes.from_json(run["outcomes"]) for run in runs if "outcomes" in run}
        for name, runs in by_method.items()
    }
    left_out = {name: "has no outcomes in its records" for name, runs in rows.items() if not runs}
    rows = {name: runs for name, runs in rows.items() if runs}
    lambdas_of = Counter(_without_lambda(by_method[name][0]) for name in rows)
    single = [name for name in rows if lambdas_of[_without_lambda(by_method[name][0])] == 1]
    if len(rows) < 2 or not single:
        return None
    baseline = BASELINE if BASELINE in rows else single[0]
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
    table = paired_table(paired)
    write_json(folder / "paired.json", paired)
    write_text(folder / "paired.md", table + "\n")
    return table


def paired_table(paired: Mapping[str, Any]) -> str:
    """Return the differences as Markdown; those whose interval excludes 0 are bold."""
    differences = paired["differences"]
    units = "" if paired["clusters"] == paired["rows"] else f" in {paired['clusters']:,} independent groups"
    lines = []
    if differences:
        keys = [key for key in METRICS if any(key in found for found in differences.values())]
        lines += [
            f"Difference to {paired['baseline']}, paired over {paired['rows']:,} test rows{units} and the seeds of "
            "both, ± half width of the 95 % interval:",
            "",
            f"| method | seeds | {' | '.join(METRICS[key][0] for key in keys)} |",
            "|---|---|" + "---|" * len(keys),
        ]
        for method, found in differences.items():
            cells = " | ".join(difference_text(found.get(key)) for key in keys)
            lines.append(f"| {method} | {len(found['seeds'])} | {cells} |")
        if any(len(found["seeds"]) == 1 for found in differences.values()):
            lines += ["", "One seed says nothing about others: no interval."]
        if any(_is_constant(found) for found in differences.values()):
            lines += ["", CONSTANT.format("row" if paired["clusters"] == paired["rows"] else "group")]
    lines += ["", *(f"{method} {reason}." for method, reason in paired["left_out"].items())]
    return "\n".join(lines).strip()


def difference_text(found: Mapping[str, float | None] | None) -> str:
    """Return a cell of the table."""
    if found is None:
        return "-"
    difference = PairedDifference(**found)  # type: ignore[arg-type]
    text = f"{difference.difference:+.3f}"
    if difference.half_width is not None:
        text += f" ± {difference.half_width:.3f}"
    return f"**{text}**" if difference.is_significant else text


def _is_constant(found: Mapping[str, Any]) -> bool:
    """Return whether a difference of several seeds has no interval."""
    values = [found[key] for key in METRICS if key in found]
    return len(found["seeds"]) > 1 and any(value["half_width"] is None for value in values)


def _without_lambda(record: Mapping[str, Any]) -> Any:
    """Return what the rows of a table that differ in lambda alone have in common."""
    training = record["config"]["training"] if lambda_of(record) is not None else {}
    return (training["method"], training.get("regularizer")) if training else record["method"]


def _differences(first: Sequence[Outcomes], second: Sequence[Outcomes]) -> dict[str, PairedDifference]:
    """Return the difference of each metric that is defined in all of these runs."""
    if first[0].units < 2:
        return {}
    sums = [[run.sums for run in runs] for runs in (first, second)]
    clusters = None if first[0].clusters is None else [str(cluster) for cluster in first[0].clusters]
    found = {}
    for key, (_, *names) in METRICS.items():
        left, right = ([np.stack([run[name] for run in runs]) for name in names] for runs in sums)
        needed = CM_MIN_PAIRS if key == "cm" else 1
        if all((part[1].sum(1) >= needed).all() for part in (left, right)):
            found[key] = paired_difference(left, right, clusters)
    return found
