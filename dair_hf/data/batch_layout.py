"""Layout of a batch, known on the host: which views exist, how many targets they have, and which of these align.

Which rows run decides the shapes of all that follows, so the host has to know it. Reading it off a tensor on a device
would make the host wait for everything that the device still has to do. The layout is therefore computed where batches
are collated, in the workers of the data loader, and travels beside the tensors as numpy arrays.
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
    """The `view_mask` `[B, V]` of a batch.

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
    """What the host knows of a batch.

    Attributes:
        exists: Which views exist, `[B, V]` bool.
        targets: Number of targets of every view, `[B, V]` int64; 0 where the view does not exist.
        aligned: For each row, the positions of its targets that are compared, `[2, K]` int64 of both views; None where
            the regularizer compares no sequences.
    """

    exists: np.ndarray
    targets: np.ndarray
    aligned: list[np.ndarray] | None = None

    @property
    def paired(self) -> np.ndarray:
        """Rows of which both views have a target, `[B]` bool."""
        if self.targets.shape[1] == 1:
            return np.zeros(len(self.targets), dtype=bool)
        return np.asarray((self.targets > 0).all(1))

    def __len__(self) -> int:
        return len(self.exists)

    def __getitem__(self, rows: slice) -> BatchLayout:
        aligned = None if self.aligned is None else self.aligned[rows]
        return BatchLayout(self.exists[rows], self.targets[rows], aligned)

    def originals(self) -> BatchLayout:
        """The layout of the original views alone."""
        return BatchLayout(self.exists[:, :1], self.targets[:, :1])

    def first(self, rows: int) -> BatchLayout:
        """The layout in which only the first rows exist."""
        kept = (np.arange(len(self)) < rows)[:, None]
        aligned = None
        if self.aligned is not None:
            aligned = [places if row < rows else places[:, :0] for row, places in enumerate(self.aligned)]
        return BatchLayout(self.exists & kept, self.targets * kept, aligned)

    def counts(self, with_partners: bool) -> np.ndarray:
        """Rows, pairs and target tokens as the objective counts them, `[3]` int64 (`objective.Counts`).

        A view without target makes no pair: its row is trained on as if it had no partner.
        """
        pairs = self.paired & with_partners
        tokens = self.targets[:, 0].sum() + self.targets[pairs, 1:].sum()
        return np.array([self.exists[:, 0].sum(), pairs.sum(), tokens], dtype=np.int64)


@dataclass(frozen=True)
class TargetRule:
    """Rule that says what is a target among the labels of a view.

    Args:
        shifts_labels: Whether targets are the *next* input tokens, so that a first label is none.
        soft_labels: Whether labels are scores of all classes, one target unless they are all 0.
        aligns: Whether layouts say which targets of the two views are compared (KL and JS of sequences).

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
        """Number of targets of every view: tokens of a sequence, 1 for a class, a real target or scores of classes.

        Args:
            batch: A batch of `PairCollator`.

        Returns:
            `[B, V]` int64, on the device of the batch; 0 where the view does not exist or has no target.
        """
        mask, labels = view_mask(batch), batch.get(LABELS)
        if labels is not None and self.soft_labels:
            return (labels != 0).any(-1).long() * mask
        if labels is None or labels.is_floating_point():
            return mask.long()
        valid = self._shifted(labels) != IGNORE_INDEX
        return (valid.flatten(2).sum(-1) if labels.ndim > 2 else valid.long()) * mask

    def layout(self, batch: Mapping[str, Any]) -> BatchLayout:
        """The layout of a batch; on the CPU, where batches are collated, for nothing, else by one transfer or two."""
        mask = view_mask(batch)
        exists, targets = torch.stack([mask.long(), self.counts(batch)]).cpu().numpy()
        found = BatchLayout(exists.astype(bool), targets)
        labels = batch.get(LABELS)
        if not self.aligns or labels is None or labels.ndim != 3 or labels.is_floating_point():
            return found
        return replace(found, aligned=_aligned(self._shifted(labels).cpu().numpy(), found.paired))

    def _shifted(self, labels: Tensor) -> Tensor:
        return labels[..., 1:] if labels.ndim == 3 and self.shifts_labels else labels


class LayoutCollator:
    """Adds their layout to the batches of a collator.

    Args:
        collator: Rows to a batch.
        rule: What is a target.
    """

    def __init__(self, collator: Callable[[Any], Any], rule: TargetRule) -> None:
        self.collator = collator
        self.rule = rule

    def __call__(self, rows: Any) -> Any:
        """The batch of these rows with its layout; one without `view_mask` as it is."""
        batch = self.collator(rows)
        return {**batch, LAYOUT: self.rule.layout(batch)} if VIEW_MASK in batch else batch


def _aligned(labels: np.ndarray, paired: np.ndarray) -> list[np.ndarray]:
    """Positions in labels `[B, 2, T]` that are compared, `[2, K]` a row; none for rows that are no pair."""
    found = []
    for views, is_pair in zip(labels, paired, strict=True):
        if not is_pair:
            found.append(np.zeros((2, 0), dtype=np.int64))
            continue
        at = [np.flatnonzero(view != IGNORE_INDEX) for view in views]
        matched = align_targets(*(view[places].tolist() for view, places in zip(views, at, strict=True)))
        found.append(np.stack([places[match] for places, match in zip(at, map(_indices, matched), strict=True)]))
    return found


def _indices(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)
