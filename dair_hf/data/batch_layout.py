"""Layout of a batch: which views exist, how many targets they have, and which targets of a pair align.

The host needs the layout, since it decides the shapes of a forward. Reading it from tensors on a device would make the
host wait until the device has finished its queue. The layout is therefore computed by the workers of the data loader,
when a batch is collated, and passed along with the tensors as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.collator import LABELS, LAYOUT, VIEW_MASK
from dair_hf.losses.divergence import align_targets
from dair_hf.losses.per_sample import IGNORE_INDEX

Mask = TypeVar("Mask", np.ndarray, Tensor)


def view_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return the `view_mask` `[B, V]` of a batch of `PairCollator`."""
    mask: Tensor = batch[VIEW_MASK]
    return mask


@dataclass(frozen=True)
class BatchLayout:
    """Layout of a batch, on the host."""

    exists: np.ndarray
    """Mask of the views that exist, `[B, V]` bool."""
    targets: np.ndarray
    """Number of targets of every view, `[B, V]` int64; 0 for absent views."""
    aligned: np.ndarray | None = None
    """Aligned targets of originals and partners, `[4, K]` int64: row, view of the partner, position in the original,
    position in the partner; sorted by row, then by view. None if the regularizer does not compare sequences."""
    predicted: np.ndarray | None = None
    """Targets of a decoder-only model, `[3, M]` int64: row, view, and position of the logits that predict it; sorted.
    None for other losses."""
    ends_in_padding: bool = False
    """True if padding only follows the tokens of each view, so that causal attention never reaches it."""

    @property
    def partners(self) -> np.ndarray:
        """Mask of the partners that are trained with their original, `[B, V - 1]` bool: both have targets."""
        return trained_partners(self.targets)

    @property
    def paired(self) -> np.ndarray:
        """Mask of the rows with such a partner, `[B]` bool."""
        return np.asarray(self.partners.any(1))

    def __len__(self) -> int:
        return len(self.exists)

    def originals(self) -> BatchLayout:
        """Return the layout of the original views alone."""
        predicted = None if self.predicted is None else self.predicted[:, self.predicted[1] == 0]
        return BatchLayout(self.exists[:, :1], self.targets[:, :1], None, predicted, self.ends_in_padding)

    def first(self, rows: int) -> BatchLayout:
        """Return the layout in which only the first `rows` rows exist."""
        is_first = (np.arange(len(self)) < rows)[:, None]
        aligned = None if self.aligned is None else self.aligned[:, self.aligned[0] < rows]
        return replace(self, exists=self.exists & is_first, targets=self.targets * is_first, aligned=aligned)

    def counts(self, with_partners: bool) -> np.ndarray:
        """Count rows, pairs and target tokens for the objective, `[3]` int64 (`objective.Counts`).

        A partner without a target, or whose original has none, does not count: the row is trained without it.
        """
        pairs = self.paired & with_partners
        tokens = self.targets[:, 0].sum() + self.targets[pairs, 1:].sum()
        return np.array([self.exists[:, 0].sum(), pairs.sum(), tokens], dtype=np.int64)


def trained_partners(targets: Mask) -> Mask:
    """Return which partners have a target, like their original, `[B, V - 1]`, from numbers of targets `[B, V]`."""
    return (targets[:, 1:] > 0) & (targets[:, :1] > 0)


@dataclass(frozen=True)
class TargetRule:
    """Rule by which labels are targets."""

    shifts_labels: bool = False  # position t predicts label t + 1: the first token of a row is not a target
    soft_labels: bool = False  # labels are scores of all classes: one target, or none if they are all 0
    aligns: bool = False  # layouts align the targets of originals and partners, for KL and JS of sequences

    def counts(self, batch: Mapping[str, Any]) -> Tensor:
        """Count the targets of every view, `[B, V]`: tokens of a sequence; 1 for a class, a number, or scores."""
        mask, labels = view_mask(batch), self.labels(batch)
        if labels is not None and self.soft_labels:
            return (labels != 0).any(-1).long() * mask
        if labels is None or labels.is_floating_point():
            return mask.long()
        valid = labels != IGNORE_INDEX
        return (valid.flatten(2).sum(-1) if labels.ndim > 2 else valid.long()) * mask

    def labels(self, batch: Mapping[str, Any]) -> Any:
        """Return the labels of a batch; shifted ones are -100 at the first token of a row, which has no context."""
        labels, tokens = batch.get(LABELS), batch.get("attention_mask")
        if labels is None or labels.ndim != 3 or not self.shifts_labels:
            return labels
        tokens = torch.ones_like(labels) if tokens is None or tokens.shape != labels.shape else tokens.long()
        return labels.masked_fill(tokens.cumsum(-1) == tokens, IGNORE_INDEX)

    def layout(self, batch: Mapping[str, Any]) -> BatchLayout:
        """Compute the layout of a batch; a batch on a device is copied to the host."""
        mask, labels = view_mask(batch), self.labels(batch)
        exists, targets = torch.stack([mask.long(), self.counts(batch)]).cpu().numpy()
        layout = BatchLayout(exists.astype(bool), targets)
        if labels is None or labels.ndim != 3 or labels.is_floating_point():
            return layout
        of_logits = labels[..., int(self.shifts_labels) :].cpu().numpy()  # label that each position predicts
        tokens = batch.get("attention_mask")
        return replace(
            layout,
            aligned=_align_pairs(of_logits, layout.partners) if self.aligns else None,
            predicted=np.stack(np.nonzero(of_logits != IGNORE_INDEX)) if self.shifts_labels else None,
            ends_in_padding=(
                tokens is not None and tokens.shape == labels.shape and bool((tokens.long().diff() <= 0).all())
            ),
        )


class LayoutCollator:
    """Adds the layout to the batches of a collator."""

    def __init__(self, collator: Callable[[Any], Any], rule: TargetRule) -> None:
        self.collator = collator
        self.rule = rule

    def __call__(self, rows: Any) -> Any:
        """Collate rows and add the layout."""
        batch = self.collator(rows)
        return {**batch, LAYOUT: self.rule.layout(batch)}


def _align_pairs(labels: np.ndarray, partners: np.ndarray) -> np.ndarray:
    """Return the aligned targets of labels `[B, V, T]` and the trained partners `[B, V - 1]`, `[4, K]`."""
    aligned = [np.zeros((4, 0), dtype=np.int64)]
    for row, partner in np.argwhere(partners).tolist():
        pair = labels[row, [0, partner + 1]]
        positions = [np.flatnonzero(view != IGNORE_INDEX) for view in pair]
        matches = align_targets(*(view[at].tolist() for view, at in zip(pair, positions, strict=True)))
        matched = [at[np.array(match, dtype=np.int64)] for at, match in zip(positions, matches, strict=True)]
        aligned.append(np.stack([np.full(len(matched[0]), row), np.full(len(matched[0]), partner + 1), *matched]))
    return np.concatenate(aligned, axis=1)
