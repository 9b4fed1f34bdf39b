"""The views of `TensorPairs`, one after the other, in batches that need no collator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.collator import AUGMENTED_PREFIX, LABELS, NO_RULES, ROW_ID, RowRules
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.evaluation.views import PairViews

CHUNK = 1024  # rows of a view that is made only to read one of its columns


class TensorViews(PairViews):
    """As `PairViews`, of `TensorPairs`.

    Args:
        pairs: Paired rows held as tensors.

    Raises:
        DataError: No rows.

    Example:
        >>> views = TensorViews(TensorPairs({"x": torch.tensor([1, 2])}, {"x": torch.tensor([5, 6])}))
        >>> views.features([1, 2])
        {'x': tensor([2, 5])}
    """

    def __init__(self, pairs: TensorPairs) -> None:
        if len(pairs) == 0:
            raise DataError("the evaluation data set is empty; check the split and the filters before it")
        self.pairs = pairs
        self._number(pairs.partner_mask)

    @property
    def column_names(self) -> list[str]:
        """Columns of the rows: those kept beside the views, then those of the views."""
        own = list(self._few(torch.zeros(1, dtype=torch.int64, device=self.pairs.device)))
        augmented = [AUGMENTED_PREFIX + name for name in own] if self.has_partner.any() else []
        return [ROW_ID, *self.pairs.columns, *own, *augmented]

    def _few(self, rows: Tensor) -> Mapping[str, Tensor]:
        return self.pairs.view(rows, augmented=False)

    def values(self, name: str) -> Any:
        """The values of one column for every row; where a row has no partner, those of an augmented column are None."""
        if name == ROW_ID:
            return self.pairs.row_ids.tolist()
        if name in self.pairs.columns:
            return self.pairs.columns[name]
        augmented = name.startswith(AUGMENTED_PREFIX)
        rows = self.has_partner.nonzero()[0] if augmented else np.arange(len(self.has_partner))
        values: list[Any] = [None] * len(self.has_partner)
        for row, value in zip(rows, self._made(rows, augmented, name.removeprefix(AUGMENTED_PREFIX)), strict=True):
            values[row] = value
        return values

    def _made(self, rows: np.ndarray, augmented: bool, name: str) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(rows), CHUNK):
            some = torch.as_tensor(rows[start : start + CHUNK], device=self.pairs.device)
            found += self.pairs.view(some, augmented)[name].tolist()
        return found

    def features(self, items: Sequence[int], rules: RowRules = NO_RULES) -> Mapping[str, Tensor]:
        """The views with these numbers as one batch, `{column: [B, ...]}`; rules of single rows are not looked at."""
        rows, variants = self.rows[np.asarray(items)], self.variants[np.asarray(items)]
        parts = []
        for variant in np.unique(variants):
            chosen = (variants == variant).nonzero()[0]
            some = torch.as_tensor(rows[chosen], device=self.pairs.device)
            parts.append((chosen, self.pairs.view(some, augmented=bool(variant))))
        if len(parts) == 1:
            return parts[0][1]
        back = torch.as_tensor(np.argsort(np.concatenate([chosen for chosen, _ in parts])), device=self.pairs.device)
        return {name: torch.cat([part[name] for _, part in parts])[back] for name in parts[0][1]}

    def originals(self) -> TensorViews:
        """The original views alone."""
        return TensorViews(self.pairs.originals())

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """All views: tensors are not searched for equal rows."""
        return np.arange(len(self)), np.arange(len(self))

    def lengths(self) -> np.ndarray:
        """`[M]` zeros: the rows of a tensor are of one length."""
        return np.zeros(len(self), dtype=np.int64)

    def target_lengths(self) -> np.ndarray:
        """`[M]` zeros: their label rows are of one length, too."""
        return np.zeros(len(self), dtype=np.int64)

    def longest_target(self) -> int:
        """Length of the label rows; 0 where labels are no sequences."""
        labels = self._few(torch.zeros(1, dtype=torch.int64, device=self.pairs.device)).get(LABELS)
        return labels.shape[1] if labels is not None and labels.ndim > 1 else 0


def views_of(pairs: Any) -> PairViews:
    """The views of paired rows, in whatever they are held.

    Args:
        pairs: `TensorPairs`, or what `PairViews` takes.

    Returns:
        Their views.
    """
    return TensorViews(pairs) if isinstance(pairs, TensorPairs) else PairViews(pairs)
