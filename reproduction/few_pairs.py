"""Tables of counterfactual texts and WOZ 2.0, by the share of originals that have partners (`reproduction.ledger`).

`results/counterfactual_sentiment/MODEL_SHARE/` (reviews) and `results/counterfactual_nli/MODEL_SHARE/` (inference)
hold the search for lambda on the dev split and, in `final/`, the runs on the test split; `MODEL_SHARE_weight/` the same
for the weight of DA-ERM's partners; `MODEL_SHARE_auto/` holds runs with `dair_lambda: auto`. The `outcomes` of the
records give differences that are paired over test rows and seeds.

`results/woz2/share_SHARE/` holds the runs of WOZ 2.0, all with one lambda (`DIALOG_RUNS`). Some of their records have
no outcomes: the differences to DA-ERM are paired over seeds alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dair_hf.config import AUTO
from dair_hf.errors import DataError
from dair_hf.experiments.paired import difference_text, paired_differences
from dair_hf.experiments.run_records import lambda_of, lambda_text
from reproduction.auto_lambda import mean_and_deviation
from reproduction.records import Record, metric_of, read_records
from reproduction.verdicts import welch_half_width

REVIEWS, INFERENCE = "counterfactual_sentiment", "counterfactual_nli"
MODELS = {"bag_of_words": "bag of words", "embeddings": "embeddings", "bilstm": "BiLSTM"}
SHARES = (10, 30, 100)
OWN = "DA, own weight"  # DA-ERM whose partners have the weight that is best on the dev split
HEADER = [
    "model, share of pairs", "seeds", "ERM", "DA-ERM", OWN, "KL", "DAIR", "auto",
    "DAIR - DA", f"DAIR - {OWN}", f"auto - {OWN}", f"DAIR - {OWN}: originals",
]  # fmt: skip
DIALOGS = "woz2"
# Share of pairs -> folder of its runs. The last has the same seeds on another processor, which rounds differently.
DIALOG_RUNS = {
    "10 %": "share_10",
    "30 %": "share_30",
    "100 %": "share_100",
    "100 %, repeated": "share_100_repeated",
}
TITLES = {"erm": "ERM", "da": "DA-ERM", "dair": "DAIR"}
# Metric of the dialogues -> heading.
TRACKING = {
    "original_joint_goal_accuracy": "JGA",
    "augmented_joint_goal_accuracy": "JGA, unseen food types",
    "cm": "CM, changed pairs",  # these records have CM over all of them, whether the state changes or not
    "both_correct": "both_correct",
}


def text_table(results: Path, task: str) -> str:
    """Return the table of a task of texts in Markdown, one row for each model and share of pairs that was run.

    Args:
        results: Folder of stored runs.
        task: `REVIEWS` or `INFERENCE`.

    Raises:
        DataError: No experiment was run, or one lacks DA-ERM, DAIR or their paired differences.
    """
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    for model, title in MODELS.items():
        for share in SHARES:
            folder = results / task / f"{model}_{share}"
            if (folder / "final").is_dir():
                lines.append(f"| {title}, {share} % | " + " | ".join(_cells(folder)) + " |")
    if len(lines) == 2:
        raise DataError(f"{results / task}: holds no runs; make results runs them")
    return "\n".join(lines)


def dialog_table(results: Path) -> str:
    """Return the table of WOZ 2.0 in Markdown: the methods by share of pairs, and DAIR minus DA-ERM.

    The difference has the 95 % t interval of the mean over the seeds that both have.

    Raises:
        DataError: No experiment was run, one lacks DA-ERM or DAIR, or these have no two seeds in common.
    """
    lines = [
        "| share of pairs | method | seeds | " + " | ".join(TRACKING.values()) + " |",
        "|---|---|---|" + "---|" * len(TRACKING),
    ]
    for share, name in DIALOG_RUNS.items():
        folder = results / DIALOGS / name
        runs = _by_method(folder)
        if not runs:
            continue
        _require_both(runs, folder)
        values = {
            method: [_values(runs[method], key, folder) for key in TRACKING] for method in TITLES if method in runs
        }
        differences = [
            _difference_over_seeds(ours, theirs, folder)
            for ours, theirs in zip(values["dair"], values["da"], strict=True)
        ]
        for method, metrics in values.items():
            means = " | ".join(_mean_and_deviation(metric) for metric in metrics)
            lines.append(f"| {'-' if method == 'erm' else share} | {TITLES[method]} | {len(metrics[0])} | {means} |")
        seeds = len(values["dair"][0].keys() & values["da"][0].keys())
        lines.append(f"| {share} | DAIR - DA | {seeds} | " + " | ".join(differences) + " |")
    if len(lines) == 2:
        raise DataError(f"{results / DIALOGS}: holds no runs; make results runs them")
    return "\n".join(lines)


def _by_method(folder: Path) -> dict[str, list[Record]]:
    runs: dict[str, list[Record]] = {}
    for record in read_records(folder):
        runs.setdefault(record.content["method"], []).append(record)
    return runs


def _require_both(runs: Mapping[str, list[Record]], folder: Path) -> None:
    if missing := {"da", "dair"} - runs.keys():
        raise DataError(f"{folder}: has no run of {', '.join(sorted(missing))}; run it again")


def _values(runs: Sequence[Record], key: str, folder: Path) -> dict[int, float]:
    """Return a metric by seed."""
    found = {run.content["seed"]: metric_of(run, key, str(folder)) for run in runs}
    if len(found) < len(runs) or None in found.values():
        raise DataError(f"{folder}: {key} is undefined in a run, or a seed has two; run it again")
    return {seed: float(value) for seed, value in sorted(found.items()) if value is not None}


def _mean_and_deviation(values: Mapping[int, float]) -> str:
    """Return mean and standard deviation over seeds; with one seed its value."""
    if len(values) == 1:
        return f"{next(iter(values.values())):.3f}"
    return mean_and_deviation(list(values.values()))


def _difference_over_seeds(first: Mapping[int, float], second: Mapping[int, float], folder: Path) -> str:
    """Return the mean difference over common seeds with its interval; bold if the interval excludes 0."""
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if len(differences) < 2:
        raise DataError(f"{folder}: DAIR and DA-ERM have {len(differences)} seeds in common; an interval needs two")
    mean, half_width = statistics.mean(differences), welch_half_width((statistics.stdev(differences), len(differences)))
    text = f"{mean:+.3f} ± {half_width:.3f}"
    return f"**{text}**" if abs(mean) > half_width else text


def _cells(folder: Path) -> list[str]:
    runs = _by_method(folder / "final")
    _require_both(runs, folder)
    own = read_records(folder.with_name(f"{folder.name}_weight") / "final")
    auto = read_records(folder.with_name(f"{folder.name}_auto"))
    shown = [runs.get("erm", []), runs["da"], own, runs.get("kl", []), runs["dair"], auto]
    over_da = _differences({"da": runs["da"], "dair": runs["dair"]})
    over_own = _differences({"da": own, "dair": runs["dair"], "auto": auto})
    if "dair" not in over_da:
        raise DataError(f"{folder}: DAIR cannot be paired with DA-ERM; run it again")
    of_dair, of_auto = over_own.get("dair", {}), over_own.get("auto", {})
    differences = [found.get("both_correct") for found in (over_da["dair"], of_dair, of_auto)]
    return [
        str(len(over_da["dair"]["seeds"])),
        *(_both_correct(records, folder) for records in shown),
        *(difference_text(found).replace("0.", ".") for found in (*differences, of_dair.get("original_accuracy"))),
    ]


def _differences(runs: Mapping[str, Sequence[Record]]) -> Mapping[str, Any]:
    """Return method -> its differences to "da", paired over test rows and seeds; {} if they cannot be paired."""
    records = [{**record.content, "method": method} for method, found in runs.items() for record in found]
    paired = paired_differences(records) if runs["da"] else None
    return paired["differences"] if paired else {}


def _both_correct(runs: list[Record], folder: Path) -> str:
    """Return the mean share of pairs with both views correct, with lambda or weight if it was set; "-" without runs."""
    if not runs:
        return "-"
    value = statistics.mean(_values(runs, "both_correct", folder).values())
    used, weights = lambda_of(runs[0].content), runs[0].content["config"]["training"].get("view_weights")
    setting = f" ({weights[1]:g})" if weights else "" if used in (None, AUTO) else f" ({lambda_text(used)})"
    return f"{value:.3f}{setting}"
