"""From rows with an optional partner to batches in which dimension 0 counts pairs and dimension 1 the views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

AUGMENTED_PREFIX = "augmented_"
ROW_ID = "row_id"
LABELS = "labels"
LABEL_COLUMNS = (LABELS, "label_ids", "label")  # collators of transformers make `labels` of each
TARGET_PREFIXES = ("label", "decoder_")  # columns of the output, and the masks that belong to them
PADDING_ROW = "is_filler"  # marks a row that only keeps ranks even and counts nothing
VIEW_MASK = "view_mask"
LAYOUT = "layout"  # what the host knows of a batch (`batch_layout.BatchLayout`)
ASYNCHRONOUS = ("cuda", "xpu")  # devices that copy from and to the host's memory while the host goes on
NO_TEXT = {
    "input_ids": "tokenize it: tokenizer(text).input_ids",
    **dict.fromkeys(LABEL_COLUMNS, "give the number of its class, or the ids of its tokens"),
}


def on_device(values: np.ndarray, device: torch.device) -> Tensor:
    """A host array on a device; the host does not wait for the copy where the device can do without."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=device.type in ASYNCHRONOUS)


@dataclass(frozen=True)
class RowRules:
    """What a model asks of the rows that it is trained on and evaluated with.

    Attributes:
        labels_per_token: Whether labels stand beside the tokens of `input_ids`, as those of a decoder-only model or a
            token classifier do: other inputs then need labels of their own.
        id_limits: Column -> number below which its ids lie: the size of a vocabulary, or the number of classes.
    """

    labels_per_token: bool = False
    id_limits: Mapping[str, int] = field(default_factory=dict)


NO_RULES = RowRules()


def split_views(feature: Mapping[str, Any], rules: RowRules = NO_RULES) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The original view of a row and its augmented view, both under the model's own column names.

    A partner need not repeat its label: where the row has no `augmented_labels` (`augmented_label`,
    `augmented_label_ids`) at all, the label is that of the original. Likewise a mask (`attention_mask` and what else
    ends in `_mask`), if the partner's inputs equal the original's, or have their shape and the mask is all ones. What a
    mask of the decoder covers are the labels. A column that is there but holds None, where others do not, is refused:
    whether that label was to change with the input cannot be known.

    Args:
        feature: One row: the model's columns, the same with the prefix `augmented_`, optionally `row_id`.
        rules: What the model asks of it.

    Returns:
        `(original, augmented)`; augmented is None where all its columns are None or absent.

    Raises:
        DataError: The augmented view has other columns than the original, or is there only in part; inputs that are
            text, a mask of another length than its inputs, an id that is none.

    Example:
        >>> split_views({"row_id": "a/0", "input_ids": [5], "labels": 3, "augmented_input_ids": [6]})
        ({'input_ids': [5], 'labels': 3}, {'input_ids': [6], 'labels': 3})
    """
    original: dict[str, Any] = {}
    augmented: dict[str, Any] = {}
    for name, value in feature.items():
        if name.startswith(AUGMENTED_PREFIX):
            augmented[name.removeprefix(AUGMENTED_PREFIX)] = value
        elif name not in (ROW_ID, PADDING_ROW):
            original[name] = value
    where = f"row {feature.get(ROW_ID, '(no row_id)')!r}"
    _check_view(where, "", original, rules)
    present = {name: value for name, value in augmented.items() if value is not None}
    if not present:
        return original, None
    if unknown := sorted(set(augmented) - set(original)):
        raise DataError(
            f"{where}: the augmented view has columns the original has not: {unknown}; "
            f"a partner carries the original's columns {sorted(original)} with the prefix '{AUGMENTED_PREFIX}'"
        )
    missing = sorted(set(original) - set(present))
    if nulls := [name for name in missing if name in augmented]:
        raise DataError(
            f"{where}: the augmented view has None in {nulls}, but not in {sorted(present)}; give all of them, or None "
            "in all of them where there is no partner"
        )
    inherited = {name: original[name] for name in missing if _is_inherited(name, original, present, rules)}
    if missing := [name for name in missing if name not in inherited]:
        raise DataError(
            f"{where}: the augmented view lacks {missing}; give all of {sorted(original)} with the prefix "
            f"'{AUGMENTED_PREFIX}', or None in all of them where there is no partner"
            + _reason_not_inherited(missing[0], rules)
        )
    partner = {name: present.get(name, inherited.get(name)) for name in original}
    _check_view(where, AUGMENTED_PREFIX, partner, rules)
    return original, partner


def _is_inherited(name: str, original: Mapping[str, Any], present: Mapping[str, Any], rules: RowRules) -> bool:
    if name in LABEL_COLUMNS:
        return not rules.labels_per_token
    if not name.endswith("_mask"):
        return False
    covered = [other for other in present if other.startswith(TARGET_PREFIXES) == name.startswith(TARGET_PREFIXES)]
    try:
        ones = bool((np.asarray(original[name]) == 1).all())
        pairs = [(np.asarray(original[other]), np.asarray(present[other])) for other in covered]
    except (TypeError, ValueError):  # lists of different lengths in one column, types that numpy does not have
        return False
    # Zeros tell where the original is padded; the partner may be padded elsewhere.
    return all(left.shape == right.shape and (ones or np.array_equal(left, right)) for left, right in pairs)


def _reason_not_inherited(name: str, rules: RowRules) -> str:
    if name in LABEL_COLUMNS and rules.labels_per_token:
        return "; labels of this model stand beside its tokens, so those of the original do not fit other inputs"
    if not name.endswith("_mask"):
        return ""
    return (
        "; the original's mask does not fit inputs of another shape nor, with zeros in it, other inputs of its shape: "
        f"give {AUGMENTED_PREFIX}{name}"
    )


def _check_view(where: str, prefix: str, view: Mapping[str, Any], rules: RowRules) -> None:
    """Refuse what a collator or a model would stumble over without naming the row."""
    for name, remedy in NO_TEXT.items():
        if isinstance(view.get(name), str):
            raise DataError(f"{where}: {prefix}{name} is the text {view[name][:40]!r}; {remedy}")
    ids, mask = view.get("input_ids"), view.get("attention_mask")
    if isinstance(ids, Sized) and isinstance(mask, Sized) and len(ids) != len(mask):
        raise DataError(
            f"{where}: {prefix}attention_mask has {len(mask)} entries for {len(ids)} tokens of {prefix}input_ids; give "
            "one for each"
        )
    for name, limit in rules.id_limits.items():
        is_label = name in LABEL_COLUMNS
        for value in _outside(view.get(name, 0), limit, IGNORE_INDEX if is_label else 0):
            remedy = "check the labels, and num_labels of the model" if is_label else "use the model's own tokenizer"
            raise DataError(
                f"{where}: {prefix}{name} holds {value}, but the model knows 0 to {limit - 1}"
                f"{f', and {IGNORE_INDEX} for no target' if is_label else ''}; {remedy}"
            )


def _outside(values: Any, limit: int, allowed: int) -> list[Any]:
    """The first of some ids that is None, or neither in [0, limit) nor `allowed`; nothing where values are no ids."""
    if hasattr(values, "tolist"):
        values = values.reshape(-1).tolist()
    ids = values if isinstance(values, (list, tuple)) else [values]
    if ids and hasattr(ids[0], "tolist"):  # numbers of numpy, or a row of ids each
        return next((found for one in ids if (found := _outside(one, limit, allowed))), [])
    if None in ids:
        return [None]
    if not ids or type(ids[0]) is not int or (min(ids) >= 0 and max(ids) < limit):
        return []
    return [one for one in ids if not 0 <= one < limit and one != allowed][:1]


class PairCollator:
    """Collates pairs with any task's own collator.

    The existing views of a batch are collated together by `base_collator` (so both views are padded to one length) and
    laid out as `[B, V, ...]`: V is 2 if any row has a partner, else 1. `view_mask` `[B, V]` says which views exist;
    the places of absent views hold 0 (-100 in the labels) and are never run.

    Args:
        base_collator: What collates single views: a list of `{column: value}` to `{column: tensor [N, ...]}`. Columns
            that it reads and the model does not know are kept if it lists them in an attribute `columns`.
        rules: What the model asks of a row; the trainer sets it.

    Raises:
        DataError: A row that `split_views` refuses, partners with different columns, or a base collator that returns
            something else than tensors with one entry a view.

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

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate rows; see the class."""
        views: list[dict[str, Any]] = []
        exists: list[list[bool]] = []
        partners: list[tuple[str, frozenset[str]]] = []
        for feature in features:
            original, augmented = split_views(feature, self.rules)
            if augmented is not None:
                columns = frozenset(name for name in feature if name.startswith(AUGMENTED_PREFIX))
                partners.append((str(feature.get(ROW_ID, "(no row_id)")), columns))
            views.append(original)
            if augmented is not None:
                views.append(augmented)
            exists.append([True, augmented is not None])
        for name, columns in partners:
            if gap := columns ^ partners[0][1]:
                raise DataError(
                    f"rows {partners[0][0]!r} and {name!r} have partners with different columns: only one of them has "
                    f"{sorted(gap)}; give every partner the same columns"
                )
        view_mask = torch.tensor(exists)
        if not view_mask[:, 1].any():
            view_mask = view_mask[:, :1]
        batch: dict[str, Any] = {
            name: self._lay_out(name, values, view_mask, len(views))
            for name, values in self.base_collator(views).items()
        }
        # A filler is collated, so that a batch of nothing else still has something to run, and then does not exist.
        is_filler = torch.tensor([bool(feature.get(PADDING_ROW)) for feature in features])
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
        laid_out = values.new_full((*view_mask.shape, *values.shape[1:]), fill_value(name, values))
        laid_out[view_mask] = values
        return laid_out


def collate_unless_ready(
    collator: Callable[[list[Any]], dict[str, Any]], rows: list[Any] | dict[str, Any]
) -> dict[str, Any]:
    """A batch: `rows` themselves where their data set laid them out as one already (`TensorPairs`)."""
    return rows if isinstance(rows, dict) else collator(rows)


def fill_value(name: str, values: Tensor) -> int:
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
