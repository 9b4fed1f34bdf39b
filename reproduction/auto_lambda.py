"""Table of results/pages/automatic_lambda.md: the automatic lambda and the best lambda of a grid, task by task.

    python -m reproduction.auto_lambda --outputs outputs/auto_lambda   # summarize the logs of finished runs

`results/auto_lambda/TASK/` holds the runs with `dair_lambda: auto`, all with the default target. Their logs are not
stored; `results/auto_lambda/logs.json` keeps what the page states about them: quartiles of lambda, and the mean of the
gradient share, over the last half of training.

A difference has the interval of the relations in `reproduction.verdicts.RULES`, paired over the seeds of both.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dair_hf.errors import DataError
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json, write_json
from reproduction.records import markdown_table, metric_of, read_records
from reproduction.verdicts import difference_of

LOGS = Path("auto_lambda") / "logs.json"


class Task(NamedTuple):
    """Task of the table.

    Attributes:
        name: Folder of the runs below `results/auto_lambda/`.
        title: Name in the table.
        metric: Key of the metric.
        given: Folder of the runs with a given lambda, below the results.
        dair_lambda: The given lambda, the best of its grid.
        baseline: Folder of the runs of DA-ERM.
    """

    name: str
    title: str
    metric: str
    given: str
    dair_lambda: float
    baseline: str


TASKS = (
    Task(
        "colored_mnist_adv", "Colored MNIST, Adv., accuracy", "accuracy_c3", "colored_mnist_adv/methods", 1000.0,
        "colored_mnist_adv/methods",
    ),
    Task(
        "colored_mnist_rnd", "Colored MNIST, Rnd., accuracy", "accuracy_c3", "colored_mnist_rnd/methods", 100.0,
        "colored_mnist_rnd/methods",
    ),
    Task(
        "rotated_mnist_weak", "Rotated MNIST, weak, accuracy", "original_accuracy", "rotated_mnist_weak", 10.0,
        "rotated_mnist_weak",
    ),
    Task(
        "robust_regression_l2", "QSAR, L2, 20 % noise, RMSE", "rmse", "robust_regression_l2/written_20", 10.0,
        "robust_regression_l2/written_20",
    ),
    Task(
        "counting_scenes_cv", "counting scenes, CV, accuracy", "vqa_accuracy", "counting_scenes/cv", 1.0,
        "counting_scenes/cv",
    ),
    Task(
        "counterfactual_sentiment", "counterfactual reviews, both_correct", "both_correct",
        "auto_lambda/counterfactual_sentiment_grid", 1.0, "auto_lambda/counterfactual_sentiment_grid",
    ),
    Task(
        "counterfactual_nli", "counterfactual inference, both_correct", "both_correct",
        "counterfactual_nli/embeddings_100/final", 0.1, "counterfactual_nli/embeddings_100/final",
    ),
    Task("woz2", "WOZ 2.0, both_correct", "both_correct", "woz2/share_100", 0.02, "woz2/share_100"),
)  # fmt: skip


def values(folder: Path, method: str, metric: str, dair_lambda: float | str | None = None) -> dict[int, float]:
    """Return a metric of the stored runs of a method by seed, in ascending order; at least two.

    Args:
        folder: Folder of records.
        method: Name of the method in the records.
        metric: Key of the metric.
        dair_lambda: Lambda of the runs; None: any.

    Raises:
        DataError: There are fewer than two runs, or one lacks the metric.
    """
    records = [
        record
        for record in read_records(folder)
        if record.content["method"] == method
        and dair_lambda in (None, record.content["config"]["training"]["dair_lambda"])
    ]
    found = {record.content["seed"]: metric_of(record, metric, str(folder)) for record in records}
    if len(found) < 2 or None in found.values():
        raise DataError(f"{folder}: {len(found)} runs of {method} with lambda {dair_lambda}; a mean needs two")
    return {seed: float(value) for seed, value in sorted(found.items()) if value is not None}


def table(results: Path) -> str:
    """Return the table in Markdown."""
    logs = read_json(results / LOGS)
    rows = []
    for task in TASKS:
        given = values(results / task.given, "dair", task.metric, task.dair_lambda)
        plain = values(results / task.baseline, "da", task.metric)
        found = values(results / "auto_lambda" / task.name, "dair", task.metric, "auto")
        log = logs[task.name]
        difference, bound = difference_of(found, given)
        cells = (
            task.title,
            mean_and_deviation(list(plain.values())),
            f"{mean_and_deviation(list(given.values()))} ({task.dair_lambda:g})",
            mean_and_deviation(list(found.values())),
            f"{difference:+.3f} ± {bound:.3f}",
            " to ".join(f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in log["lambda_quartiles"]),
            f"{log['gradient_share']:.2f}",
        )
        rows.append(cells)
    header = ["task", "DA-ERM", "DAIR, given lambda", "auto", "auto - given", "lambda found", "share"]
    return "\n".join(markdown_table(header, rows))


def mean_and_deviation(sample: Sequence[float]) -> str:
    """Return mean and standard deviation with three digits behind the point.

    Example:
        >>> mean_and_deviation([0.5, 0.7])
        '0.600 ± 0.141'
    """
    return f"{statistics.mean(sample):.3f} ± {statistics.stdev(sample):.3f}"


def summarize_logs(outputs: Path) -> dict[str, dict[str, Any]]:
    """Return lambda and gradient share over the last half of training, from the logs of finished runs.

    Args:
        outputs: Folder with the output folders of a recipe, named like the tasks; some may be absent.

    Raises:
        DataError: No task has an output folder, or the runs of one have no logs.
    """
    summary = {}
    present = [task for task in TASKS if (outputs / task.name).is_dir()]
    if not present:
        raise DataError(f"{outputs}: no output folder of a task ({', '.join(task.name for task in TASKS)})")
    for task in present:
        late: list[dict[str, float]] = []
        for path in sorted((outputs / task.name / "runs").glob("*/trainer_state.json")):
            history = [log for log in read_json(path)["log_history"] if "lambda_target" in log]
            late += [log for log in history if log["step"] > history[-1]["step"] / 2]
        if not late:
            raise DataError(f"{outputs / task.name}: no run with a log of lambda; run it with --dair_lambda auto")
        quartiles = np.quantile([log["dair_lambda"] for log in late], [0.25, 0.75]).tolist()
        shares = [log["gradient_share"] for log in late if "gradient_share" in log]
        summary[task.name] = {
            "lambda_quartiles": quartiles,
            "gradient_share": statistics.mean(shares),
            "lambda_target": late[-1]["lambda_target"],
        }
    return summary


def main() -> None:
    """Summarize the logs of finished runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of stored runs")
    parser.add_argument("--outputs", type=Path, required=True, help="folder of the recipes' output folders")
    options = parser.parse_args()
    file = options.results / LOGS
    known = read_json(file) if file.exists() else {}
    write_json(file, {**known, **summarize_logs(options.outputs)})


if __name__ == "__main__":
    run_recipe(main)
