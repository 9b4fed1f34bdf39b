"""Learning rates that drop by a factor at given epochs, or that are halved every so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from dair_hf.errors import DataError

DROP = 0.1


def drop_factor(step: int, drop_steps: Sequence[int]) -> float:
    """Factor of the learning rate after `step` optimizer steps: 0.1 to the number of drops behind it.

    Example:
        >>> [round(drop_factor(step, [2, 4]), 4) for step in range(6)]
        [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """
    return DROP ** sum(step >= drop for drop in drop_steps)


def epoch_drops(
    optimizer: torch.optim.Optimizer, lr_drop_epochs: Sequence[float], epochs: float, steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """A schedule that multiplies the learning rate by 0.1 at the end of each of these epochs.

    Args:
        optimizer: What is scheduled.
        lr_drop_epochs: Numbers of epochs, each between 0 and `epochs`.
        epochs: Number of epochs of the whole run.
        steps: Optimizer steps of the whole run.

    Returns:
        The schedule.

    Raises:
        DataError: A drop that the run never reaches.
    """
    if late := [epoch for epoch in lr_drop_epochs if epoch >= epochs]:
        raise DataError(f"lr_drop_epochs={list(lr_drop_epochs)}: the run ends at epoch {epochs:g}, before {late[0]:g}")
    drop_steps = [round(epoch * steps / epochs) for epoch in lr_drop_epochs]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(drop_factor, drop_steps=drop_steps))


def half_life_factor(step: int, half_life_steps: int) -> float:
    """Factor of the learning rate after `step` optimizer steps, `0.5 ** (step / half_life_steps)`.

    Example:
        >>> [round(half_life_factor(step, 2), 4) for step in range(5)]
        [1.0, 0.7071, 0.5, 0.3536, 0.25]
    """
    return 0.5 ** (step / half_life_steps)


def half_life(optimizer: torch.optim.Optimizer, half_life_steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """A schedule whose learning rate decays exponentially, a little with each step.

    Args:
        optimizer: What is scheduled.
        half_life_steps: Optimizer steps in which the learning rate is halved, >= 1.

    Returns:
        The schedule.
    """
    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(half_life_factor, half_life_steps=half_life_steps))
