"""Losses of robust regression: settings, and the tilted loss of TERM.

Squared error and Huber loss are losses of a row. The tilted loss `T` aggregates a whole batch, so the regularizer can
be added in two ways, both available in `AggregatedDAIR` with `T` as its aggregate:

    per sample (paper)        f = 1/2 T(l) + 1/2 T(l~) + lambda * mean_i (sqrt(l_i + eps) - sqrt(l~_i + eps))^2
    per batch (as released)   f = 1/2 T(l) + 1/2 T(l~) + lambda * (sqrt(T(l) + eps) - sqrt(T(l~) + eps))^2

The released code uses the second form for TERM, and for Huber with the mean as `T`. In the first form the two terms
weight rows differently on purpose: `T` with a negative tilt nearly ignores outliers, while R asks every pair to agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from dair_hf.errors import DataError

SAMPLE_LOSSES = {"l2": "squared", "huber": "huber", "term": "squared"}
CONSISTENCIES = ("sample", "batch")


@dataclass
class RobustLossConfig:
    """Loss of a robust regression."""

    loss: str = field(
        default="l2",
        metadata={
            "help": "l2: squared error; huber: Huber loss with delta 1; term: tilted loss of squared errors.",
            "choices": tuple(SAMPLE_LOSSES),
        },
    )
    tilt: float = field(
        default=-2.0,
        metadata={"help": "Tilt t of term, not 0, in 1 / units of the loss; a negative tilt plays down outliers."},
    )
    consistency: str = field(
        default="sample",
        metadata={
            "help": "R of DAIR. sample (paper): mean of R over pairs; batch (as released for huber and term): R of the "
            "aggregated losses of both views.",
            "choices": CONSISTENCIES,
        },
    )

    def __post_init__(self) -> None:
        for name, choices in (("loss", SAMPLE_LOSSES), ("consistency", CONSISTENCIES)):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        _require_tilt(self.tilt)

    @property
    def sample_loss(self) -> str:
        """Name of the per-row loss for the trainer."""
        return SAMPLE_LOSSES[self.loss]

    @property
    def aggregate(self) -> Callable[[Tensor], Tensor] | None:
        """Function that aggregates the losses of a batch; None for the mean of the trainer's own objective."""
        if self.loss == "term":
            return partial(tilted_loss, tilt=self.tilt)
        return torch.mean if self.consistency == "batch" else None


def tilted_loss(losses: Tensor, tilt: float) -> Tensor:
    """Compute `T(l) = (1 / t) log mean_i exp(t l_i)`, between the smallest (t -> -inf) and the largest loss (t -> inf).

    `d T / d l_i = exp(t l_i) / sum_j exp(t l_j)`: a negative tilt reduces the weight of rows with large losses. For
    nonnegative losses and `t < 0` the result is nonnegative in floating point, too: the mean is over numbers up to 1,
    `exp(t l_i - max_j t l_j)`, so its logarithm is never positive.

    Source: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021, equation (2).
    """
    _require_tilt(tilt)
    if losses.ndim != 1 or len(losses) == 0:
        raise DataError(f"tilted loss: losses have shape {list(losses.shape)}; give a vector [B] of at least one loss")
    exponents = tilt * losses
    largest = exponents.detach().amax()
    return (largest + torch.exp(exponents - largest).mean().log()) / tilt


def _require_tilt(tilt: float) -> None:
    if tilt == 0 or not math.isfinite(tilt):
        raise DataError(f"tilt={tilt} must be a finite number other than 0; at 0 the tilted loss is the mean")
