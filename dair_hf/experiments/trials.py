"""Comparison in which each method has its setting from dev data, and the sentence that the differences support."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dair_hf.config import DAIRConfig
from dair_hf.evaluation.paired import CONFIDENCE, PairedDifference
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.experiments.comparison import ComparisonConfig, execute_runs, run_of
from dair_hf.experiments.paired import paired_differences, write_paired
from dair_hf.experiments.report import Column, write_comparison
from dair_hf.experiments.run_records import Result, Run
from dair_hf.io.commands import align

DEV_METRIC = "dev_both_correct"
NARROW = 0.05  # methods do not differ if the whole interval is within this of 0
COLUMNS = [
    Column("original_accuracy", "originals"),
    Column("augmented_accuracy_pairs", "partners"),
    Column("cm", "CM"),
    Column("both_correct", "both right"),
]
# Outcome -> words on pairs as such, and on two methods.
_WORDS = {
    "better": ("pairs help: {} over {}, both right {}", "{} is better than {} ({})"),
    "worse": ("pairs hurt: {} against {}, both right {}", "{} is worse than {} ({})"),
    "equal": ("pairs change little: {} over {}, both right {}", "{} and {} do not differ ({})"),
    "unknown": (
        "too few test pairs or seeds to tell whether pairs help: {} over {}, both right {}",
        "too few test pairs or seeds to tell {} from {} ({})",
    ),
}


def run_trials(
    comparison: ComparisonConfig,
    args: DAIRConfig,
    execute: Callable[[Run, int], Result],
    config: Mapping[str, Any],
    data: Mapping[str, str],
    partner_share: float,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run every setting with the first seed, and the setting of each method that is best on dev with the other seeds.

    Each method with pairs has two weights of partners. Of equally good ones the first is chosen.

    Return the records of the chosen runs, under the names of the methods, and method -> name of its setting.
    """
    first, *others = comparison.seeds
    trials = {method: trial_runs(comparison, method, args, first, partner_share) for method in comparison.methods}
    total = sum(map(len, trials.values())) + len(others) * len(trials)

    def run_all(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
        records = execute_runs(runs, lambda run: execute(run, total), Path(args.output_dir), config, data, False)
        return {record["name"]: record for record in records}

    found = run_all([run for runs in trials.values() for run in runs])
    chosen = {
        method: max(range(len(runs)), key=lambda index: found[runs[index].name]["metrics"][DEV_METRIC])
        for method, runs in trials.items()
    }
    found |= run_all(
        [
            trial_runs(comparison, method, args, seed, partner_share)[index]
            for seed in others
            for method, index in chosen.items()
        ]
    )
    labels = {method: trials[method][index].method for method, index in chosen.items()}
    wanted = [(method, f"{label}_seed{seed}") for seed in comparison.seeds for method, label in labels.items()]
    return [{**found[name], "method": method} for method, name in wanted], labels


def _partner_weights(partner_share: float) -> tuple[float, float]:
    """Return 0.5, and the weight (at least 1) with which all partners count as much as all originals."""
    return 0.5, max(1.0, float(f"{1 / partner_share - 0.5:.2g}"))


def trial_runs(
    comparison: ComparisonConfig, method: str, args: DAIRConfig, seed: int, partner_share: float
) -> list[Run]:
    """Return one run for each setting of a method."""
    value = (comparison.lambdas or {}).get(method, args.dair_lambda)
    if method == "erm":
        return [run_of(args, method, method, seed)]
    return [
        run_of(args, method, f"{method}_weight{weight:g}", seed, view_weights=[0.5, weight], dair_lambda=value)
        for weight in _partner_weights(partner_share)
    ]


def report_trials(
    folder: Path, title: str, records: Sequence[Mapping[str, Any]], labels: Mapping[str, str], notes: Sequence[str]
) -> str:
    """Write `comparison.*` and `paired.*`; return a table of 80 columns and the sentence that it supports."""
    over_erm, over_da = _gains(records, "erm"), _gains(records, "da")
    table = [("", *(column.title for column in COLUMNS), "over ERM", "over DA", "seconds")]
    dev = {}
    for method in labels:
        runs = [record for record in records if record["method"] == method]
        means = [_mean(runs, column.key) for column in COLUMNS]
        gains = (_gain_text(found.get(method)) for found in (over_erm, over_da))
        seconds = statistics.fmean(sum(run["seconds"].values()) for run in runs)
        table.append((method.upper(), *means, *gains, f"{seconds:.0f}"))
        if method != "erm":
            dev[method] = statistics.fmean(run["metrics"][DEV_METRIC] for run in runs)
    sentence = _verdict(over_erm, over_da, max(dev, key=dev.__getitem__, default=""))
    if not any(record["metrics"]["both_correct"] for record in records):
        sentence = "no method has a test pair right: train longer (--epochs, --learning_rate)"
    supported = [sentence]
    if chosen := ", ".join(name.replace("_", " ") for method, name in labels.items() if name != method):
        supported += [f"Chosen on dev with the first seed, among two settings: {chosen}."]
    write_comparison(folder, title, records, COLUMNS, [*supported, *notes])
    write_paired(folder, records)
    return "\n".join([*align(table), "", *(textwrap.fill(line, 80) for line in supported)])


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return the mean of a metric; "-" for a CM of too few pairs."""
    if any(has_few_pairs(run["metrics"], key) for run in runs):
        return "-"
    return f"{statistics.fmean(run['metrics'][key] for run in runs):.3f}"


def _gains(records: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, PairedDifference]:
    """Return the difference of each method to a baseline in both right; {} without the baseline."""
    paired = paired_differences(records, baseline)
    if paired is None or paired["baseline"] != baseline:
        return {}
    return {method: PairedDifference(**found["both_correct"]) for method, found in paired["differences"].items()}


def _gain_text(found: PairedDifference | None) -> str:
    """Return a difference, with the half width of its interval if it has one."""
    if found is None:
        return ""
    return f"{found.difference:+.2f}" + ("" if found.half_width is None else f" ± {found.half_width:.2f}")


def _verdict(over_erm: Mapping[str, PairedDifference], over_da: Mapping[str, PairedDifference], leader: str) -> str:
    """Return the sentence that differences in both right support; `leader` is the best method with pairs on dev."""
    parts = [(0, leader, "erm", over_erm[leader])] if leader in over_erm else []
    parts += [(1, method, "da", found) for method, found in over_da.items() if method != "erm"]
    outcomes = _outcomes([found for *_, found in parts])
    return "; ".join(
        _WORDS[outcome][place].format(method.upper(), baseline.upper(), _gain_text(found))
        for outcome, (place, method, baseline, found) in zip(outcomes, parts, strict=True)
    )


def _outcomes(found: Sequence[PairedDifference]) -> list[str]:
    """Return what each difference supports; all are right with 95 % (Holm 1979): k open ones have 5 % / k each."""
    outcomes = ["unknown"] * len(found)
    for _ in found:
        level = (1 - CONFIDENCE) / max(1, outcomes.count("unknown"))
        both = zip(found, outcomes, strict=True)
        outcomes = [_outcome(one, level) if before == "unknown" else before for one, before in both]
    return outcomes


def _outcome(found: PairedDifference, level: float) -> str:
    """Return what the interval of a level supports."""
    if found.half_width is None:
        return "unknown"
    half_width = found.half_width_at(level)
    if abs(found.difference) > half_width:
        return "better" if found.difference > 0 else "worse"
    return "equal" if abs(found.difference) + half_width <= NARROW else "unknown"
