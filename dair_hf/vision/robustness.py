"""Adversarial robustness of an image classifier (paper, section 7): which attacks train it and which judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from torch import Tensor, nn
from tqdm.auto import tqdm

from dair_hf.augment.attacks.adversarial import AttackAugmenter, perturb
from dair_hf.augment.attacks.autoattack import auto_attack
from dair_hf.augment.attacks.pgd import KL, NORMS, Attack
from dair_hf.data.counter_rng import generator_for
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.correctness import is_correct
from dair_hf.vision.settings import require_choice, require_rows

FGSM, PGD, AUTO = "fgsm", "pgd", "autoattack"
PIXELS, LABELS = "pixel_values", "labels"
TRADES = "trades"


@dataclass
class AttackConfig:
    """The ball, the attack that makes partners while training, and those that judge. Lengths are in units of pixels.

    Raises:
        DataError: A setting is out of range or unknown.

    Example:
        >>> AttackConfig(epsilon=0.2).training_attack("dair").steps
        11
    """

    norm: str = field(default="linf", metadata={"help": "Norm of the perturbations: linf or l2.", "choices": NORMS})
    epsilon: float = field(default=8 / 255, metadata={"help": "Radius of the ball, >= 0. The paper's: 8/255."})
    step_size: float = field(
        default=2 / 255, metadata={"help": "Length of a step, > 0, of training and PGD. The paper's: 2/255."}
    )
    train_steps: int = field(
        default=11, metadata={"help": "Steps of the attack that makes the partners, >= 1. The paper's: 11."}
    )
    test_steps: int = field(default=20, metadata={"help": "Steps of the PGD that judges, >= 1. The paper's: 20."})
    test_restarts: int = field(default=1, metadata={"help": "Random starts of the PGD that judges, >= 1."})
    autoattack_rows: int = field(
        default=0,
        metadata={
            "help": "Judge the first so many rows by AutoAttack too; 0: none. Needs dair-hf[attacks], and long hours."
        },
    )

    def __post_init__(self) -> None:
        for name in ("train_steps", "test_steps", "test_restarts"):
            require_rows(name, getattr(self, name))
        if self.autoattack_rows < 0:
            raise DataError(f"autoattack_rows={self.autoattack_rows} must be at least 0")
        require_choice("norm", self.norm, NORMS)
        self.judging_attacks()

    def training_attack(self, method: str) -> Attack:
        """The attack that makes the partners of a method.

        TRADES perturbs towards the largest divergence from the model's own output, all others towards the largest loss.
        """
        loss: dict[str, Any] = {"loss": KL} if method == TRADES else {}
        return Attack(self.norm, self.epsilon, self.step_size, self.train_steps, **loss)

    def judging_attacks(self) -> dict[str, Attack]:
        """Name -> attack; what AutoAttack does has no settings."""
        return {
            FGSM: Attack.fgsm(self.epsilon, norm=self.norm),
            PGD: Attack(self.norm, self.epsilon, self.step_size, self.test_steps, restarts=self.test_restarts),
        }

    def augmenter(self, method: str) -> AttackAugmenter | None:
        """What makes the partners of a method of `comparison.METHOD_PRESETS`; None for ERM, which has none."""
        return None if method == "erm" else AttackAugmenter(self.training_attack(method))


def attacked(
    model: nn.Module,
    pairs: TensorPairs,
    attack: Attack,
    *,
    seed: int = 0,
    batch_size: int = 500,
    title: str | None = None,
) -> Tensor:
    """The originals of some pairs, attacked.

    Batches are shared among the processes, and each batch has random numbers of its own, so that the result depends on
    `seed` and `batch_size` and not on how many processes there are.

    Args:
        model: As `perturb` takes it; the same on every process.
        pairs: Rows with `pixel_values` and `labels`.
        attack: The settings.
        seed: Seed of the random starts.
        batch_size: Rows attacked at once.
        title: What the progress bar says; None: no bar.

    Returns:
        `[N, C, H, W]` float32 on the CPU, in the order of the rows, on every process.

    Raises:
        DataError: As `perturb`.
    """
    state = PartialState()
    device = next(model.parameters()).device
    starts = range(0, len(pairs), batch_size)
    found: Tensor | None = None
    mine = starts[state.process_index :: state.num_processes]
    for start in tqdm(mine, desc=title, unit="batch", leave=False, disable=title is None or not state.is_main_process):
        rows = torch.arange(start, min(start + batch_size, len(pairs)), device=pairs.device)
        view = {name: values.to(device) for name, values in pairs.view(rows, augmented=False).items()}
        generator = generator_for(device, seed, "attacked", start)
        perturbed = perturb(model, view[PIXELS], view[LABELS], attack, generator, row_ids=pairs.row_ids[rows.cpu()])
        if found is None:
            found = perturbed.new_zeros(len(pairs), *perturbed.shape[1:], device="cpu", dtype=torch.float32)
        found[rows.cpu()] = perturbed.to("cpu", torch.float32)
    if state.num_processes == 1 and found is not None:
        return found
    if found is None:  # fewer batches than processes, or no rows at all
        shape = pairs.view(torch.zeros(1, dtype=torch.int64, device=pairs.device), augmented=False)[PIXELS].shape[1:]
        found = torch.zeros(len(pairs), *shape)
    # Every row stands on one process and is 0 on all others.
    return reduce(found.to(state.device), "sum").cpu()


def evaluate_attacks(
    evaluate_pairs: Callable[..., Any],
    model: nn.Module,
    pairs_with: Callable[[Tensor | None], TensorPairs],
    config: AttackConfig,
    *,
    seed: int = 0,
    batch_size: int = 500,
    n_bootstrap: int = 1000,
    data_name: str = "images",
    progress: bool = True,
) -> dict[str, Any]:
    """Judge a classifier on images as they are and under each attack.

    Args:
        evaluate_pairs: `DAIRTrainer.evaluate_pairs` of its trainer.
        model: Its model.
        pairs_with: Partners `[N, C, H, W]`, or None for none -> the rows to judge on with these partners.
        config: The attacks.
        seed: Seed of the random starts.
        batch_size: Rows attacked at once.
        n_bootstrap: Resamples of the intervals; 0 leaves them out.
        data_name: Name of the data in the model card.
        progress: Whether each attack shows a progress bar.

    Returns:
        `rows`; `accuracy`; and for each attack `accuracy_<attack>`, `cm_<attack>`, the share of the rows right as they
        are that stay right, with `cm_numerator_<attack>` and `cm_denominator`, and `both_correct_<attack>`, the share
        of all rows that are right and stay right; all shares in [0, 1], each with `<key>_low` and `<key>_high` where
        intervals are asked for. `autoattack_rows` where AutoAttack judges.

    Raises:
        DataError: As `attacked` and `auto_attack`.
    """
    bare = pairs_with(None)
    metrics: dict[str, Any] = {"rows": len(bare)}
    ends = ("", "_low", "_high") if n_bootstrap else ("",)
    for name, attack in config.judging_attacks().items():
        title = f"{name}, {data_name}" if progress else None
        partners = attacked(model, bare, attack, seed=seed, batch_size=batch_size, title=title)
        found = evaluate_pairs(
            pairs_with(partners), is_correct, n_bootstrap=n_bootstrap, data_name=f"{data_name}, {name}"
        )
        metrics |= _named(found, name, ends)
        metrics |= {f"accuracy{end}": found[f"original_accuracy{end}"] for end in ends}
        metrics["cm_denominator"] = found["cm_denominator"]
    if config.autoattack_rows:
        metrics |= _auto_metrics(model, bare, config, seed, batch_size)
    return metrics


def _named(found: Mapping[str, Any], name: str, ends: tuple[str, ...]) -> dict[str, Any]:
    renamed = {f"accuracy_{name}{end}": found[f"augmented_accuracy{end}"] for end in ends}
    renamed |= {f"{key}_{name}{end}": found[f"{key}{end}"] for key in ("cm", "both_correct") for end in ends}
    return renamed | {f"cm_numerator_{name}": found["cm_numerator"]}


def _auto_metrics(
    model: nn.Module, pairs: TensorPairs, config: AttackConfig, seed: int, batch_size: int
) -> dict[str, Any]:
    """Accuracy under AutoAttack of the first rows: on every process the same, since the toolbox knows of one."""
    device = next(model.parameters()).device
    rows = torch.arange(min(config.autoattack_rows, len(pairs)), device=pairs.device)
    view = {name: values.to(device) for name, values in pairs.view(rows, augmented=False).items()}
    partners = auto_attack(
        model, view[PIXELS], view[LABELS], config.epsilon, config.norm, batch_size=batch_size, seed=seed
    )
    was_training = model.training
    model.eval()
    with torch.no_grad():
        right = [
            (model(pixel_values=some).logits.argmax(1) == labels).float()
            for some, labels in zip(partners.split(batch_size), view[LABELS].split(batch_size), strict=True)
        ]
    model.train(was_training)
    return {f"accuracy_{AUTO}": float(torch.cat(right).mean()), f"{AUTO}_rows": len(rows)}
