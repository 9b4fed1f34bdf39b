"""Projected gradient descent (PGD, Madry et al., 2018) with random restarts: settings and search.

PGD ascends the loss within an Lp ball. One step without random start is FGSM (Goodfellow et al., 2015), with `momentum`
it is MI-FGSM (Dong et al., 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dair_hf.augment.attacks.attack_loss import CROSS_ENTROPY, KL, LOSSES, AttackLoss, LogitsLoss
from dair_hf.augment.attacks.lp_ball import NORMS, LpBall, scale_to_max_one
from dair_hf.errors import DataError, NonFiniteLossError


@dataclass(frozen=True)
class Attack:
    """Settings of a PGD attack: `x~ <- project(x~ + step_size * direction(grad_x~ loss))`, `steps` times.

    The defaults are the attack that the paper trains with on CIFAR-10 (section 7); its evaluation uses `steps=20`. All
    lengths are in units of the pixels. For images given to the model as `(pixels - mean) / std`, set `mean` and `std`;
    ball and range then still refer to the pixels.

    Raises:
        DataError: A setting is out of range or unknown, or two settings cannot be combined.

    Example:
        >>> Attack(steps=20).epsilon == 8 / 255
        True
        >>> Attack.fgsm(8 / 255).steps
        1
    """

    norm: str = field(
        default="linf",
        metadata={"help": "Norm of the perturbation: linf, per pixel; l2, Euclidean over the image.", "choices": NORMS},
    )
    epsilon: float = field(
        default=8 / 255, metadata={"help": "Radius of the ball, >= 0, in units of the pixels; 0 changes nothing."}
    )
    step_size: float = field(
        default=2 / 255, metadata={"help": "Step size in the same norm and units, > 0. Paper: 2/255."}
    )
    steps: int = field(
        default=11,
        metadata={"help": "Steps, >= 1; each takes a forward and a backward pass. Paper: 11 to train, 20 to test."},
    )
    random_start: bool = field(
        default=True, metadata={"help": "Start at a uniformly random point of the ball; false: at the original."}
    )
    restarts: int = field(
        default=1,
        metadata={
            "help": "Random restarts, >= 1; keeps the worst result of each row, at one more forward per restart."
        },
    )
    momentum: float = field(
        default=0.0,
        metadata={"help": "Decay of the accumulated gradient, >= 0; each gradient has L1 norm 1. MI-FGSM: 1."},
    )
    lower: float | None = field(
        default=0.0, metadata={"help": "Smallest pixel value; none: unbounded, as for embeddings and features."}
    )
    upper: float | None = field(default=1.0, metadata={"help": "Largest pixel value; none: unbounded."})
    loss: str | LogitsLoss = field(
        default=CROSS_ENTROPY,
        metadata={
            "help": "Loss to maximize. cross_entropy: with the label; kl: divergence from the model's output for the "
            "original (TRADES); the name of a sample loss; or a callable (logits, labels) -> [N].",
        },
    )
    mean: tuple[float, ...] | None = field(
        default=None, metadata={"help": "Channel means subtracted from the pixels; none: not normalized."}
    )
    std: tuple[float, ...] | None = field(
        default=None, metadata={"help": "Channel standard deviations, > 0, that the pixels were divided by; with mean."}
    )

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise DataError(f"attack: norm={self.norm!r} is unknown; use one of {', '.join(NORMS)}")
        if not callable(self.loss) and self.loss not in LOSSES:
            raise DataError(
                f"attack: loss={self.loss!r} is unknown; use one of {', '.join(LOSSES)}, or pass a callable "
                "(logits, labels) -> [N]"
            )
        self._check_numbers()
        if not self.random_start and self.restarts > 1:
            raise DataError(
                f"attack: restarts={self.restarts} and random_start=False cannot be combined: every restart would "
                "begin at the original; set random_start=True"
            )
        if not self.random_start and self.loss == KL:
            raise DataError(
                "attack: loss='kl' and random_start=False cannot be combined: at the original the divergence is "
                "minimal and its gradient 0; set random_start=True"
            )
        self._check_range()

    @classmethod
    def fgsm(cls, epsilon: float = 8 / 255, **settings: Any) -> Attack:
        """Create the fast gradient sign method: one step of length epsilon from the original.

        Args:
            epsilon: Radius and step size.
            **settings: Other fields of an attack.

        Returns:
            The attack.

        Raises:
            DataError: As the class.
        """
        # A step size must be positive, also for radius 0.
        return cls(**{"epsilon": epsilon, "step_size": epsilon or 1.0, "steps": 1, "random_start": False, **settings})

    def _check_numbers(self) -> None:
        for name in ("epsilon", "momentum", "step_size"):
            value, positive = getattr(self, name), name == "step_size"
            if not _is_number(value) or value < 0 or (positive and value == 0):
                raise DataError(
                    f"attack: {name}={value!r} must be a finite number {'>' if positive else '>='} 0; 8/255 is 0.0314"
                )
        for name in ("steps", "restarts"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(f"attack: {name}={value!r} must be an integer of at least 1")

    def _check_range(self) -> None:
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise DataError(f"attack: {name}={value!r} must be a finite number, or None for no bound")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise DataError(f"attack: lower={self.lower} must be below upper={self.upper}")
        if self.mean is None and self.std is None:
            return
        if self.mean is None or self.std is None or len(self.mean) != len(self.std) or not self.mean:
            raise DataError(f"attack: mean={self.mean} and std={self.std} must both be given, one number per channel")
        if not all(map(_is_number, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise DataError(f"attack: mean={self.mean} and std={self.std} must be finite numbers, with std > 0")


def pgd(
    loss: AttackLoss, ball: LpBall, attack: Attack, generator: torch.Generator | None, row_ids: Sequence[str]
) -> Tensor:
    """Maximize a loss within a ball by projected gradient descent; keep the worst restart of each row.

    Args:
        loss: Loss of a frozen model.
        ball: Feasible set.
        generator: Generator of the random starts; None without random starts.
        row_ids: Names of the rows, for errors.

    Returns:
        The adversarial inputs, detached, shaped like the center of the ball.

    Raises:
        DataError: The outputs do not depend on the input.
        NonFiniteLossError: A gradient is NaN or infinite.
    """
    worst = _run(loss, ball, attack, generator, row_ids)
    if attack.restarts == 1:
        return worst
    wrong, losses = loss.score(worst)
    for _ in range(1, attack.restarts):
        point = _run(loss, ball, attack, generator, row_ids)
        now_wrong, now_losses = loss.score(point)
        # Misclassification outranks loss, so that one more restart never raises the accuracy under attack.
        worse = (now_wrong & ~wrong) | ((now_wrong == wrong) & (now_losses > losses))
        worst = torch.where(worse.view(-1, *[1] * (worst.ndim - 1)), point, worst)
        wrong, losses = wrong | now_wrong, torch.where(worse, now_losses, losses)
    return worst


def _run(
    loss: AttackLoss, ball: LpBall, attack: Attack, generator: torch.Generator | None, row_ids: Sequence[str]
) -> Tensor:
    """Return the last iterate from one start."""
    if attack.random_start:
        assert generator is not None
        point = ball.sample(generator)
    else:
        point = ball.center
    velocity = torch.zeros_like(point)
    entries = tuple(range(1, point.ndim))
    broken = torch.zeros(len(point), dtype=torch.bool, device=point.device)
    for step in range(attack.steps):
        gradient = loss.gradient(point)
        if step == 0 and not bool(gradient.any()):
            raise loss.no_gradient("it is 0 in every row")
        broken |= ~gradient.sum(entries).isfinite()  # read after the last step, to avoid synchronizing the device
        if attack.momentum:
            gradient = scale_to_max_one(gradient, ball.dims)
            # The largest entry is now 1, so only an all-zero gradient has a sum below 1.
            total = gradient.abs().sum(ball.dims, keepdim=True).clamp_min(1)
            velocity = gradient = attack.momentum * velocity + gradient / total
        point = ball.step(point, gradient, attack.step_size)
    if bool(broken.any()):
        rows = [row_ids[row] for row in broken.nonzero()[:, 0].tolist()]
        raise NonFiniteLossError(
            f"attack: the gradient with respect to {loss.name} is NaN or infinite in {len(rows)} rows, such as "
            f"{rows[:8]}; inspect these rows, and lower the learning rate if the weights have diverged"
        )
    return point


def check_inputs(values: Tensor, attack: Attack, generator: torch.Generator | None, name: str) -> None:
    """Check that inputs can be attacked.

    Raises:
        DataError: The inputs are not floating `[N, ...]` or were created in inference mode, or a random start has no
            generator or one on another device.
    """
    if not values.is_floating_point() or values.ndim < 2:
        raise DataError(
            f"attack: {name} is {values.dtype} {list(values.shape)}; it must be floating [N, ...]: convert bytes by "
            "`images.float() / 255`"
        )
    if values.is_inference():
        raise DataError(
            f"attack: {name} was created under torch.inference_mode(), which forbids gradients; use torch.no_grad() "
            "instead"
        )
    if not attack.random_start:
        return
    if generator is None:
        raise DataError(
            "attack: random_start needs a generator: pass torch.Generator(device).manual_seed(seed), or set "
            "random_start=False"
        )
    if generator.device.type != values.device.type:
        raise DataError(
            f"attack: the generator is on {generator.device}, {name} on {values.device}; create it on the same device: "
            f"torch.Generator({str(values.device)!r})"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
