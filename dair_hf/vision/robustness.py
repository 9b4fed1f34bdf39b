"""Adversarial robustness of an image classifier (paper, section 7): data, and attacks for training and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from torch import Tensor, nn
from tqdm.auto import tqdm

from dair_hf.augment.attacks.adversarial import AttackAugmenter, perturb
from dair_hf.augment.attacks.attack_loss import KL
from dair_hf.augment.attacks.autoattack import auto_attack
from dair_hf.augment.attacks.pgd import Attack
from dair_hf.data.counter_rng import generator_for
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.evaluation.answers import same_classes
from dair_hf.settings import Count, NonNegative, Positive, Range, Settings
from dair_hf.vision.cifar10 import Cifar10Config, load_cifar10
from dair_hf.vision.labeled_images import LabeledImages
from dair_hf.vision.mnist.digits import load_mnist

FGSM, PGD, AUTO = "fgsm", "pgd", "autoattack"
PIXELS, LABELS = "pixel_values", "labels"
TRADES = "trades"
NORM: Literal["linf"] = "linf"  # of the perturbations


@dataclass
class AdversarialDataConfig(Cifar10Config):
    """Images of an experiment on adversarial robustness: CIFAR-10, or MNIST for a CPU."""

    PATH_FIELDS: ClassVar = ("mnist", "cifar10")  # not compared between runs: the images have a fingerprint

    mnist: str | None = field(
        default=None, metadata={"help": "MNIST instead of CIFAR-10: a folder, or its name on the Hub."}
    )
    evaluate_on: Literal["test", "validation"] = field(
        default="test", metadata={"help": "test, or validation to choose settings with."}
    )

    @property
    def name(self) -> str:
        """Name of the data set."""
        return "CIFAR-10" if self.mnist is None else "MNIST"


def load_adversarial_data(config: AdversarialDataConfig) -> dict[str, LabeledImages]:
    """Read both files of the data set, for `cifar10_train_pairs`."""
    if config.mnist is None:
        return {split: load_cifar10(config.cifar10, split) for split in ("train", "test")}
    files = {split: load_mnist(config.mnist, split) for split in ("train", "test")}
    return {split: LabeledImages(images[:, None], labels) for split, (images, labels) in files.items()}


@dataclass
class AttackConfig(Settings):
    """Ball, training attack and evaluation attacks; lengths are in units of pixels."""

    provided_methods = ("pgd", "trades", "mart")  # of `experiments.comparison`; no field

    epsilon: NonNegative = field(default=8 / 255, metadata={"help": "Radius of the L-inf ball. Paper: 8/255."})
    step_size: Positive = field(
        default=2 / 255, metadata={"help": "Step size of PGD in training and evaluation. Paper: 2/255."}
    )
    train_steps: Count = field(default=11, metadata={"help": "PGD steps that generate training partners. Paper: 11."})
    test_steps: Count = field(default=20, metadata={"help": "PGD steps in evaluation. Paper: 20."})
    autoattack_rows: Annotated[int, Range(low=0)] = field(
        default=0,
        metadata={
            "help": "Also run AutoAttack on this many rows, which takes hours; 0: none. Needs the extra attacks."
        },
    )

    def training_attack(self, method: str) -> Attack:
        """Return the attack that generates partners: maximal KL divergence for TRADES, else maximal cross-entropy."""
        loss: dict[str, Any] = {"loss": KL} if method == TRADES else {}
        return Attack(NORM, self.epsilon, self.step_size, self.train_steps, **loss)

    def evaluation_attacks(self) -> dict[str, Attack]:
        """Return the evaluation attacks by name, without AutoAttack."""
        return {
            FGSM: Attack.fgsm(self.epsilon, norm=NORM),
            PGD: Attack(NORM, self.epsilon, self.step_size, self.test_steps),
        }

    def augmenter(self, method: str) -> AttackAugmenter | None:
        """Return the augmenter that generates partners for a method; None for ERM."""
        return None if method == "erm" else AttackAugmenter(self.training_attack(method))


def _attack_originals(
    model: nn.Module,
    pairs: TensorPairs,
    attack: Attack,
    *,
    seed: int = 0,
    batch_size: int = 500,
    title: str | None = None,
) -> Tensor:
    """Attack the originals of pairs.

    Batches are shared among the processes. Each batch has its own random stream, so the result depends on `seed` and
    `batch_size` but not on the number of processes.
    """
    state = PartialState()
    device = next(model.parameters()).device
    starts = range(0, len(pairs), batch_size)
    result: Tensor | None = None
    local = starts[state.process_index :: state.num_processes]
    for start in tqdm(local, desc=title, unit="batch", leave=False, disable=title is None or not state.is_main_process):
        rows = torch.arange(start, min(start + batch_size, len(pairs)), device=pairs.device)
        view = {name: values.to(device) for name, values in pairs.view(rows, 0).items()}
        generator = generator_for(device, seed, "attacked", start)
        perturbed = perturb(model, view[PIXELS], view[LABELS], attack, generator, row_ids=pairs.row_ids[rows.cpu()])
        if result is None:
            result = perturbed.new_zeros(len(pairs), *perturbed.shape[1:], device="cpu", dtype=torch.float32)
        result[rows.cpu()] = perturbed.to("cpu", torch.float32)
    if state.num_processes == 1 and result is not None:
        return result
    if result is None:  # fewer batches than processes, or no rows
        shape = pairs.view(torch.zeros(1, dtype=torch.int64, device=pairs.device), 0)[PIXELS].shape[1:]
        result = torch.zeros(len(pairs), *shape)
    # Each row is nonzero on one process only.
    return reduce(result.to(state.device), "sum").cpu()


def evaluate_attacks(
    evaluate_pairs: Callable[..., Any],
    model: nn.Module,
    pairs_with: Callable[[Tensor | None], TensorPairs],
    config: AttackConfig,
    *,
    seed: int = 0,
    batch_size: int = 500,
    intervals: bool = True,
    data_name: str = "images",
    progress: bool = True,
) -> dict[str, Any]:
    """Evaluate a classifier on clean images and under each attack."""
    clean = pairs_with(None)
    metrics: dict[str, Any] = {"rows": len(clean)}
    suffixes = ("", "_low", "_high") if intervals else ("",)
    for name, attack in config.evaluation_attacks().items():
        title = f"{name}, {data_name}" if progress else None
        partners = _attack_originals(model, clean, attack, seed=seed, batch_size=batch_size, title=title)
        result = evaluate_pairs(
            pairs_with(partners), same_classes, intervals=intervals, data_name=f"{data_name}, {name}"
        )
        metrics |= {f"accuracy_{name}{suffix}": result[f"augmented_accuracy{suffix}"] for suffix in suffixes}
        metrics |= {
            f"{key}_{name}{suffix}": result[f"{key}{suffix}"] for key in ("cm", "both_correct") for suffix in suffixes
        }
        metrics |= {f"accuracy{suffix}": result[f"original_accuracy{suffix}"] for suffix in suffixes}
        metrics |= {f"cm_numerator_{name}": result["cm_numerator"], "cm_denominator": result["cm_denominator"]}
    if config.autoattack_rows:  # on every process alike, since the toolbox knows only one
        rows = torch.arange(min(config.autoattack_rows, len(clean)), device=clean.device)
        view = {name: values.to(next(model.parameters()).device) for name, values in clean.view(rows, 0).items()}
        partners = auto_attack(
            model, view[PIXELS], view[LABELS], config.epsilon, NORM, batch_size=batch_size, seed=seed
        )
        pairs = TensorPairs(view, view | {PIXELS: partners})
        result = evaluate_pairs(pairs, same_classes, intervals=False, data_name=f"{data_name}, {AUTO}")
        metrics |= {f"accuracy_{AUTO}": result["augmented_accuracy"], f"{AUTO}_rows": len(rows)}
    return metrics
