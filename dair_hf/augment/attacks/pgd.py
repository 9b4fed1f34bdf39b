"""Projected gradient descent (PGD, Madry et al., 2018): settings and search.

PGD ascends the loss within an Lp ball. One step without random start is FGSM (Goodfellow et al., 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from dair_hf.augment.attacks.attack_loss import CROSS_ENTROPY, AttackLoss, LogitsLoss, LpBall
from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.settings import Count, NonNegative, Positive, Range, Settings

Number = Annotated[float, Range()]


@dataclass(frozen=True)
class Attack(Settings):
    """Settings of a PGD attack: `x~ <- project(x~ + step_size * direction(grad_x~ loss))`, `steps` times.

    The defaults are the attack that the paper trains with on CIFAR-10 (section 7); its evaluation uses `steps=20`. All
    lengths are in units of the pixels. A model that takes `(pixels - mean) / std` normalizes them inside.

    Args:
        norm: Norm of the perturbation: linf, per pixel; l2, Euclidean over the image.
        epsilon: Radius of the ball, >= 0; 0 changes nothing.
        step_size: Step size in the same norm, > 0.
        steps: Steps, >= 1; each takes a forward and a backward pass.
        random_start: Start at a uniformly random point of the ball; False: at the original.
        lower: Smallest pixel value; None: unbounded, as for embeddings and features.
        upper: Largest pixel value; None: unbounded.
        loss: Loss to maximize. "cross_entropy": with the label; "kl": divergence from the model's output for the
            original (TRADES); the name of a sample loss; or a callable (logits, labels) -> [N].

    Raises:
        DataError: A setting is out of range.

    Example:
        >>> Attack(steps=20).epsilon == 8 / 255
        True
        >>> Attack.fgsm(8 / 255).steps
        1
    """

    norm: Literal["linf", "l2"] = "linf"
    epsilon: NonNegative = 8 / 255
    step_size: Positive = 2 / 255
    steps: Count = 11
    random_start: bool = True
    lower: Number | None = 0.0
    upper: Number | None = 1.0
    loss: str | LogitsLoss = CROSS_ENTROPY

    @classmethod
    def fgsm(cls, epsilon: float = 8 / 255, **settings: Any) -> Attack:
        """Create the fast gradient sign method: one step of length epsilon from the original."""
        # A step size must be positive, also for radius 0.
        return cls(**{"epsilon": epsilon, "step_size": epsilon or 1.0, "steps": 1, "random_start": False, **settings})


def pgd(
    loss: AttackLoss, ball: LpBall, attack: Attack, generator: torch.Generator | None, row_ids: Sequence[str]
) -> Tensor:
    """Maximize a loss within a ball by projected gradient descent; the rows' names are for errors."""
    if attack.random_start and generator is None:  # the global state is restored after an attack
        raise DataError("attack: expected a generator for random_start, such as torch.Generator(device).manual_seed(0)")
    point = ball.center if generator is None or not attack.random_start else ball.sample(generator)
    broken = torch.zeros(len(point), dtype=torch.bool, device=point.device)
    for step in range(attack.steps):
        gradient = loss.gradient(point)
        if step == 0 and not bool(gradient.any()):
            raise DataError("attack: the gradient with respect to the input is 0 in every row")
        broken |= ~gradient.sum(ball.dims).isfinite()  # read after the last step, to avoid synchronizing the device
        point = ball.step(point, gradient, attack.step_size)
    if bool(broken.any()):
        rows = [row_ids[row] for row in broken.nonzero()[:, 0].tolist()]
        raise NonFiniteLossError(
            f"attack: the gradient with respect to the input is NaN or infinite in {len(rows)} rows, such as {rows[:8]}"
        )
    return point
