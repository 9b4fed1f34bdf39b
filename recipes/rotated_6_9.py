# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[vision]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Rotated 6 and 9: half a turn makes one the other, so the label must change with the image (section 3 of the paper).

Command (downloads MNIST, or reads parquet or IDX files from --mnist FOLDER; two minutes a run on two cores):

    accelerate launch recipes/rotated_6_9.py --config recipes/configs/rotated_6_9.yaml

Expected (the paper's curves): DA-ERM below ERM at every angle, KL falling as lambda grows, DAIR-L1 at chance for large
lambda, DAIR above ERM at 45 degrees. `--methods erm kl dair --search_lambdas 0.03 0.1 0.3 1 3` chooses the lambdas of
KL and DAIR on validation digits rotated by 45 degrees before the test.

Steps: train on upright sixes and nines, and on partners rotated by 180 degrees with the other label, with a sweep over
lambda for DAIR, DAIR-L1 and KL; evaluate on digits rotated by 0 to 60 degrees;
write accuracy and CM by angle, and by lambda at 45 degrees, as a table and two plots. Finished runs are stored as JSON
and not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.evaluation.answers import same_classes
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    runs_of,
    train_evaluate_save,
)
from dair_hf.experiments.plots import mean_series, plot_by_lambda, plot_curves, sweep_series
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json
from dair_hf.vision.mnist.digits import Digits, load_mnist
from dair_hf.vision.mnist.six_nine import SixNineConfig, six_nine_evaluation_pairs, six_nine_train_pairs
from dair_hf.vision.networks import DigitCNN, DigitCNNConfig

THETAS = (0, 15, 30, 45, 60)
COLUMNS = [Column(f"accuracy_theta_{theta}", f"{theta} degrees") for theta in THETAS]


def evaluate(trainer: DAIRTrainer, mnist: Mapping[str, Digits], data: SixNineConfig, split: str) -> dict[str, Any]:
    """Return accuracy and CM at every angle."""
    metrics: dict[str, Any] = {}
    for theta in THETAS:
        pairs = six_nine_evaluation_pairs(mnist, data, theta, split)
        name = f"6 and 9 at {theta} degrees, {split}"
        result = trainer.evaluate_pairs(pairs, same_classes, intervals=False, data_name=name)
        metrics[f"accuracy_theta_{theta}"] = result["original_accuracy"]
        metrics[f"cm_theta_{theta}"] = result["cm"]
    return metrics


def train_and_evaluate(run: Run, split: str, mnist: Mapping[str, Digits], data: SixNineConfig) -> Result:
    """Train and evaluate one run from new weights."""
    set_seed(run.seed)
    model = DigitCNN(DigitCNNConfig(num_channels=1, num_labels=1))
    pairs = six_nine_train_pairs(mnist, data, run.seed)
    trainer = DAIRTrainer(model, run.args, train_dataset=pairs, sample_loss="binary")
    return train_evaluate_save(trainer, partial(evaluate, mnist=mnist, data=data, split=split))


def plot_thetas(folder: Path, runs: Sequence[Run]) -> None:
    """Plot accuracy by angle, one curve for each method and lambda, and by lambda at 45 degrees."""
    records = [read_json(folder / f"{run.name}.json") for run in runs]
    labels = list(dict.fromkeys(run.method for run in runs))

    def at(theta: int, label: str) -> list[float]:
        return [record["metrics"][f"accuracy_theta_{theta}"] for record in records if record["method"] == label]

    by_theta = {label: mean_series({theta: at(theta, label) for theta in THETAS}) for label in labels}
    plot_curves(folder / "theta.png", "6 and 9", "theta (degrees)", "accuracy", by_theta)
    by_lambda = sweep_series(folder, runs, "accuracy_theta_45")
    if by_lambda:
        plot_by_lambda(folder / "lambda.png", "6 and 9 at 45 degrees", "accuracy", by_lambda)


def main() -> None:
    """Train all unfinished runs and plot the curves; with a grid of lambdas, choose lambda first."""
    data, comparison, search, args = parse_arguments([SixNineConfig, ComparisonConfig, SearchConfig, DAIRConfig])
    folder = claim_output_folder(args)
    mnist = {split: load_mnist(data.mnist, split) for split in ("train", "test")}
    title, settings = "Rotated 6 and 9: accuracy by angle of the test digits", {"data": data}
    files = {split: tensor_fingerprint(*digits) for split, digits in mnist.items()}
    execute = partial(train_and_evaluate, mnist=mnist, data=data)
    keys = "accuracy_theta_45", "cm_theta_45"
    if search_or_compare(search, comparison, args, execute, title, COLUMNS, settings, files, metrics=keys):
        plot_thetas(folder, list(runs_of(comparison, args)))


if __name__ == "__main__":
    run_recipe(main)
