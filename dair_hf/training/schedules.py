"""Learning rate schedules: drops by a factor at given epochs, and exponential decay by a half-life."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

DROP = 0.1


def drop_factor(step: int, drop_steps: Sequence[int]) -> float:
    """Return the factor of the learning rate after `step` optimizer steps: 0.1 to the power of past drops."""
    return DROP ** sum(step >= drop for drop in drop_steps)


def epoch_drops(
    optimizer: torch.optim.Optimizer, lr_drop_epochs: Sequence[float], epoch_steps: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule that multiplies the learning rate by 0.1 after each of some epochs."""
    drop_steps = [round(epoch * epoch_steps) for epoch in lr_drop_epochs]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(drop_factor, drop_steps=drop_steps))


def half_life_factor(step: int, half_life_steps: int) -> float:
    """Return the factor of the learning rate after `step` optimizer steps, `0.5 ** (step / half_life_steps)`."""
    return 0.5 ** (step / half_life_steps)


def half_life(optimizer: torch.optim.Optimizer, half_life_steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule of exponential decay.

    Args:
        optimizer: The optimizer.
        half_life_steps: Number of optimizer steps that halve the learning rate, >= 1.
    """
    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(half_life_factor, half_life_steps=half_life_steps))
