"""Which loss a robust regression is trained with, and how its regularizer is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.regression.losses import tilted_loss

SAMPLE_LOSSES = {"l2": "squared", "huber": "huber", "term": "squared"}
CONSISTENCIES = ("sample", "batch")


@dataclass
class RobustLossConfig:
    """The loss of a robust regression.

    Raises:
        DataError: An unknown choice, or a tilt of 0.

    Example:
        >>> RobustLossConfig(loss="huber").sample_loss
        'huber'
    """

    loss: str = field(
        default="l2",
        metadata={
            "help": "l2: squared error; huber: Huber's loss with delta 1; term: squared errors aggregated by the "
            "tilted loss.",
            "choices": tuple(SAMPLE_LOSSES),
        },
    )
    tilt: float = field(
        default=-2.0,
        metadata={"help": "Tilt t of term, not 0, in 1 / units of the loss; negative plays outliers down."},
    )
    consistency: str = field(
        default="sample",
        metadata={
            "help": "R of DAIR. sample, as the paper says: the mean of R over pairs; batch, as released for huber and "
            "term: R of the two views' aggregated losses.",
            "choices": CONSISTENCIES,
        },
    )

    def __post_init__(self) -> None:
        for name, choices in (("loss", SAMPLE_LOSSES), ("consistency", CONSISTENCIES)):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        if self.tilt == 0 or not abs(self.tilt) < float("inf"):
            raise DataError(f"tilt={self.tilt} must be a finite number other than 0; at 0 the tilted loss is the mean")

    @property
    def sample_loss(self) -> str:
        """The trainer's name of the loss of a row."""
        return SAMPLE_LOSSES[self.loss]

    @property
    def aggregate(self) -> Callable[[Tensor], Tensor] | None:
        """What aggregates the losses of a batch; None where the trainer's own objective does, by their mean."""
        if self.loss == "term":
            return partial(tilted_loss, tilt=self.tilt)
        return torch.mean if self.consistency == "batch" else None
