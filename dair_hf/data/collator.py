"""Collation of rows with optional partners into batches `[B, V, ...]` of B pairs with V views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dair_hf.data.row_rules import (
    LABEL_COLUMNS,
    NO_RULES,
    RowRules,
    check_view,
    is_inherited,
    not_a_number,
    reason_not_inherited,
    require_equal_lengths,
    with_one_label,
)
from dair_hf.data.view_columns import (
    AUGMENTED_PREFIX,
    is_augmented,
    parse_column,
    require_unambiguous,
    variant_name,
    view_prefix,
)
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

    A partner inherits columns from its original. Labels are inherited if the row has no column for them
    (`augmented_labels`, `augmented_label`, `augmented_label_ids`). Masks (`attention_mask` and other names that end in
    `_mask`) are inherited if the columns that they cover are the same in both views, or have the same shape and the
    mask is all ones; a mask of the decoder covers the labels. A column that is None in a partner whose other columns
    have values is refused, since the label might have been meant to change.

    Args:
        feature: One row: the model's columns, the same with the prefix `augmented_` for its first partner,
            `augmented_2_` for its second and so on (`view_columns`), optionally `row_id`.
        rules: Requirements of the model.

    Returns:
        `(original, partner 1, partner 2, ...)`, with at least one partner; a partner is None if all its columns are
        None or absent.

    Raises:
        DataError: A partner has other columns than the original, or only some of them; inputs or labels are text, or
            empty where there is one label per token; a mask has another length than its inputs; an id or a label is
            out of range; a column cannot be told from that of another partner.

    Example:
        >>> split_views({"row_id": "a/0", "input_ids": [5], "labels": 3, "augmented_input_ids": [6]})
        ({'input_ids': [5], 'labels': 3}, {'input_ids': [6], 'labels': 3})
        >>> split_views({"x": 5, "augmented_x": None, "augmented_2_x": 6})
        ({'x': 5}, None, {'x': 6})
    """
    where = _name_of(feature)
    require_unambiguous(feature.keys(), where)
    original: dict[str, Any] = {}
    partners: dict[int, dict[str, Any]] = {}
    for name, value in feature.items():
        view, column = parse_column(name)
        if view:
            partners.setdefault(view, {})[column] = value
        elif name not in (ROW_ID, PADDING_ROW):
            original[name] = value
    check_view(where, "", original, rules)
    views = range(1, 1 + max(partners, default=1))
    return original, *(_partner(where, view, partners.get(view, {}), original, rules) for view in views)


def _partner(
    where: str, view: int, augmented: Mapping[str, Any], original: Mapping[str, Any], rules: RowRules
) -> dict[str, Any] | None:
    """Return a partner with the columns that it inherits, or None if all its columns are None."""
    present = {name: value for name, value in augmented.items() if value is not None}
    if not present:
        return None
    prefix, name_of_view = view_prefix(view), f"the {variant_name(view)} view"
    if unknown := sorted(set(augmented) - set(original)):
        raise DataError(
            f"{where}: {name_of_view} has columns that the original lacks: {unknown}; "
            f"a partner has the columns of its original, {sorted(original)}, with the prefix '{prefix}'"
        )
    missing = sorted(set(original) - set(present))
    if nulls := [name for name in missing if name in augmented]:
        raise DataError(
            f"{where}: {name_of_view} has None in {nulls}, but not in {sorted(present)}; give all of them, or None "
            "in all of them for a row without a partner"
        )
    inherited = {name: original[name] for name in missing if is_inherited(name, original, present, rules)}
    if missing := [name for name in missing if name not in inherited]:
        raise DataError(
            f"{where}: {name_of_view} lacks {missing}; give all of {sorted(original)} with the prefix "
            f"'{prefix}', or None in all of them for a row without a partner"
            + reason_not_inherited(missing[0], prefix, rules)
        )
    partner = {name: present.get(name, inherited.get(name)) for name in original}
    check_view(where, prefix, partner, rules)
    return partner


def _name_of(feature: Mapping[str, Any]) -> str:
    return f"row {feature.get(ROW_ID, '(no row_id)')!r}"


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
        DataError: A base collator that is no function of views; no list of rows, or an empty one; a row that
            `split_views` refuses, partners with different columns, or a base collator that does not return tensors with
            one entry per view. With a collator of transformers also several columns of labels, or a
            column of which it makes no tensor.

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
        found = type(base_collator).__name__
        if isinstance(base_collator, PairCollator):
            raise DataError(f"base_collator is a {found} already; pass it on its own")
        if isinstance(base_collator, PreTrainedTokenizerBase):
            raise DataError(
                f"base_collator is a {found}, a tokenizer; give DataCollatorForSeq2Seq(tokenizer, model=None) or "
                "another collator that pads with it"
            )
        if not callable(base_collator):
            raise DataError(
                f"base_collator is a {found}; give a function of a list of views, such as default_data_collator of "
                "transformers"
            )
        self.base_collator = base_collator
        self.rules = rules
        # Other collators may use several columns of labels, and texts.
        self._is_of_transformers = str(getattr(base_collator, "__module__", "")).startswith("transformers.")

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate rows."""
        _require_features(features)
        views: list[dict[str, Any]] = []
        owners: list[str] = []
        exists: list[list[bool]] = []
        partners: list[tuple[str, frozenset[str]]] = []
        for number, feature in enumerate(features):
            if self._is_of_transformers:
                feature = with_one_label(_name_of(feature), feature)
            name = _name_of(feature) if ROW_ID in feature else f"row {number} of the batch"
            of_row = split_views(feature, self.rules)
            exists.append([columns is not None for columns in of_row])
            for view, columns in enumerate(of_row):
                if columns is None:
                    continue
                if self._is_of_transformers and self.rules.labels_as_long_as_inputs:
                    require_equal_lengths(_name_of(feature), view_prefix(view), columns)
                views.append(columns)
                owners.append(f"{name} ({variant_name(view)} view)" if view else name)
                if view:
                    given = frozenset(column for number, column in map(parse_column, feature) if number == view)
                    partners.append((str(feature.get(ROW_ID, "(no row_id)")), given))
        for name, given in partners:
            if gap := given ^ partners[0][1]:
                rows = f"rows {partners[0][0]!r} and {name!r} have" if name != partners[0][0] else f"row {name!r} has"
                raise DataError(
                    f"{rows} partners with different columns: only one of them has "
                    f"{sorted(map(AUGMENTED_PREFIX.__add__, gap))}; give every partner the same columns"
                )
        last = max((view for of_row in exists for view, is_there in enumerate(of_row) if is_there), default=0)
        view_mask = torch.tensor([(of_row + [False] * last)[: last + 1] for of_row in exists])
        batch: dict[str, Any] = {
            name: self._lay_out(name, values, view_mask, len(views))
            for name, values in self._collate(views, owners).items()
            if values is not None  # labels, in `DataCollatorForSeq2Seq` for rows without them
        }
        # Padding rows are collated, so that a batch of nothing else has something to run, and then masked.
        is_padding = torch.tensor([bool(feature.get(PADDING_ROW)) for feature in features])
        batch[VIEW_MASK] = view_mask & ~is_padding[:, None]
        if ROW_ID in features[0]:
            batch[ROW_ID] = [feature[ROW_ID] for feature in features]
        return batch

    def _collate(self, views: list[dict[str, Any]], owners: Sequence[str]) -> Mapping[str, Any]:
        collator = getattr(self.base_collator, "__name__", type(self.base_collator).__name__)
        try:
            batch = self.base_collator(views)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            complaint = _complaint(views, owners, collator) if self._is_of_transformers else None
            if complaint is None:
                raise
            raise DataError(complaint) from error
        if not hasattr(batch, "items"):
            raise DataError(
                f"{collator}: returned a {type(batch).__name__}; the base collator must return a dictionary of tensors "
                "with one entry for each view"
            )
        return batch

    def _lay_out(self, name: str, values: Any, view_mask: Tensor, count: int) -> Tensor:
        if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != count:
            kind = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise DataError(
                f"{type(self.base_collator).__name__}: column {name!r} is {kind}; the base collator must return "
                f"tensors with one entry for each of the {count} views of the batch"
            )
        if bool(view_mask.all()):
            return values.reshape(*view_mask.shape, *values.shape[1:])
        laid_out = values.new_full((*view_mask.shape, *values.shape[1:]), fill_value(name, values))
        laid_out[view_mask] = values
        return laid_out


def _require_features(features: Any) -> None:
    if isinstance(features, (Mapping, str)) or not hasattr(features, "__len__"):
        raise DataError(f"PairCollator: found a {type(features).__name__}; give a list of rows")
    if len(features) == 0:
        raise DataError("PairCollator: there are no rows to collate; give at least one")
    for number, feature in enumerate(features):
        if not isinstance(feature, Mapping):
            raise DataError(
                f"PairCollator: row {number} of the batch is a {type(feature).__name__}; give a dictionary of columns"
            )


def _complaint(views: Sequence[Mapping[str, Any]], owners: Sequence[str], collator: str) -> str | None:
    """Return why a collator of transformers makes no batch of views, or None if their columns do not tell."""
    pads_nothing = collator in ("default_data_collator", "DefaultDataCollator")
    for owner, view in zip(owners, views, strict=True):
        if column := not_a_number(view, skips_text=pads_nothing):
            name, value = column
            return (
                f"{owner}: {collator} makes no tensor of column {name!r}, which holds {value!r:.60}; give numbers "
                f"there, or drop the column if the model does not need it: dataset.remove_columns({name!r})"
            )
    for owner, view in zip(owners, views, strict=True):
        for name in {**views[0], **view}:
            if (view.get(name) is None) != (views[0].get(name) is None):
                lacks, has = (owner, owners[0]) if view.get(name) is None else (owners[0], owner)
                return f"{lacks}: lacks the column {name!r}, which {has} has; give all rows of a batch the same columns"
            if pads_nothing and (found := _shape(view.get(name))) != (first := _shape(views[0].get(name))):
                return (
                    f"{owner}: column {name!r} has shape {found}, in {owners[0]} {first}, and {collator} does not pad; "
                    "make them equal, or give DataCollatorForSeq2Seq(tokenizer, model=None), DataCollatorWithPadding("
                    "tokenizer) or another collator that pads"
                )
    return None


def _shape(value: Any) -> str:
    try:
        return str(list(np.shape(value)))
    except ValueError:
        return "of lists of different lengths"


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
        DataError: A column that the batch lacks, or partners of another shape than their originals.

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
        raise DataError(f"partners have the columns {unknown}, which the batch lacks; it has {sorted(batch)}")
    paired = {name: values for name, values in batch.items() if name != LAYOUT}  # computed for the former partners
    for name, values in batch.items():
        if not isinstance(values, Tensor) or name == VIEW_MASK:
            continue
        views = [values[:, 0]]
        for columns in partners:
            partner = columns.get(name, views[0])
            if partner.shape != views[0].shape:
                raise DataError(
                    f"partners: {name!r} has shape {list(partner.shape)}, in the originals {list(views[0].shape)}; an "
                    "augmenter makes partners of the shape of their originals, or a list of them for several per row"
                )
            views.append(partner.to(views[0].dtype))
        paired[name] = torch.stack(views, dim=1)
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
    """Select views of a batch as rows: `{column: [N, ...]}` with `N = views.sum()`, in `[B, V]` order.

    Args:
        batch: `{column: [B, V, ...]}`; `view_mask` and entries that are no tensors are left out.
        views: Views to select, `[B, V]` bool, on the host.

    Example:
        >>> flatten_views({"x": torch.tensor([[1, 2], [3, 0]])}, np.array([[True, True], [True, False]]))
        {'x': tensor([1, 2, 3])}
    """
    columns = {name: v for name, v in batch.items() if isinstance(v, Tensor) and name != VIEW_MASK}
    if views.all() or not columns:
        return {name: values.flatten(0, 1) for name, values in columns.items()}
    chosen = on_device(np.flatnonzero(views), next(iter(columns.values())).device)
    return {name: values.flatten(0, 1).index_select(0, chosen) for name, values in columns.items()}
