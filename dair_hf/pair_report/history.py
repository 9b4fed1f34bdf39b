"""Losses of the pairs during training, kept for the ranking of a pair report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from dair_hf.io.processes import gather_results

MAX_ROWS = 2_000_000  # rows of a process that are tracked, about 150 bytes each; further rows of a stream are not
MAX_HELD = 4096  # batches on the device, half a kilobyte each, before they are copied to the host


class PairHistory(TrainerCallback):
    """Sums of `sqrt(l) - sqrt(l~)` of every row over the training steps that saw it.

    A fault that the model has memorized no longer shows in the losses of the trained model, but in those on the way. A
    batch adds a tensor `[2, B]` on the device, without waiting for it; thousands are copied to the host at once.

    The history is that of the last call of `train`. It is not part of checkpoints: after a resume it begins anew.

    Example:
        >>> history = PairHistory()
        >>> for original, augmented in ((4.0, 1.0), (0.0, 9.0)):
        ...     history.add(["a/0"], torch.tensor([original]), torch.tensor([augmented]), torch.tensor([True]))
        >>> history.sums(["a/0", "a/1"])
        (array([-2.,  0.]), array([2., 0.]))
    """

    def __init__(self) -> None:
        self._number_of: dict[Any, int] = {}
        self._sums = np.zeros((2, 0))
        self._held: list[tuple[Sequence[Any], Tensor]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget an earlier run."""
        self.__init__()  # type: ignore[misc]

    def add(self, row_ids: Sequence[Any] | None, original: Tensor, augmented: Tensor, counted: Tensor) -> None:
        """Add the losses of a batch.

        Args:
            row_ids: Names of the rows; None: unknown, so that nothing is added.
            original: Losses of the original views, `[B]`, nats per row.
            augmented: Losses of the augmented views, `[B]`.
            counted: Whether both views of a row were run, `[B]` bool.
        """
        if row_ids is None:
            return
        with torch.no_grad():
            difference = original.detach().clamp(min=0).sqrt() - augmented.detach().clamp(min=0).sqrt()
            self._held.append((row_ids, torch.stack([difference * counted, counted.to(difference.dtype)]).float()))
        if len(self._held) >= MAX_HELD:
            self._fold()

    def _fold(self) -> None:
        held, self._held = self._held, []
        if not held:
            return
        values = torch.cat([values for _, values in held], dim=1).cpu().double().numpy()
        known = self._number_of
        rows = (row_id for row_ids, _ in held for row_id in row_ids)
        numbers = np.array(
            [known.setdefault(r, len(known)) if len(known) < MAX_ROWS else known.get(r, -1) for r in rows]
        )
        if (missing := len(known) - self._sums.shape[1]) > 0:
            self._sums = np.pad(self._sums, ((0, 0), (0, missing)))
        for sums, added in zip(self._sums, values, strict=True):
            np.add.at(sums, numbers[numbers >= 0], added[numbers >= 0])

    def sums(self, row_ids: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return sums over the training steps of all ranks. Every process must call this method.

        Args:
            row_ids: Names of N rows.

        Returns:
            Sums of `sqrt(l) - sqrt(l~)` and numbers of steps that saw both views, `[N]` each; 0 for unknown rows.
        """
        self._fold()
        numbers = np.array([self._number_of.get(row_id, -1) for row_id in row_ids], dtype=np.int64)
        padded = np.pad(self._sums, ((0, 0), (0, 1)))  # -1 reads a zero
        total = np.sum(gather_results(lambda: padded[:, numbers]), axis=0)
        return total[0], total[1]
