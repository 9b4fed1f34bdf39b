"""Plan of forwards: division of the views of a batch into forwards of the model.

View masks are numpy arrays, since the host decides on the number of forwards and their sizes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dair_hf.config import DAIRConfig


class _Forward(NamedTuple):
    """Views that run in one forward."""

    views: np.ndarray
    replays_rng: bool = False


def plan_forwards(views: np.ndarray, args: DAIRConfig, is_training: bool) -> list[_Forward]:
    """Divide views `[B, V]` into forwards: all in one, unless a setting asks for several."""
    separates = args.forward_mode == "separate"
    shares = is_training and args.pair_dropout == "shared"
    parts = _parts(views, args.gradient_cache) if is_training and args.gradient_cache else [views]
    if shares:
        return [forward for part in parts for forward in _shared_dropout_plan(part)]
    return [_Forward(view) for part in parts for view in (_separate(part) if separates else [part])]


def _parts(views: np.ndarray, pairs: int) -> list[np.ndarray]:
    """Split a mask `[B, V]` into masks of at most `pairs` rows each."""
    number = views.any(1).cumsum()  # 1 for the first row with a view, ...
    starts = range(0, int(number[-1]), pairs)
    return [views & ((number > start) & (number <= start + pairs))[:, None] for start in starts]


def _separate(views: np.ndarray) -> list[np.ndarray]:
    """Split a mask `[B, V]` into all originals, all first partners, all second partners, ..."""
    if views.shape[1] == 1:
        return [views]
    parts = (views & (np.arange(views.shape[1]) == view) for view in range(views.shape[1]))
    return [part for part in parts if part.any()]


def _shared_dropout_plan(views: np.ndarray) -> list[_Forward]:
    """Run the originals of pairs, then their partners with the same dropout masks, then rows without a partner.

    All views of a row have the same position in forwards of the same size, so that they get the same masks. Rows that
    have other partners than these run in forwards of their own.
    """
    several = views.sum(1) > 1
    if not several.any():
        return [_Forward(views)]
    forwards: list[_Forward] = []
    for partners in np.unique(views[several], axis=0):
        *first, last = _separate(views & (views == partners).all(1, keepdims=True))
        forwards += [*(_Forward(part, replays_rng=True) for part in first), _Forward(last)]
    single = views & ~several[:, None]
    return [*forwards, *([_Forward(single)] if single.any() else [])]
