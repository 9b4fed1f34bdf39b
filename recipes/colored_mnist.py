# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[vision]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Colored MNIST: a color that agrees with the label in training and misleads at test (section 4 of the paper).

Command (downloads MNIST, or reads parquet or IDX files from --mnist FOLDER; three minutes a run on two cores):

    accelerate launch recipes/colored_mnist.py --config recipes/configs/colored_mnist_adv.yaml

- `colored_mnist_rnd.yaml` draws random colors for the partners.
- `colored_mnist_irm.yaml` is for invariant risk minimization, which needs larger batches than the other methods.

The header of each configuration states the expected results, time and hardware. Options: partial augmentation
(`--partner_fraction 0.3`), colors drawn as in the released code (`--color_draws dependent --fresh_colors false`), and
choosing lambda on validation digits before the test (`--search_lambdas 10 100 1000`).

Steps: color the originals by scheme C1 and the partners by C2 (adv) or uniformly at random (rnd); train every method
from the same weights; evaluate accuracy under the test scheme C3, where 75 % is the maximum because a quarter of the
labels is wrong. CM is reported between C1 and C3, as the paper's text defines it, and between C1 and the augmentation,
which matches the paper's figures. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.evaluation.answers import same_classes
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig, Result, Run, claim_output_folder, train_evaluate_save
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.io.commands import run_recipe
from dair_hf.training.environments import EnvironmentConfig
from dair_hf.vision.mnist.colored import ColoredConfig, colored_evaluation_pairs, colored_train_pairs
from dair_hf.vision.mnist.digits import Digits, load_mnist
from dair_hf.vision.networks import DigitCNN, DigitCNNConfig

COLUMNS = [
    Column("accuracy_c3", "accuracy, C3"),
    Column("cm_c1_c3", "CM, C1 and C3", ("cm_numerator_c1_c3", "cm_denominator")),
    Column("cm_c1_augmentation", "CM, C1 and augmentation", ("cm_numerator_c1_augmentation", "cm_denominator")),
    Column("both_correct_c1_c3", "both right, C1 and C3"),
]


def evaluate(trainer: DAIRTrainer, mnist: Mapping[str, Digits], data: ColoredConfig, split: str) -> dict[str, Any]:
    """Return the accuracy under the training and the test scheme, and both CMs."""
    results = {}
    for name, scheme in (("c3", "C3"), ("augmentation", data.augmentation)):
        pairs = colored_evaluation_pairs(mnist, data, trainer.args.seed, split, scheme)
        results[name] = trainer.evaluate_pairs(
            pairs, same_classes, intervals=False, data_name=f"Colored MNIST {split}, C1 and {scheme}"
        )
    return {
        "accuracy_c1": results["c3"]["original_accuracy"],
        **{f"accuracy_{name}": metrics["augmented_accuracy"] for name, metrics in results.items()},
        **{f"cm_c1_{name}": metrics["cm"] for name, metrics in results.items()},
        **{f"cm_numerator_c1_{name}": metrics["cm_numerator"] for name, metrics in results.items()},
        "cm_denominator": results["c3"]["cm_denominator"],
        **{f"both_correct_c1_{name}": metrics["both_correct"] for name, metrics in results.items()},
    }


def train_and_evaluate(
    run: Run, split: str, mnist: Mapping[str, Digits], data: ColoredConfig, environments: EnvironmentConfig
) -> Result:
    """Train and evaluate one run from new weights."""
    set_seed(run.seed)
    trainer = DAIRTrainer(
        DigitCNN(DigitCNNConfig(num_channels=3, num_labels=1)),
        run.args,
        train_dataset=colored_train_pairs(mnist, data, run.seed),
        sample_loss="binary",
        objective=environments.objective(run.method),
    )
    return train_evaluate_save(trainer, partial(evaluate, mnist=mnist, data=data, split=split))


def main() -> None:
    """Train all unfinished runs and write the table; with a grid of lambdas, choose lambda first."""
    data, environments, comparison, search, args = parse_arguments(
        [ColoredConfig, EnvironmentConfig, ComparisonConfig, SearchConfig, DAIRConfig]
    )
    claim_output_folder(args)
    mnist = {split: load_mnist(data.mnist, split) for split in ("train", "test")}
    title, settings = f"Colored MNIST, {data.setup}", {"data": data, "environments": environments}
    files = {split: tensor_fingerprint(*digits) for split, digits in mnist.items()}
    execute = partial(train_and_evaluate, mnist=mnist, data=data, environments=environments)
    notes = [f"C1 and {data.augmentation} drawn {data.color_draws}ly; {data.test_source} test rows."]
    keys = "accuracy_c3", "cm_c1_c3"
    search_or_compare(search, comparison, args, execute, title, COLUMNS, settings, files, notes, metrics=keys)


if __name__ == "__main__":
    run_recipe(main)
