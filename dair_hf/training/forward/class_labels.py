"""Labels of classifiers and language models, checked against the logits before torch fails on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.batch_layout import BatchLayout
from dair_hf.data.collator import LABELS
from dair_hf.data.view_columns import view_prefix
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX, causal_nll, cross_entropy, seq2seq_nll

NUMBERED_LOSSES = (cross_entropy, seq2seq_nll, causal_nll)  # whose labels are numbers of classes or tokens


def require_class_labels(
    layout: BatchLayout, views: np.ndarray, row_ids: Sequence[Any] | None, logits: Tensor, labels: Tensor
) -> None:
    """Refuse labels from which a loss of classes cannot be computed. The host does not wait for a device."""
    if labels.is_floating_point() and labels.shape == logits.shape:
        return  # probabilities of classes, which torch takes
    rows, numbers = np.nonzero(views)

    def where(view: int) -> str:
        row = rows[view]
        name = f"row {row} of the batch" if row_ids is None else f"row {row_ids[row]!r}"
        return f"{name}: {view_prefix(numbers[view])}{LABELS}"

    if labels.dtype not in (torch.int64, torch.uint8):  # those that torch takes
        dtype = str(labels.dtype).removeprefix("torch.")
        raise DataError(
            f"{where(0)} is of type {dtype}, but this sample loss takes the number of a class as int64; convert the "
            "labels, such as labels.long(), or set another sample_loss"
        )
    if labels.shape != logits.shape[:-1]:
        raise DataError(
            f"{where(0)} has the shape {list(labels.shape[1:])}, but the logits {list(logits.shape[1:])}, so labels "
            f"must have the shape {list(logits.shape[1:-1])}; give "
            + ("one number per row, such as labels.squeeze(-1)" if logits.ndim == 2 else "one number per position")
        )
    if layout.label_range is None or layout.label_range.shape[1:] != views.shape:
        return
    classes = logits.shape[-1]
    low, high = layout.label_range[:, views]
    for view in np.flatnonzero((low < 0) | (high >= classes))[:1].tolist():
        raise DataError(
            f"{where(view)} holds {low[view] if low[view] < 0 else high[view]}, but the model has {classes} classes: "
            f"labels are 0 to {classes - 1}, and {IGNORE_INDEX} for no target; check the labels, and num_labels of the "
            "model"
        )
