"""From rows with an optional partner to batches in which dimension 0 counts pairs and dimension 1 the views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.sample_losses import IGNORE_INDEX

AUGMENTED_PREFIX = "augmented_"
ROW_ID = "row_id"
LABELS = "labels"
LABEL_COLUMNS = (LABELS, "label_ids", "label")  # collators of transformers make `labels` of each
FILLER = "is_filler"  # marks a row that only keeps ranks even and counts nothing
VIEW_MASK = "view_mask"
LAYOUT = "layout"  # what the host knows of a batch (`batch_layout.BatchLayout`)
ASYNCHRONOUS = ("cuda", "xpu")  # devices that copy from and to the host's memory while the host goes on


def on_device(values: np.ndarray, device: torch.device) -> Tensor:
    """A host array on a device; the host does not wait for the copy where the device can do without."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=device.type in ASYNCHRONOUS)


def split_views(feature: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The original view of a row and its augmented view, both under the model's own column names.

    Args:
        feature: One row: the model's columns, the same with the prefix `augmented_`, optionally `row_id`.

    Returns:
        `(original, augmented)`; augmented is None where all its columns are None or absent.

    Raises:
        DataError: The augmented view has other columns than the original, or is there only in part.

    Example:
        >>> split_views({"row_id": "a/0", "input_ids": [5], "augmented_input_ids": [6]})
        ({'input_ids': [5]}, {'input_ids': [6]})
    """
    original: dict[str, Any] = {}
    augmented: dict[str, Any] = {}
    for name, value in feature.items():
        if name.startswith(AUGMENTED_PREFIX):
            augmented[name.removeprefix(AUGMENTED_PREFIX)] = value
        elif name not in (ROW_ID, FILLER):
            original[name] = value
    present = [name for name, value in augmented.items() if value is not None]
    if not present:
        return original, None
    where = f"row {feature.get(ROW_ID, '(no row_id)')!r}"
    if unknown := sorted(set(augmented) - set(original)):
        raise DataError(
            f"{where}: the augmented view has columns the original has not: {unknown}; "
            f"a partner carries the original's columns {sorted(original)} with the prefix '{AUGMENTED_PREFIX}'"
        )
    if missing := sorted(set(original) - set(present)):
        raise DataError(
            f"{where}: the augmented view lacks {missing}; give all of {sorted(original)} with the prefix "
            f"'{AUGMENTED_PREFIX}', or None in all of them where there is no partner"
        )
    return original, augmented


class PairCollator:
    """Collates pairs with any task's own collator.

    The existing views of a batch are collated together by `base_collator` (so both views are padded to one length) and
    laid out as `[B, V, ...]`: V is 2 if any row has a partner, else 1. `view_mask` `[B, V]` says which views exist;
    the places of absent views hold 0 (-100 in the labels) and are never run.

    Args:
        base_collator: What collates single views: a list of `{column: value}` to `{column: tensor [N, ...]}`. Columns
            that it reads and the model does not know are kept if it lists them in an attribute `columns`.

    Raises:
        DataError: A partner with other columns than its original, or a base collator that returns something else than
            tensors with one entry a view.

    Example:
        >>> from transformers import default_data_collator
        >>> batch = PairCollator(default_data_collator)([
        ...     {"row_id": "a/0", "x": [1.0, 2.0], "labels": 3, "augmented_x": [4.0, 5.0], "augmented_labels": 6},
        ...     {"row_id": "a/1", "x": [7.0, 8.0], "labels": 9, "augmented_x": None, "augmented_labels": None},
        ... ])
        >>> batch["x"]
        tensor([[[1., 2.],
                 [4., 5.]],
        <BLANKLINE>
                [[7., 8.],
                 [0., 0.]]])
        >>> batch["labels"]
        tensor([[   3,    6],
                [   9, -100]])
        >>> batch["view_mask"]
        tensor([[ True,  True],
                [ True, False]])
        >>> batch["row_id"]
        ['a/0', 'a/1']
    """

    def __init__(self, base_collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]]) -> None:
        self.base_collator = base_collator

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate rows; see the class."""
        views: list[dict[str, Any]] = []
        exists: list[list[bool]] = []
        for feature in features:
            original, augmented = split_views(feature)
            views.append(original)
            if augmented is not None:
                views.append(augmented)
            exists.append([True, augmented is not None])
        view_mask = torch.tensor(exists)
        if not view_mask[:, 1].any():
            view_mask = view_mask[:, :1]
        batch: dict[str, Any] = {
            name: self._lay_out(name, values, view_mask, len(views))
            for name, values in self.base_collator(views).items()
        }
        # A filler is collated, so that a batch of nothing else still has something to run, and then does not exist.
        is_filler = torch.tensor([bool(feature.get(FILLER)) for feature in features])
        batch[VIEW_MASK] = view_mask & ~is_filler[:, None]
        if ROW_ID in features[0]:
            batch[ROW_ID] = [feature[ROW_ID] for feature in features]
        return batch

    def _lay_out(self, name: str, values: Any, view_mask: Tensor, count: int) -> Tensor:
        if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != count:
            found = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise DataError(
                f"{type(self.base_collator).__name__}: column {name!r} came back as {found}; the base collator must "
                f"return tensors with one entry for each of the {count} views of the batch"
            )
        if bool(view_mask.all()):
            return values.reshape(*view_mask.shape, *values.shape[1:])
        laid_out = values.new_full((*view_mask.shape, *values.shape[1:]), absent_value(name, values))
        laid_out[view_mask] = values
        return laid_out


def collate_unless_ready(
    collator: Callable[[list[Any]], dict[str, Any]], rows: list[Any] | dict[str, Any]
) -> dict[str, Any]:
    """A batch: `rows` themselves where their data set laid them out as one already (`TensorPairs`)."""
    return rows if isinstance(rows, dict) else collator(rows)


def absent_value(name: str, values: Tensor) -> int:
    """What the places of absent views hold in a column: -100 in integer labels, else 0."""
    return IGNORE_INDEX if name.startswith("label") and not values.is_floating_point() else 0


def add_partners(
    batch: Mapping[str, Any], augmented: Mapping[str, Tensor], has_partner: Tensor | None = None
) -> dict[str, Any]:
    """A batch with partners that were made just now; what an online augmenter returns.

    Args:
        batch: `{column: [B, V, ...]}` with its `view_mask`; partners that it holds are replaced.
        augmented: Columns in which partners differ from their originals, `[B, ...]` each.
        has_partner: `[B]` bool, which rows get one; None: every row that exists.

    Returns:
        The batch with V = 2.

    Raises:
        DataError: A column that the batch lacks, or partners of another shape than their originals.

    Example:
        >>> batch = {"x": torch.tensor([[1.0], [2.0]]), "view_mask": torch.tensor([[True], [True]])}
        >>> add_partners(batch, {"x": torch.tensor([5.0, 6.0])})["x"]
        tensor([[1., 5.],
                [2., 6.]])
    """
    if unknown := sorted(set(augmented) - set(batch)):
        raise DataError(f"partners have the columns {unknown}, which the batch lacks; it has {sorted(batch)}")
    paired = {name: values for name, values in batch.items() if name != LAYOUT}  # that was of the partners before
    for name, values in batch.items():
        if not isinstance(values, Tensor) or name == VIEW_MASK:
            continue
        original, partner = values[:, 0], augmented.get(name, values[:, 0])
        if partner.shape != original.shape:
            raise DataError(
                f"partners: {name!r} has shape {list(partner.shape)}, the originals' {list(original.shape)}; an "
                "augmenter makes one partner a row, of the shape of its original"
            )
        paired[name] = torch.stack([original, partner.to(original.dtype)], dim=1)
    exists = batch[VIEW_MASK][:, 0]
    paired[VIEW_MASK] = torch.stack([exists, exists if has_partner is None else exists & has_partner], dim=1)
    return paired


def filled_positions(batch: Mapping[str, Any], view_mask: Tensor) -> Tensor | None:
    """Input tokens of views and the positions they are padded to, `[2]` int64; None without an attention mask.

    Args:
        batch: `{column: [B, V, ...]}`.
        view_mask: Which views, `[B, V]` bool; as many or fewer than those of the batch.

    Example:
        >>> filled_positions({"attention_mask": torch.tensor([[[1, 1]], [[1, 0]]])}, torch.tensor([[True], [True]]))
        tensor([3, 4])
    """
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 3:
        return None
    tokens = (mask[:, : view_mask.shape[1]] * view_mask[..., None]).sum()
    return torch.stack([tokens, (view_mask.sum() * mask.shape[2]).to(tokens.dtype)])


def flatten_views(batch: Mapping[str, Any], views: np.ndarray) -> dict[str, Tensor]:
    """Some views, one row each: `{column: [N, ...]}` with `N = views.sum()`, rows in `[B, V]` order.

    Args:
        batch: `{column: [B, V, ...]}`; entries that are no tensors and `view_mask` itself are left out.
        views: Which, `[B, V]` bool, on the host.

    Returns:
        The model's inputs.

    Example:
        >>> flatten_views({"x": torch.tensor([[1, 2], [3, 0]])}, np.array([[True, True], [True, False]]))
        {'x': tensor([1, 2, 3])}
    """
    columns = {name: v for name, v in batch.items() if isinstance(v, Tensor) and name != VIEW_MASK}
    if views.all() or not columns:
        return {name: values.flatten(0, 1) for name, values in columns.items()}
    chosen = on_device(np.flatnonzero(views), next(iter(columns.values())).device)
    return {name: values.flatten(0, 1).index_select(0, chosen) for name, values in columns.items()}
