"""Plans of forwards: all views of a batch in one, one a view, or a few pairs at a time.

Masks of views are numpy arrays: how many forwards there are, and of how many rows, is decided on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Forward(NamedTuple):
    """Views that run together.

    Attributes:
        views: Which, `[B, V]` bool.
        lends_masks: Whether the forward after it draws the same random numbers (dropout masks) once more.
    """

    views: np.ndarray
    lends_masks: bool = False


def joint_forward(mask: np.ndarray) -> list[Forward]:
    """All views in one forward.

    Example:
        >>> [forward.views.tolist() for forward in joint_forward(np.array([[True, True], [True, False]]))]
        [[[True, True], [True, False]]]
    """
    return [Forward(mask)]


def forward_a_view(mask: np.ndarray) -> list[Forward]:
    """All originals, then all augmented views.

    Example:
        >>> [forward.views.tolist() for forward in forward_a_view(np.array([[True, True], [True, False]]))]
        [[[True, False], [True, False]], [[False, True], [False, False]]]
    """
    if mask.shape[1] == 1:
        return [Forward(mask)]
    return [Forward(part) for part in (mask & [True, False], mask & [False, True]) if part.any()]


def forwards_with_the_same_masks(mask: np.ndarray) -> list[Forward]:
    """Originals of the pairs, then their partners with the same dropout masks, then the rows without partner.

    Masks are the same where shapes are: a pair's views stand in the same place of equally large forwards.

    Example:
        >>> found = forwards_with_the_same_masks(np.array([[True, True], [True, False]]))
        >>> [(forward.views.tolist(), forward.lends_masks) for forward in found]  # doctest: +NORMALIZE_WHITESPACE
        [([[True, False], [False, False]], True), ([[False, True], [False, False]], False),
         ([[False, False], [True, False]], False)]
    """
    paired = mask.all(1, keepdims=True) & (mask.shape[1] == 2)
    if not paired.any():
        return [Forward(mask)]
    original, augmented = forward_a_view(mask & paired)
    alone = mask & ~paired
    return [original._replace(lends_masks=True), augmented, *([Forward(alone)] if alone.any() else [])]


@contextlib.contextmanager
def lent_masks(device: torch.device, lends: bool) -> Iterator[None]:
    """With `lends`, random numbers that are drawn inside are drawn once more by what follows on this device."""
    if not lends:
        yield
        return
    devices = [] if device.type == "cpu" else [device]
    kind = "cuda" if device.type == "cpu" else device.type  # of `devices`; of an empty list it does not matter
    with torch.random.fork_rng(devices, device_type=kind):
        yield


def split_pairs(batch: Mapping[str, Any], pairs: int | None) -> list[dict[str, Any]]:
    """A batch as several of at most `pairs` rows each, partners with their originals.

    Args:
        batch: A batch of `PairCollator`: entries `[B, V, ...]`, or anything else with one value a row.
        pairs: Rows of a part, at least 1; None: all.

    Returns:
        The parts, in order; no copies of tensors.

    Example:
        >>> [part["x"].tolist() for part in split_pairs({"x": torch.tensor([[1, 2], [3, 4], [5, 6]])}, 2)]
        [[[1, 2], [3, 4]], [[5, 6]]]
    """
    rows = len(next(value for value in batch.values() if isinstance(value, Tensor)))
    size = rows if pairs is None else pairs
    return [
        {name: v[start : start + size] if _has_rows(v, rows) else v for name, v in batch.items()}
        for start in range(0, rows, max(size, 1))
    ] or [dict(batch)]


def _has_rows(values: Any, rows: int) -> bool:
    """Whether there is one value a row, in a tensor, a list, an array or a layout."""
    if isinstance(values, (str, Mapping)) or getattr(values, "ndim", 1) == 0:
        return False
    return hasattr(values, "__len__") and hasattr(values, "__getitem__") and len(values) == rows


def split_mask(mask: np.ndarray, pairs: int | None) -> list[np.ndarray]:
    """A mask `[B, V]` as several, each with the views of at most `pairs` rows; None: all in one.

    Example:
        >>> mask = np.array([[True, True], [False, False], [True, False], [True, True]])
        >>> [part.any(1).tolist() for part in split_mask(mask, 2)]
        [[True, False, True, False], [False, False, False, True]]
    """
    if pairs is None:
        return [mask]
    number = mask.any(1).cumsum()  # 1 for the first row that takes part, ...
    starts = range(0, int(number[-1]), pairs)
    return [mask & ((number > start) & (number <= start + pairs))[:, None] for start in starts]


def without_activations(run: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
    """`run(*args)`, its activations thrown away and computed once more, with the same dropout masks, going backward."""
    if not torch.is_grad_enabled():
        return run(*args)
    found: tuple[Tensor, ...] = checkpoint(run, *args, use_reentrant=False)
    return found


@contextlib.contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluation mode inside; modes and random numbers are afterwards as they were."""
    modes = [(module, module.training) for module in model.modules()]
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
