# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[regression]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Robust regression: a spurious feature that misleads at test, and noise in the targets (section 6 of the paper).

Command (needs the Drug Discovery file qsar.mat of the TERM repository; half a minute a run on two cores):

    accelerate launch recipes/robust_regression.py --config recipes/configs/robust_regression.yaml --data_file qsar.mat

The header of the configuration states the expected results. Options: other losses, noise and the variants of the
released code (`--loss huber --noise_share 0.4`, `--loss term --consistency batch --augmented_feature one`); your own
table, saved as qsar.mat is (`--data_file own.mat`); choosing lambda on held-out rows before the test
(`--search_lambdas 1 10 100 1000 10000 --validation_share 0.2`); the paper's "clean ERM" (`--spurious_feature false
--methods erm`).

Steps: train a linear model on full batches, where the partner of a row has another value of the spurious feature;
evaluate the root mean squared error on test rows with the feature reversed and clean targets. Finished runs are stored
as JSON and not repeated.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.evaluation.answers import same_numbers
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    train_evaluate_save,
    with_settings,
)
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.io.commands import run_recipe
from dair_hf.regression.data import (
    TOLERANCE,
    RegressionConfig,
    RegressionData,
    load_regression,
    regression_evaluation_pairs,
    regression_train_pairs,
)
from dair_hf.regression.linear import LinearRegression, LinearRegressionConfig, RobustLossConfig, rmse
from dair_hf.training.environments import AggregatedDAIR

COLUMNS = [
    Column("rmse", "test RMSE"),
    Column("rmse_as_trained", "RMSE, feature as in training"),
    Column("cm", "CM"),
    Column("both_correct", "both right"),
]


def evaluate(
    trainer: DAIRTrainer, table: RegressionData, data: RegressionConfig, split: str = "test"
) -> dict[str, Any]:
    """Return the RMSE with the feature reversed and as in training, and CM of predictions within the tolerance."""
    errors: dict[str, float] = {}
    pairs = regression_evaluation_pairs(table, data, trainer.args.seed, split)

    def correct(predictions: list[Any], references: list[float]) -> Any:
        errors["rmse"] = rmse(predictions[: len(pairs)], references[: len(pairs)])
        if len(predictions) > len(pairs):
            errors["rmse_as_trained"] = rmse(predictions[len(pairs) :], references[len(pairs) :])
        return same_numbers(predictions, references, TOLERANCE)

    metrics = trainer.evaluate_pairs(pairs, correct, intervals=False, data_name=f"regression, {split}")
    return {**metrics, **errors}


def train_and_evaluate(
    run: Run, split: str, table: RegressionData, data: RegressionConfig, loss: RobustLossConfig
) -> Result:
    """Train one run on full batches from new weights, and evaluate it."""
    set_seed(run.seed)
    pairs = regression_train_pairs(table, data, run.seed)
    args = with_settings(run.args, per_device_train_batch_size=len(pairs))
    objective = None
    if loss.aggregate is not None:
        objective = AggregatedDAIR(loss.aggregate, args.method, args.dair_lambda, loss.consistency, args.loss_epsilon)
    features = pairs[0]["features"].shape[0]
    trainer = DAIRTrainer(
        LinearRegression(LinearRegressionConfig(num_features=features)),
        args,
        train_dataset=pairs,
        sample_loss=loss.sample_loss,
        objective=objective,
    )
    return train_evaluate_save(trainer, partial(evaluate, table=table, data=data, split=split))


def main() -> None:
    """Train all unfinished runs and write the table; with a grid of lambdas, choose lambda first."""
    data, loss, comparison, search, args = parse_arguments(
        [RegressionConfig, RobustLossConfig, ComparisonConfig, SearchConfig, DAIRConfig]
    )
    claim_output_folder(args)
    table = load_regression(data)
    title, settings = f"Robust regression, {loss.loss}, {data.noise_share:.0%} noise", {"data": data, "loss": loss}
    files = {"table": tensor_fingerprint(*table)}
    if search.lambdas:
        regression_evaluation_pairs(table, data, args.seed, "validation")  # refuses to search without rows
    execute = partial(train_and_evaluate, table=table, data=data, loss=loss)
    notes = [f"R per {loss.consistency}; the partners' feature: {data.augmented_feature}."]
    shared = title, COLUMNS, settings, files, notes
    search_or_compare(search, comparison, args, execute, *shared, metrics=["rmse"], lower_is_better=True)


if __name__ == "__main__":
    run_recipe(main)
