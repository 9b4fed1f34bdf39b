"""Forward plans: division of the views of a batch into forwards of the model.

View masks are numpy arrays, since the host decides on the number of forwards and their sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dair_hf.losses.model_state import fork_rng


class Forward(NamedTuple):
    """Views that run in one forward."""

    views: np.ndarray
    replays_rng: bool = False


def joint_plan(mask: np.ndarray) -> list[Forward]:
    """Run all views in one forward."""
    return [Forward(mask)]


def separate_plan(mask: np.ndarray) -> list[Forward]:
    """Run all originals, then all first partners, all second partners, ..."""
    if mask.shape[1] == 1:
        return [Forward(mask)]
    parts = (mask & (np.arange(mask.shape[1]) == view) for view in range(mask.shape[1]))
    return [Forward(part) for part in parts if part.any()]


def shared_dropout_plan(mask: np.ndarray) -> list[Forward]:
    """Run the originals of pairs, then their partners with the same dropout masks, then rows without a partner.

    All views of a row have the same position in forwards of the same size, so that they get the same masks. Rows that
    have other partners than these run in forwards of their own.
    """
    several = mask.sum(1) > 1
    if not several.any():
        return [Forward(mask)]
    forwards: list[Forward] = []
    for views in np.unique(mask[several], axis=0):
        plan = separate_plan(mask & (mask == views).all(1, keepdims=True))
        forwards += [forward._replace(replays_rng=True) for forward in plan[:-1]] + plan[-1:]
    single = mask & ~several[:, None]
    return [*forwards, *([Forward(single)] if single.any() else [])]


def replay_rng(device: torch.device, enabled: bool) -> contextlib.AbstractContextManager[None]:
    """Restore the random state of a device on exit, so that the code after the block draws the same numbers."""
    return fork_rng(device) if enabled else contextlib.nullcontext()


def split_mask(mask: np.ndarray, pairs: int | None) -> list[np.ndarray]:
    """Split a mask `[B, V]` into masks of at most `pairs` rows each; None: one mask."""
    if pairs is None:
        return [mask]
    number = mask.any(1).cumsum()  # 1 for the first row with a view, ...
    starts = range(0, int(number[-1]), pairs)
    return [mask & ((number > start) & (number <= start + pairs))[:, None] for start in starts]


def checkpointed(run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return `run()` without its activations; the backward pass recomputes them with the same dropout masks."""
    if not torch.is_grad_enabled():
        return run()
    outputs: tuple[Tensor, ...] = checkpoint(run, use_reentrant=False)
    return outputs
