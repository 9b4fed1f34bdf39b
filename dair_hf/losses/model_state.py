"""State of a model and of the random numbers that a forward beside training must not change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


def fork_rng(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context that restores the random state of the CPU and of `device` on exit."""
    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices, device_type=device.type)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put a model into evaluation mode; on exit, the mode of each module and the random state are as before.

    Example:
        >>> model = nn.Dropout(0.5)
        >>> with evaluation_mode(model, torch.device("cpu")):
        ...     print(model.training)
        False
        >>> model.training
        True
    """
    # Sets the flags directly, since `train()` and `eval()` of a module may have side effects.
    training = [module for module in model.modules() if module.training]
    with fork_rng(device):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True
