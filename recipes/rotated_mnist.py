# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[vision]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Rotated MNIST: digits trained at some angles, augmented at others, tested upright (section 5 of the paper).

Command (downloads MNIST, or reads parquet or IDX files from --mnist FOLDER; three minutes a run on two cores):

    accelerate launch recipes/rotated_mnist.py --config recipes/configs/rotated_mnist_weak.yaml

`rotated_mnist_strong.yaml` augments with any angle. The header of each configuration states the expected results, time
and hardware. Options: label noise (`--label_noise 0.2`), partial augmentation (`--partner_fraction 0.3`), longer
training (`--num_train_epochs 160`), a sweep over lambda (`--lambda_sweep 1.43 8.85 16.23 100`), a plot of the
regularizer during training (`--logging_steps 1`), and choosing lambda on validation digits before the test
(`--search_lambdas 1 3 10 30 100`).

Steps: rotate both views of every training digit by angles that are new in each epoch; train every method from the same
weights; evaluate accuracy at the setup's test angle, overall and by digit, and CM between upright and upside-down
digits. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from dair_hf.experiments.plots import curve_ends, plot_ends
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json
from dair_hf.vision.mnist.digits import Digits, load_mnist
from dair_hf.vision.mnist.rotated import (
    RotatedConfig,
    rotated_evaluation_pairs,
    rotated_train_pairs,
)
from dair_hf.vision.networks import DigitCNN, DigitCNNConfig

COLUMNS = [
    Column("original_accuracy", "accuracy"),
    Column("cm", "CM, 0 and 180 degrees"),
    Column("both_correct", "both right, 0 and 180 degrees"),
]


def evaluate(trainer: DAIRTrainer, mnist: Mapping[str, Digits], data: RotatedConfig, split: str) -> dict[str, Any]:
    """Return accuracy at the test angle and CM between 0 and 180 degrees, overall and by digit."""
    tested = rotated_evaluation_pairs(mnist, data, trainer.args.seed, split)
    upright = rotated_evaluation_pairs(mnist, data, trainer.args.seed, split, scheme="R1")
    digits = np.array(tested.columns["digit"])  # of `upright`, too
    by_digit = {f"digit_{digit}": digits == digit for digit in np.unique(digits)}
    names = f"Rotated MNIST ({data.setup}) {split}", f"upright MNIST {split}"
    metrics, half_turn = (
        trainer.evaluate_pairs(pairs, same_classes, intervals=False, subsets=by_digit, data_name=name)
        for pairs, name in zip((tested, upright), names, strict=True)
    )
    keys = ("rows", "pairs", "cm", "cm_numerator", "cm_denominator", "both_correct")
    # With a log of every step, the record keeps the ends of the regularizer's curve.
    curve = [log["consistency"] for log in trainer.state.log_history if "consistency" in log]
    ends = {"regularizer": curve_ends(curve)} if curve and trainer.args.logging_steps == 1 else {}
    return {
        "original_accuracy": metrics["original_accuracy"],
        **{f"accuracy_{name}": metrics[f"{name}_original_accuracy"] for name in by_digit},
        **{f"cm_{name}": half_turn[f"{name}_cm"] for name in by_digit},
        **{key: half_turn[key] for key in keys},
        **ends,
    }


def train_and_evaluate(run: Run, split: str, mnist: Mapping[str, Digits], data: RotatedConfig) -> Result:
    """Train and evaluate one run from new weights."""
    set_seed(run.seed)
    pairs = rotated_train_pairs(mnist, data, run.seed)
    model = DigitCNN(DigitCNNConfig(num_channels=1, num_labels=10))
    trainer = DAIRTrainer(model, run.args, train_dataset=pairs, sample_loss="classification")
    return train_evaluate_save(trainer, partial(evaluate, mnist=mnist, data=data, split=split))


def plot_regularizer(folder: Path, runs: Sequence[Run]) -> None:
    """Plot the regularizer at the first and the last steps of each method that has one, as a mean over the seeds."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if ends := read_json(folder / f"{run.name}.json")["metrics"].get("regularizer"):
            curves.setdefault(run.method, []).append(ends)
    if curves:
        plot_ends(folder / "regularizer.png", "Regularizer while training", "R, nats a pair", curves)


def main() -> None:
    """Train all unfinished runs and write the table; with a grid of lambdas, choose lambda first."""
    data, comparison, search, args = parse_arguments([RotatedConfig, ComparisonConfig, SearchConfig, DAIRConfig])
    folder = claim_output_folder(args)
    mnist = {split: load_mnist(data.mnist, split) for split in ("train", "test")}
    title, settings = f"Rotated MNIST, {data.setup}", {"data": data}
    files = {split: tensor_fingerprint(*digits) for split, digits in mnist.items()}
    execute = partial(train_and_evaluate, mnist=mnist, data=data)
    keys = "original_accuracy", "cm"
    table = search_or_compare(search, comparison, args, execute, title, COLUMNS, settings, files, metrics=keys)
    if table and args.logging_steps == 1:
        plot_regularizer(folder, list(runs_of(comparison, args)))


if __name__ == "__main__":
    run_recipe(main)
