"""Tables of counterfactual texts and WOZ 2.0, by the share of originals that have partners (`reproduction.ledger`).

`results/counterfactual_sentiment/MODEL_SHARE/` (reviews), `results/counterfactual_nli/MODEL_SHARE/` (inference) and
`results/pretrained_encoder/TEXTS_SHARE/` hold the search for lambda on the dev split and, in `final/`, the runs on the
test split. `RUNS` lists the folders beside them. The `outcomes` of the records give differences that are paired over
test rows and seeds.

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
from dair_hf.evaluation.paired import CONFIDENCE, PairedDifference
from dair_hf.experiments.paired import difference_text, paired_differences
from dair_hf.experiments.run_records import lambda_of, lambda_text
from reproduction.auto_lambda import mean_and_deviation
from reproduction.records import Record, markdown_table, metric_of, read_records
from reproduction.verdicts import welch_half_width

REVIEWS, INFERENCE, PRETRAINED = "counterfactual_sentiment", "counterfactual_nli", "pretrained_encoder"
# Start of a folder's name -> heading.
MODELS = {
    "bag_of_words": "bag of words", "embeddings": "embeddings", "bilstm": "BiLSTM",
    "reviews": "reviews", "premises": "revised premises",
}  # fmt: skip
SHARES = (10, 30, 100)
OWN = "DA, own weight"  # DA-ERM whose partners have the weight that is best on the dev split
DAIR_OWN, AUTO_OWN = "DAIR, DA's weight", "auto, DA's weight"  # with that weight
# Heading -> method, and the suffixes of the folders that may hold its runs.
RUNS = {
    "ERM": ("erm", "/final"),
    "DA-ERM": ("da", "/final"),
    OWN: ("da", "_weight/final"),
    "KL": ("kl", "/final", "_kl/final"),
    "DAIR": ("dair", "/final"),
    "auto": ("dair", "_auto"),
    DAIR_OWN: ("dair", "_weight_dair/final"),
    AUTO_OWN: ("dair", "_weight_auto"),
}
COMPARISONS = (
    ("DA-ERM", "ERM"),
    (OWN, "DA-ERM"),
    ("DAIR", "DA-ERM"),
    ("DAIR", OWN),
    ("auto", OWN),
    (DAIR_OWN, OWN),
    (AUTO_OWN, OWN),
)
# Left out where DA's own weight is the default: the others repeat them.
REPEATED, DEFAULT_WEIGHTS = ((OWN, "DA-ERM"), ("DAIR", "DA-ERM")), [0.5, 0.5]
METRICS = {"original_accuracy": "originals", "augmented_accuracy_pairs": "partners", "cm": "CM", "both_correct": "both"}
PLANNED, CONFIRMED = f"{PRETRAINED}/premises_30", f"{REVIEWS}/bag_of_words_30_confirmed"
CONFIRMED_RUNS = {
    "ERM": ("erm", "/erm"),
    "DA-ERM": ("da", "/default"),
    OWN: ("da", "/weight"),
    "DAIR": ("dair", "/default"),
    "auto": ("dair", "/auto"),
    DAIR_OWN: ("dair", "/weight_dair"),
}
TRACKER = "woz2_smollm2"
TRACKER_RUNS = {"ERM": ("erm", "/erm"), OWN: ("da", "/da"), "DAIR": ("dair", "/dair")}
# Folder -> its runs, and the preregistered tests against `OWN` (PREREGISTRATION.md, CONFIRMATION.md): the primary one,
# then those that share Holm's correction.
PLANS: Mapping[str, tuple[Mapping[str, Sequence[str]], list[tuple[str, str]]]] = {
    PLANNED: (
        RUNS,
        [
            ("DAIR", "both_correct"),
            ("auto", "both_correct"),
            ("DAIR", "original_accuracy"),
            ("DAIR", "augmented_accuracy_pairs"),
            ("DAIR", "cm"),
            (DAIR_OWN, "both_correct"),
        ],
    ),
    CONFIRMED: (
        CONFIRMED_RUNS,
        [
            (DAIR_OWN, "both_correct"),
            (DAIR_OWN, "original_accuracy"),
            (DAIR_OWN, "augmented_accuracy_pairs"),
            ("DAIR", "both_correct"),
            ("auto", "both_correct"),
        ],
    ),
    TRACKER: (
        TRACKER_RUNS,
        [("DAIR", key) for key in ("both_correct", "original_accuracy", "augmented_accuracy_pairs", "cm")],
    ),
}
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
    """Return the tables of a task of texts in Markdown: the methods, then their differences.

    The last column has p-values of the differences in `both_correct` with Holm's correction over the table.

    Args:
        results: Folder of stored runs.
        task: `REVIEWS`, `INFERENCE` or `PRETRAINED`.

    Raises:
        FileNotFoundError: No experiment was run.
        DataError: Two methods cannot be paired.
    """
    methods, names, differences = [], [], []
    for model, title in MODELS.items():
        for share in SHARES:
            folder = results / task / f"{model}_{share}"
            if (folder / "final").is_dir():
                name, runs = f"{title}, {share} %", _runs_of(folder)
                seeds = str(len(runs["DAIR"]))
                methods.append([name, seeds, *(_both_correct(records, folder) for records in runs.values())])
                default = any(_weights(record) == DEFAULT_WEIGHTS for record in runs[OWN])
                for pair in COMPARISONS:
                    if all(runs[side] for side in pair) and not (default and pair in REPEATED):
                        names.append([name, " - ".join(pair)])
                        differences.append(_differences(runs, *pair))
    if not methods:
        raise FileNotFoundError(results / task)
    corrected = holm([_p_value(found.get("both_correct")) for found in differences])
    compared = [
        [*name, *(_text(found.get(key)) for key in METRICS), p]
        for name, found, p in zip(names, differences, map(_p_text, corrected), strict=True)
    ]
    heading = "texts, share of pairs" if task == PRETRAINED else "model, share of pairs"
    return "\n".join(
        [
            *markdown_table([heading, "seeds", *RUNS], methods),
            "",
            *markdown_table([heading, "difference", *METRICS.values(), "p of both, Holm"], compared),
        ]
    )


def planned_table(results: Path, experiment: str) -> str:
    """Return the scores of planned runs and their tests (`PLANS`); a test without runs counts in Holm's correction.

    Raises:
        FileNotFoundError: One side of the primary test was not run.
    """
    folder, (of_plan, tests) = results / experiment, PLANS[experiment]
    runs = _runs_of(folder, of_plan)
    if not (runs[OWN] and runs[tests[0][0]]):
        raise FileNotFoundError(folder)
    scores = [[name, str(len(found)), *_means(found, folder)] for name, found in runs.items() if found]
    differences = [_differences(runs, name, OWN).get(key) if runs[name] else None for name, key in tests]
    primary, *others = map(_p_value, differences)
    rows = [
        [
            "secondary" if number else "primary",
            f"{name} - {OWN}",
            METRICS[key],
            _text(difference),
            _p_text(p) if difference else "-",
        ]
        for number, ((name, key), difference, p) in enumerate(
            zip(tests, differences, [primary, *holm(others)], strict=True)
        )
    ]
    return "\n".join(
        [
            *markdown_table(["method", "seeds", *METRICS.values()], scores),
            "",
            *markdown_table(["test", "difference", "metric", "value", f"p (secondary: Holm over {len(others)})"], rows),
        ]
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with the correction of Holm (1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def dialog_table(results: Path) -> str:
    """Return the table of WOZ 2.0 in Markdown: the methods by share of pairs, and DAIR minus DA-ERM.

    The difference has the 95 % t interval of the mean over the seeds that both have.

    Raises:
        DataError: No experiment was run, or DA-ERM and DAIR of one have no two seeds in common.
    """
    rows: list[Sequence[object]] = []
    for share, name in DIALOG_RUNS.items():
        folder = results / DIALOGS / name
        runs = _by_method(folder)
        if not runs:
            continue
        values = {
            method: [_values(runs[method], key, folder) for key in TRACKING] for method in TITLES if method in runs
        }
        differences = [
            _difference_over_seeds(ours, theirs, folder)
            for ours, theirs in zip(values["dair"], values["da"], strict=True)
        ]
        for method, metrics in values.items():
            means = (mean_and_deviation(list(of_seeds.values())) for of_seeds in metrics)
            rows.append(["-" if method == "erm" else share, TITLES[method], len(metrics[0]), *means])
        seeds = len(values["dair"][0].keys() & values["da"][0].keys())
        rows.append([share, "DAIR - DA", seeds, *differences])
    if not rows:
        raise DataError(f"{results / DIALOGS}: holds no runs; make results runs them")
    return "\n".join(markdown_table(["share of pairs", "method", "seeds", *TRACKING.values()], rows))


def _by_method(folder: Path) -> dict[str, list[Record]]:
    runs: dict[str, list[Record]] = {}
    for record in read_records(folder):
        runs.setdefault(record.content["method"], []).append(record)
    return runs


def _values(runs: Sequence[Record], key: str, folder: Path) -> dict[int, float]:
    """Return a metric by seed."""
    found = {run.content["seed"]: metric_of(run, key, str(folder)) for run in runs}
    if len(found) < len(runs) or None in found.values():
        raise DataError(f"{folder}: {key} is undefined in a run, or a seed has two; run it again")
    return {seed: float(value) for seed, value in sorted(found.items()) if value is not None}


def _difference_over_seeds(first: Mapping[int, float], second: Mapping[int, float], folder: Path) -> str:
    """Return the mean difference over common seeds with its interval; bold if the interval excludes 0."""
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if len(differences) < 2:
        raise DataError(f"{folder}: DAIR and DA-ERM have {len(differences)} seeds in common; an interval needs two")
    mean, half_width = statistics.mean(differences), welch_half_width((statistics.stdev(differences), len(differences)))
    text = f"{mean:+.3f} ± {half_width:.3f}"
    return f"**{text}**" if abs(mean) > half_width else text


def _runs_of(folder: Path, ends: Mapping[str, Sequence[str]] = RUNS) -> dict[str, list[Record]]:
    """Return heading -> runs; [] for what was not run."""
    return {
        name: [
            record
            for end in of_method
            for record in read_records(Path(f"{folder}{end}"))
            if record.content["method"] == method
        ]
        for name, (method, *of_method) in ends.items()
    }


def _means(runs: Sequence[Record], folder: Path) -> list[str]:
    of_states = [key.replace("accuracy", "joint_goal_accuracy") for key in METRICS]
    keys = METRICS if "original_accuracy" in runs[0].content["metrics"] else of_states
    return [f"{statistics.fmean(_values(runs, key, folder).values()):.3f}" for key in keys]


def _differences(runs: Mapping[str, Sequence[Record]], name: str, baseline: str) -> Mapping[str, Any]:
    """Return metric -> difference to the baseline, paired over test rows and seeds."""
    records = [{**record.content, "method": side} for side in (name, baseline) for record in runs[side]]
    paired = paired_differences(records, baseline)
    seeds, of_baseline = (sorted(record.content["seed"] for record in runs[side]) for side in (name, baseline))
    if paired is None or name not in paired["differences"] or seeds != of_baseline:
        raise DataError(f"{runs[name][0].path}: {name} cannot be paired with {baseline}; run it again")
    return paired["differences"][name]


def _weights(record: Record) -> list[float] | None:
    return record.content["config"]["training"].get("view_weights")


def _p_value(found: Mapping[str, Any] | None) -> float:
    return PairedDifference(**found).p_value if found else 1.0


def _p_text(p: float) -> str:
    text = f"{p:.3f}" if p >= 0.0005 else "below .0005"
    return f"**{text}**" if p < 1 - CONFIDENCE else text


def _text(found: Mapping[str, float | None] | None) -> str:
    return difference_text(found).replace("0.", ".")


def _both_correct(runs: list[Record], folder: Path) -> str:
    """Return the mean share of pairs with both views correct, with lambda or weight if it was set; "-" without runs."""
    if not runs:
        return "-"
    value = statistics.mean(_values(runs, "both_correct", folder).values())
    used, weights = lambda_of(runs[0].content), _weights(runs[0])
    settings = [] if used in (None, AUTO) else [lambda_text(used)]
    settings += [f"weight {weights[1]:g}"] if weights else []
    return f"{value:.3f}" + (f" ({', '.join(settings)})" if settings else "")
