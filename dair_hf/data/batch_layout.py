"""Layout of a batch: which views exist, how many targets they have, and which targets of both views align.

The host needs the layout, since it decides the shapes of a forward. Reading it from tensors on a device would make the
host wait until the device has finished its queue. The layout is therefore computed by the workers of the data loader,
when a batch is collated, and passed along with the tensors as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.collator import LABELS, LAYOUT, VIEW_MASK
from dair_hf.errors import DataError
from dair_hf.losses.divergence import align_targets
from dair_hf.losses.per_sample import IGNORE_INDEX


def view_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return the `view_mask` `[B, V]` of a batch.

    Raises:
        DataError: The batch was not made by a `PairCollator`.
    """
    mask = batch.get(VIEW_MASK)
    if mask is None:
        raise DataError(
            f"the batch has no {VIEW_MASK!r}, only {sorted(batch)}; wrap the collator: PairCollator(your_collator)"
        )
    return mask


@dataclass(frozen=True)
class BatchLayout:
    """Layout of a batch, on the host.

    Attributes:
        exists: Whether each view exists, `[B, V]` bool.
        targets: Number of targets of every view, `[B, V]` int64; 0 for absent views.
        aligned: For each row the positions of its aligned targets in both views, `[2, K]` int64; None if the
            regularizer compares no sequences.
    """

    exists: np.ndarray
    targets: np.ndarray
    aligned: list[np.ndarray] | None = None

    @property
    def paired(self) -> np.ndarray:
        """Mask of the rows with targets in both views, `[B]` bool."""
        if self.targets.shape[1] == 1:
            return np.zeros(len(self.targets), dtype=bool)
        return np.asarray((self.targets > 0).all(1))

    def __len__(self) -> int:
        return len(self.exists)

    def originals(self) -> BatchLayout:
        """Return the layout of the original views alone."""
        return BatchLayout(self.exists[:, :1], self.targets[:, :1])

    def first(self, rows: int) -> BatchLayout:
        """Return the layout in which only the first `rows` rows exist."""
        is_first = (np.arange(len(self)) < rows)[:, None]
        aligned = None
        if self.aligned is not None:
            aligned = [positions if row < rows else positions[:, :0] for row, positions in enumerate(self.aligned)]
        return BatchLayout(self.exists & is_first, self.targets * is_first, aligned)

    def counts(self, with_partners: bool) -> np.ndarray:
        """Count rows, pairs and target tokens for the objective, `[3]` int64 (`objective.Counts`).

        A row of which one view has no target is no pair: it is trained as a row without a partner.
        """
        pairs = self.paired & with_partners
        tokens = self.targets[:, 0].sum() + self.targets[pairs, 1:].sum()
        return np.array([self.exists[:, 0].sum(), pairs.sum(), tokens], dtype=np.int64)


@dataclass(frozen=True)
class TargetRule:
    """Rule by which labels are targets.

    Args:
        shifts_labels: Whether position t predicts label t + 1, so that the first label is no target.
        soft_labels: Whether labels are scores of all classes: one target, or none if they are all 0.
        aligns: Whether layouts align the targets of both views, for KL and JS of sequences.

    Example:
        >>> batch = {"labels": torch.tensor([[[5, 6], [7, -100]]]), "view_mask": torch.tensor([[True, True]])}
        >>> TargetRule().counts(batch)
        tensor([[2, 1]])
        >>> TargetRule(aligns=True).layout(batch).aligned
        [array([[0],
               [0]])]
    """

    shifts_labels: bool = False
    soft_labels: bool = False
    aligns: bool = False

    def counts(self, batch: Mapping[str, Any]) -> Tensor:
        """Count the targets of every view: the tokens of a sequence; 1 for a class, a number, or scores of classes.

        Args:
            batch: A batch of `PairCollator`.

        Returns:
            `[B, V]` int64, on the device of the batch; 0 for absent views.
        """
        mask, labels = view_mask(batch), batch.get(LABELS)
        if labels is not None and self.soft_labels:
            return (labels != 0).any(-1).long() * mask
        if labels is None or labels.is_floating_point():
            return mask.long()
        valid = self._shifted(labels) != IGNORE_INDEX
        return (valid.flatten(2).sum(-1) if labels.ndim > 2 else valid.long()) * mask

    def layout(self, batch: Mapping[str, Any]) -> BatchLayout:
        """Compute the layout of a batch; a batch on a device is copied to the host."""
        mask = view_mask(batch)
        exists, targets = torch.stack([mask.long(), self.counts(batch)]).cpu().numpy()
        layout = BatchLayout(exists.astype(bool), targets)
        labels = batch.get(LABELS)
        if not self.aligns or labels is None or labels.ndim != 3 or labels.is_floating_point():
            return layout
        return replace(layout, aligned=_align_pairs(self._shifted(labels).cpu().numpy(), layout.paired))

    def _shifted(self, labels: Tensor) -> Tensor:
        return labels[..., 1:] if labels.ndim == 3 and self.shifts_labels else labels


class LayoutCollator:
    """Adds the layout to the batches of a collator.

    Args:
        collator: Rows -> batch.
        rule: Rule by which labels are targets.
    """

    def __init__(self, collator: Callable[[Any], Any], rule: TargetRule) -> None:
        self.collator = collator
        self.rule = rule

    def __call__(self, rows: Any) -> Any:
        """Collate rows and add the layout; a batch without `view_mask` is returned as it is."""
        batch = self.collator(rows)
        return {**batch, LAYOUT: self.rule.layout(batch)} if VIEW_MASK in batch else batch


def _align_pairs(labels: np.ndarray, paired: np.ndarray) -> list[np.ndarray]:
    """Return the aligned positions in labels `[B, 2, T]`, `[2, K]` per row; none for rows that are no pair."""
    aligned = [np.zeros((2, 0), dtype=np.int64)] * len(labels)
    for row in np.flatnonzero(paired):
        positions = [np.flatnonzero(view != IGNORE_INDEX) for view in labels[row]]
        matches = align_targets(*(view[at].tolist() for view, at in zip(labels[row], positions, strict=True)))
        matched = [at[np.array(match, dtype=np.int64)] for at, match in zip(positions, matches, strict=True)]
        aligned[row] = np.stack(matched)
    return aligned
