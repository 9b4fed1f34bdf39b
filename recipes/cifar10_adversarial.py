# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[vision]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Adversarial robustness: the partner is the worst image near the original that an attack finds (paper, section 7).

Command (MNIST from a local folder or the Hub; two minutes a run on two cores):

    accelerate launch recipes/cifar10_adversarial.py --config recipes/configs/mnist_adversarial.yaml

`cifar10_adversarial.yaml` is the paper's setting, CIFAR-10 with a pre-activation ResNet-18 on a GPU. The header of each
configuration states the expected results, time and hardware.

Steps: during training, projected gradient ascent on the current model makes a partner for every image. PGD training
uses the partners only; TRADES and MART add their own regularizer; JS and DAIR add theirs. Every model is evaluated on
clean images, under FGSM and PGD-20, and with `--autoattack_rows 1000` under AutoAttack. The recipe writes a table and,
with `--lambda_sweep`, plots of clean against robust accuracy. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    compare,
    lambda_note,
    runs_of,
    train_evaluate_save,
)
from dair_hf.experiments.plots import plot_sweep
from dair_hf.experiments.report import Column
from dair_hf.io.commands import run_recipe
from dair_hf.vision.cifar10 import cifar10_evaluation_pairs, cifar10_train_pairs
from dair_hf.vision.labeled_images import LabeledImages
from dair_hf.vision.networks import ImageNetworkConfig, make_network
from dair_hf.vision.robustness import (
    NORM,
    AdversarialDataConfig,
    AttackConfig,
    evaluate_attacks,
    load_adversarial_data,
)

CLASSES = 10


def columns_of(attacks: AttackConfig) -> list[Column]:
    """Return the columns of the table."""
    columns = [
        Column("accuracy", "clean"),
        Column("accuracy_fgsm", "FGSM"),
        Column("accuracy_pgd", f"PGD-{attacks.test_steps}"),
        Column("cm_pgd", f"CM, PGD-{attacks.test_steps}", ("cm_numerator_pgd", "cm_denominator")),
        Column("both_correct_pgd", f"both right, PGD-{attacks.test_steps}"),
    ]
    return columns + [Column("accuracy_autoattack", "AutoAttack")] * (attacks.autoattack_rows > 0)


def train_and_evaluate(
    run: Run,
    files: Mapping[str, LabeledImages],
    data: AdversarialDataConfig,
    network: ImageNetworkConfig,
    attacks: AttackConfig,
) -> Result:
    """Train and evaluate one run from new weights."""
    set_seed(run.seed)
    trainer = DAIRTrainer(
        make_network(network, files["train"].images.shape[1], CLASSES),
        run.args,
        train_dataset=cifar10_train_pairs(files, data, run.seed),
        sample_loss="classification",
        augmenter=attacks.augmenter(run.args.method),
    )

    def evaluate(trained: DAIRTrainer) -> dict[str, Any]:
        return evaluate_attacks(
            trained.evaluate_pairs,
            trained.model,
            lambda partners: cifar10_evaluation_pairs(files, data, data.evaluate_on, partners),
            attacks,
            seed=run.seed,
            batch_size=run.args.per_device_eval_batch_size,
            progress=not run.args.disable_tqdm,
        )

    return train_evaluate_save(trainer, evaluate)


def main() -> None:
    """Train all unfinished runs, write the table and plot the trade-off."""
    types = [AdversarialDataConfig, ImageNetworkConfig, AttackConfig, ComparisonConfig, DAIRConfig]
    data, network, attacks, comparison, args = parse_arguments(types)
    folder, runs = claim_output_folder(args), list(runs_of(comparison, args))
    files = load_adversarial_data(data)
    table = compare(
        runs,
        partial(train_and_evaluate, files=files, data=data, network=network, attacks=attacks),
        folder,
        f"Adversarial robustness, {data.name}",
        columns_of(attacks),
        {"data": data, "network": network, "attacks": attacks},
        {split: tensor_fingerprint(*images) for split, images in files.items()},
        [
            f"{NORM} ball of radius {attacks.epsilon:.4g}; trained with {attacks.train_steps} steps of PGD; "
            f"{lambda_note(comparison, args)}."
        ],
    )
    if table:
        shown = {"accuracy": "clean accuracy", "accuracy_pgd": "robust accuracy", "cm_pgd": "CM"}
        plot_sweep(folder, runs, data.name, shown)


if __name__ == "__main__":
    run_recipe(main)
