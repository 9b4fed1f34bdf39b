"""Losses of robust regression: settings, and the tilted loss of TERM.

Squared error and Huber loss are losses of a row. The tilted loss `T` aggregates a whole batch, so the regularizer can
be added in two ways, both available in `AggregatedDAIR` with `T` as its aggregate:

    per sample (paper)        f = 1/2 T(l) + 1/2 T(l~) + lambda * mean_i (sqrt(l_i + eps) - sqrt(l~_i + eps))^2
    per batch (as released)   f = 1/2 T(l) + 1/2 T(l~) + lambda * (sqrt(T(l) + eps) - sqrt(T(l~) + eps))^2

The released code uses the second form for TERM, and for Huber with the mean as `T`. In the first form the two terms
weight rows differently on purpose: `T` with a negative tilt nearly ignores outliers, while R asks every pair to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from dair_hf.settings import Positive, Range, Settings

SAMPLE_LOSSES = {"l2": "squared", "huber": "huber", "term": "squared"}


@dataclass
class RobustLossConfig(Settings):
    """Loss of a robust regression."""

    loss: Literal["l2", "huber", "term"] = field(
        default="l2",
        metadata={"help": "l2: squared error; huber: Huber loss with delta 1; term: tilted loss of squared errors."},
    )
    tilt: Annotated[float, Range(below=0)] | Positive = field(
        default=-2.0,
        metadata={"help": "Tilt t of term, not 0, in 1 / units of the loss; a negative tilt plays down outliers."},
    )
    consistency: Literal["sample", "batch"] = field(
        default="sample",
        metadata={
            "help": "R of DAIR. sample (paper): mean of R over pairs; batch (as released for huber and term): R of the "
            "aggregated losses of both views."
        },
    )

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
    exponents = tilt * losses
    largest = exponents.detach().amax()
    return (largest + torch.exp(exponents - largest).mean().log()) / tilt
