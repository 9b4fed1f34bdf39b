"""Collation of rows with optional partners into batches `[B, V, ...]` of B pairs with V views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import default_data_collator

from dair_hf.data.row_rules import LABEL_COLUMNS, NO_RULES, RowRules
from dair_hf.data.view_columns import columns_by_view, is_augmented, parse_column, view_prefix
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

ROW_ID = "row_id"
LABELS = LABEL_COLUMNS[0]
PADDING_ROW = "is_padding_row"  # marks a row that only gives all ranks equally many rows
VIEW_MASK = "view_mask"
LAYOUT = "layout"  # key of the `batch_layout.BatchLayout` of a batch
ASYNCHRONOUS = ("cuda", "xpu")  # devices whose copies from and to the host need not block the host


def on_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy a host array to a device, without blocking the host if the device supports that."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=device.type in ASYNCHRONOUS)


def split_views(
    feature: Mapping[str, Any], rules: RowRules = NO_RULES
) -> tuple[dict[str, Any], *tuple[dict[str, Any] | None, ...]]:
    """Split a row into its original and its partners, all under the model's own column names.

    A partner inherits labels for which the row has no column, and masks that fit (`RowRules.inherits`). A column that
    is None in a partner whose other columns have values is refused, since the label might have been meant to change.
    """
    where = f"row {feature.get(ROW_ID, '(no row_id)')!r}"
    names = columns_by_view((name for name in feature if name not in (ROW_ID, PADDING_ROW)), where)
    original = {column: feature[name] for column, name in names[0].items()}
    rules.check(where, 0, original)
    if len({frozenset(own) for view, own in names.items() if view}) > 1:  # one would have the labels of the original
        raise DataError(f"{where}: expected partners with the same columns, got {[*feature]}")
    partners: list[dict[str, Any] | None] = []
    for view in range(1, 1 + (max(names) or 1)):
        own = names.get(view, {})
        present = {column: feature[name] for column, name in own.items() if feature[name] is not None}
        if not present:
            partners.append(None)
            continue
        for column in original:
            if column not in present and (column in own or not rules.inherits(column, original, present)):
                missing = view_prefix(view) + column
                raise DataError(f"{where}: expected {missing}, or None in all columns of the partner, got {[*present]}")
        partner = {column: present.get(column, value) for column, value in original.items()}
        rules.check(where, view, partner)
        partners.append(partner)
    return original, *partners


class PairCollator:
    """Collates pairs with the collator of any task.

    `base_collator` collates the existing views of a batch together, so that all views are padded to one length. They
    become `[B, V, ...]`. View 0 is the original and view p is partner number p, whichever other partners a row has; V
    is 1 plus the largest number of a partner in the batch. `view_mask` `[B, V]` says which views exist. Absent views
    are filled with 0 (-100 in the labels) and never run.

    Args:
        base_collator: Collates single views: a list of `{column: value}` -> `{column: tensor [N, ...]}`. It may list
            columns in an attribute `columns`, which are then kept although the model does not take them.
        rules: Requirements of the model; set by the trainer.

    Raises:
        DataError: A row that `split_views` refuses; with a collator of transformers also several columns of labels.

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

    def __init__(
        self, base_collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]], rules: RowRules = NO_RULES
    ) -> None:
        self.base_collator = base_collator
        self.rules = rules
        self.tokenizer = getattr(base_collator, "tokenizer", None)  # `Trainer` saves it
        # Other collators may use several columns of labels, and align labels with tokens themselves.
        self._is_of_transformers = str(getattr(base_collator, "__module__", "")).startswith("transformers.")

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate rows."""
        views: list[dict[str, Any]] = []
        exists: list[list[bool]] = []
        partners: set[frozenset[str]] = set()
        for feature in features:
            where = f"row {feature.get(ROW_ID, '(no row_id)')!r}"
            row = _with_one_label(where, feature) if self._is_of_transformers else feature
            of_row = split_views(row, self.rules)
            exists.append([columns is not None for columns in of_row])
            for view, columns in enumerate(of_row):
                if columns is None:
                    continue
                if view:
                    partners.add(frozenset(column for number, column in map(parse_column, feature) if number == view))
                if self._is_of_transformers:
                    self.rules.check_collated(where, view, columns)
                views.append(columns)
        if len(partners) > 1:  # some would have the labels of their originals
            found = " and ".join(sorted(str(sorted(columns)) for columns in partners))
            raise DataError(f"rows of a batch: expected partners with the same columns, got {found}")
        last = max((view for of_row in exists for view, is_there in enumerate(of_row) if is_there), default=0)
        view_mask = torch.tensor([(of_row + [False] * last)[: last + 1] for of_row in exists])
        batch: dict[str, Any] = {
            name: _lay_out(name, values, view_mask)
            for name, values in self.base_collator(views).items()
            if values is not None  # labels, in `DataCollatorForSeq2Seq` for rows without them
        }
        # Padding rows are collated, so that a batch of nothing else has something to run, and then masked.
        is_padding = torch.tensor([bool(feature.get(PADDING_ROW)) for feature in features])
        batch[VIEW_MASK] = view_mask & ~is_padding[:, None]
        if ROW_ID in features[0]:
            batch[ROW_ID] = [feature[ROW_ID] for feature in features]
        return batch


def _with_one_label(where: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with one column of labels; collators of transformers would silently take one of several."""
    present = [name for name in LABEL_COLUMNS if name in row]
    found = [name for name in present if row[name] is not None]
    if len(found) > 1:
        raise DataError(f"{where}: expected one column of labels, got {' and '.join(found)}")
    if not found or len(present) == 1:
        return row
    return {name: value for name, value in row.items() if name not in present or name in found}


def _lay_out(name: str, values: Tensor, view_mask: Tensor) -> Tensor:
    """Return the existing views `[N, ...]` as `[B, V, ...]`."""
    if values.ndim == 0 or len(values) != int(view_mask.sum()):  # a single label would be broadcast to all views
        raise DataError(f"{name}: expected a tensor of {int(view_mask.sum())} views, got shape {tuple(values.shape)}")
    if bool(view_mask.all()):
        return values.reshape(*view_mask.shape, *values.shape[1:])
    laid_out = values.new_full((*view_mask.shape, *values.shape[1:]), fill_value(name, values))
    laid_out[view_mask] = values
    return laid_out


class ImageCollator:
    """Collates views with an image in the column `image` or `img`; other columns are stacked."""

    columns = ("image", "img")  # read in addition to the model's

    def __init__(self, processor: Any, channels: int = 3) -> None:
        self.processor = processor
        self.channels = channels

    def __call__(self, views: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch of views."""
        others = [{name: value for name, value in view.items() if name not in self.columns} for view in views]
        batch: dict[str, Any] = dict(default_data_collator(others)) if others[0] else {}
        images = [view[name] for view in views for name in self.columns if name in view and "pixel_values" not in view]
        if images:
            if self.channels == 3:
                images = [image.convert("RGB") if hasattr(image, "convert") else image for image in images]
            batch |= self.processor(images, return_tensors="pt")
        return batch


def collate_unless_ready(
    collator: Callable[[list[Any]], dict[str, Any]], rows: list[Any] | dict[str, Any]
) -> dict[str, Any]:
    """Collate rows, unless their data set returned a batch already (`TensorPairs`)."""
    return rows if isinstance(rows, dict) else collator(rows)


def collate_originals(
    collator: Callable[[Any], dict[str, Any]], rows: list[Mapping[str, Any]] | dict[str, Any]
) -> dict[str, Any]:
    """Collate rows without the columns of their partners; a batch that is ready is passed on."""
    if isinstance(rows, dict):
        return collator(rows)
    return collator([{name: value for name, value in row.items() if not is_augmented(name)} for row in rows])


def collate_or_pad(
    collator: Callable[[list[Any]], dict[str, Any]], row: Mapping[str, Any], rows: list[Any]
) -> dict[str, Any]:
    """Collate rows; if there are none, collate `row` as a padding row."""
    return collator(rows or [{**row, PADDING_ROW: True}])


def fill_value(name: str, values: Tensor) -> int:
    """Return the value that fills absent views of a column: -100 in integer labels, else 0."""
    return IGNORE_INDEX if name.startswith("label") and not values.is_floating_point() else 0


def add_partners(
    batch: Mapping[str, Any],
    augmented: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    has_partner: Tensor | None = None,
) -> dict[str, Any]:
    """Add partners to a batch, as an online augmenter does.

    Args:
        batch: `{column: [B, V, ...]}` with its `view_mask`; its present partners are replaced.
        augmented: Columns in which partners differ from their originals, `[B, ...]` each; or a list of P such
            dictionaries, one for each partner of a row.
        has_partner: Rows that get a partner, `[B]` bool, or `[B, P]`; None: every row that exists.

    Returns:
        A new batch with V = 1 + P.

    Raises:
        DataError: A column that the batch lacks.

    Example:
        >>> batch = {"x": torch.tensor([[1.0], [2.0]]), "view_mask": torch.tensor([[True], [True]])}
        >>> add_partners(batch, {"x": torch.tensor([5.0, 6.0])})["x"]
        tensor([[1., 5.],
                [2., 6.]])
        >>> add_partners(batch, [{"x": torch.tensor([5.0, 6.0])}, {}])["x"]
        tensor([[1., 5., 1.],
                [2., 6., 2.]])
    """
    partners = [augmented] if isinstance(augmented, Mapping) else list(augmented)
    if unknown := sorted({name for columns in partners for name in columns} - set(batch)):
        raise DataError(f"partners: expected columns of the batch, {sorted(batch)}, got {unknown}")
    paired = {name: values for name, values in batch.items() if name != LAYOUT}  # computed for the former partners
    for name, values in batch.items():
        if not isinstance(values, Tensor) or name == VIEW_MASK:
            continue
        original = values[:, 0]
        paired[name] = torch.stack([original, *(c.get(name, original).to(values.dtype) for c in partners)], dim=1)
    exists = batch[VIEW_MASK][:, :1]
    if has_partner is None:
        paired[VIEW_MASK] = exists.repeat(1, 1 + len(partners))
    else:
        of_rows = has_partner if has_partner.ndim == 2 else has_partner[:, None]
        paired[VIEW_MASK] = torch.cat([exists, exists & of_rows.expand(-1, len(partners))], dim=1)
    return paired


def count_positions(batch: Mapping[str, Any], view_mask: Tensor) -> Tensor | None:
    """Count input tokens, and positions including padding, `[2]` int64; return None without an attention mask."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 3:
        return None
    tokens = (mask[:, : view_mask.shape[1]] * view_mask[..., None]).sum()
    return torch.stack([tokens, (view_mask.sum() * mask.shape[2]).to(tokens.dtype)])


def flatten_views(batch: Mapping[str, Any], views: np.ndarray) -> dict[str, Tensor]:
    """Select views `[B, V]` of a batch as rows: `{column: [N, ...]}` with `N = views.sum()`, in `[B, V]` order."""
    columns = {name: v for name, v in batch.items() if isinstance(v, Tensor) and name != VIEW_MASK}
    if views.all() or not columns:
        return {name: values.flatten(0, 1) for name, values in columns.items()}
    chosen = on_device(np.flatnonzero(views), next(iter(columns.values())).device)
    return {name: values.flatten(0, 1).index_select(0, chosen) for name, values in columns.items()}
