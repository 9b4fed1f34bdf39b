"""The settings of an attack: in which ball it looks for the worst input, and how."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import SAMPLE_LOSSES

NORMS = ("linf", "l2")
CROSS_ENTROPY, KL = "cross_entropy", "kl"
LOSSES = (CROSS_ENTROPY, KL, *SAMPLE_LOSSES)
LogitsLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Attack:
    """Projected gradient ascent: `x~ <- project(x~ + step_size * direction(grad_x~ loss))`, `steps` times.

    The defaults are the attack with which the paper trains on CIFAR-10 (section 7); it judges with `steps=20`. All
    lengths are in units of the pixels, whatever the model is shown: where `mean` and `std` say that images come as
    `(pixels - mean) / std`, the ball and the range are those of the pixels all the same.

    Raises:
        DataError: A setting is out of range or unknown, or two of them cannot hold together.

    Example:
        >>> Attack(steps=20).epsilon == 8 / 255
        True
        >>> Attack.fgsm(8 / 255).steps
        1
    """

    norm: str = field(
        default="linf",
        metadata={
            "help": "Norm of the perturbation: linf, each pixel on its own; l2, Euclidean over the whole image.",
            "choices": NORMS,
        },
    )
    epsilon: float = field(
        default=8 / 255, metadata={"help": "Radius of the ball, >= 0, in units of the pixels; 0 changes nothing."}
    )
    step_size: float = field(
        default=2 / 255, metadata={"help": "Length of a step in the same norm and units, > 0. The paper's: 2/255."}
    )
    steps: int = field(
        default=11,
        metadata={"help": "Steps, >= 1: a forward and a backward each. The paper's: 11 to train, 20 to test."},
    )
    random_start: bool = field(
        default=True, metadata={"help": "Start at a point drawn uniformly from the ball; false: at the original."}
    )
    restarts: int = field(
        default=1,
        metadata={"help": "Random starts, >= 1; of several the worst result is kept, row by row, at a forward each."},
    )
    momentum: float = field(
        default=0.0,
        metadata={
            "help": "Decay of the sum of the gradients, each of L1 norm 1, that is followed; >= 0. MI-FGSM's: 1."
        },
    )
    lower: float | None = field(
        default=0.0, metadata={"help": "Smallest value of a pixel; none: unbounded, as embeddings and features are."}
    )
    upper: float | None = field(default=1.0, metadata={"help": "Largest value of a pixel; none: unbounded."})
    loss: str | LogitsLoss = field(
        default=CROSS_ENTROPY,
        metadata={
            "help": "What is made large: cross_entropy with the label; kl, from the model's own output for the "
            "original (TRADES); the name of a sample loss; or a callable (logits, labels) -> [N].",
        },
    )
    mean: tuple[float, ...] | None = field(
        default=None, metadata={"help": "Mean of each channel that was subtracted from the pixels; none: none was."}
    )
    std: tuple[float, ...] | None = field(
        default=None, metadata={"help": "Deviation of each channel, > 0, by which they were then divided; as mean."}
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
                f"attack: restarts={self.restarts} and random_start=False cannot hold together: all starts would be "
                "the original; set random_start=True"
            )
        if not self.random_start and self.loss == KL:
            raise DataError(
                "attack: loss='kl' and random_start=False cannot hold together: at the original the divergence is "
                "least and its gradient 0; set random_start=True"
            )
        self._check_range()

    @classmethod
    def fgsm(cls, epsilon: float = 8 / 255, **settings: Any) -> Attack:
        """The fast gradient sign method (Goodfellow et al., 2015): one step from the original to the edge of the ball.

        Args:
            epsilon: Radius and step.
            **settings: Other fields of an attack.

        Returns:
            The attack.

        Raises:
            DataError: As the class.
        """
        # Radius 0 leaves nothing to step over; a step must have a length all the same.
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
                raise DataError(f"attack: {name}={value!r} must be a whole number of at least 1")

    def _check_range(self) -> None:
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise DataError(f"attack: {name}={value!r} must be a finite number, or None where there is no bound")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise DataError(f"attack: lower={self.lower} must be below upper={self.upper}")
        if self.mean is None and self.std is None:
            return
        if self.mean is None or self.std is None or len(self.mean) != len(self.std) or not self.mean:
            raise DataError(
                f"attack: mean={self.mean} and std={self.std} must be given together, with a number for each channel"
            )
        if not all(map(_is_number, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise DataError(f"attack: mean={self.mean} must be finite numbers and std={self.std} finite ones > 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
