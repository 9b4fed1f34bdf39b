"""Losses of the pairs during training, kept for the ranking of a pair report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad
from transformers import TrainerCallback

from dair_hf.io.processes import gather_results

MAX_ROWS = 2_000_000  # rows of a process that are tracked, about 150 bytes each; further rows of a stream are not
MAX_HELD = 4096  # batches `[2, B, P]` on the device, half a kilobyte each, before they are copied to the host


class PairHistory(TrainerCallback):
    """Sums of `sqrt(l) - sqrt(l~)` of every row and partner over the steps of the last call of `train`."""

    def __init__(self) -> None:
        self._number_of: dict[Any, int] = {}
        self._sums = np.zeros((2, 0, 0))  # of root differences and of steps, by number of the row and partner
        self._held: list[tuple[Sequence[Any], Tensor]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget an earlier run."""
        self.__init__()  # type: ignore[misc]

    def add(self, row_ids: Sequence[Any] | None, losses: Tensor, counted: Tensor) -> None:
        """Add the losses of a batch."""
        if row_ids is None:
            return
        with torch.no_grad():
            roots = losses.detach().clamp(min=0).sqrt()
            difference = roots[:, :1] - roots[:, 1:]
            self._held.append((row_ids, torch.stack([difference * counted, counted.to(difference.dtype)]).float()))
        if len(self._held) >= MAX_HELD:
            self._fold()

    def _fold(self) -> None:
        held, self._held = self._held, []
        if not held:
            return
        width = max(self._sums.shape[2], *(values.shape[2] for _, values in held))
        padded = [pad(values, (0, width - values.shape[2])) for _, values in held]
        values = torch.cat(padded, dim=1).cpu().double().numpy()
        known = self._number_of
        rows = (row_id for row_ids, _ in held for row_id in row_ids)
        numbers = np.array(
            [known.setdefault(r, len(known)) if len(known) < MAX_ROWS else known.get(r, -1) for r in rows]
        )
        self._sums = _extended(self._sums, len(known), width)
        for sums, added in zip(self._sums, values, strict=True):
            np.add.at(sums, numbers[numbers >= 0], added[numbers >= 0])

    def sums(self, row_ids: Sequence[Any], partners: ArrayLike = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return sums over the training steps of all ranks. Every process must call this method."""
        self._fold()
        numbers = np.array([self._number_of.get(row_id, -1) for row_id in row_ids], dtype=np.int64)
        at = np.broadcast_to(np.asarray(partners), numbers.shape) - 1
        known = _extended(self._sums, self._sums.shape[1] + 1, int(at.max(initial=0)) + 1)  # -1 reads a zero
        total = np.sum(gather_results(lambda: known[:, numbers, at]), axis=0)
        return total[0], total[1]


def _extended(sums: np.ndarray, rows: int, partners: int) -> np.ndarray:
    """Return sums `[2, N, P]` with zeros up to a number of rows and of partners."""
    missing = [(0, max(0, wanted - size)) for wanted, size in zip((rows, partners), sums.shape[1:], strict=True)]
    return np.pad(sums, [(0, 0), *missing]) if any(count for _, count in missing) else sums
