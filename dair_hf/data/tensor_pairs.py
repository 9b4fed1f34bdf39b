"""Pairs held in memory as tensors: batches without a Python loop over rows, and views drawn again each epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.collator import ROW_ID, VIEW_MASK, fill_value, on_device
from dair_hf.data.view_columns import view_prefix
from dair_hf.errors import DataError

Columns = Mapping[str, Tensor]
View = Columns | Callable[[Tensor, int], Columns]


class TensorPairs(torch.utils.data.Dataset[dict[str, Any]]):
    """Paired rows held as tensors, such as images or tables.

    A view is either a mapping of tensors `{column: [N, ...]}` under the model's own column names (`pixel_values`,
    `labels`), or a callable `(rows, epoch) -> {column: [B, ...]}` that computes some rows (`rows` is `[B]` int64), such
    as partners drawn again each epoch on a device. A callable should depend on its arguments only
    (`counter_rng.uniform`), so that an epoch has the same views after a resume. With data loader workers it must be
    picklable.

    Batches have the `[B, V, ...]` layout of `PairCollator` and are made without single rows.

    Args:
        original: The original view.
        augmented: The augmented view, or a list of P views for several partners of a row; None: no row has a partner.
        rows: Number of rows; required if the views are callables.
        has_partner: Rows that have a partner, `[N]` bool, or `[N, P]`; None: every row has all partners. Augmented
            views of other rows are not computed.
        row_ids: Stable names of the rows, N texts or numbers; None: their numbers.
        columns: Further columns `{name: N values}` that the model does not see, such as references.

    Raises:
        DataError: Views or columns of different lengths, or views that differ in columns or in their type or shape.

    Example:
        >>> pairs = TensorPairs({"x": torch.tensor([1.0, 2.0])}, lambda rows, epoch: {"x": 10.0 * rows + epoch})
        >>> pairs.set_epoch(3)
        >>> pairs.__getitems__([1, 0])["x"]
        tensor([[ 2., 13.],
                [ 1.,  3.]])
        >>> pairs[1]
        {'row_id': '1', 'x': tensor(2.), 'augmented_x': tensor(13.)}

    Attributes:
        views: The original view, then the augmented views.
    """

    def __init__(
        self,
        original: View,
        augmented: View | Sequence[View] | None = None,
        *,
        rows: int | None = None,
        has_partner: Tensor | None = None,
        row_ids: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        partners = _as_list(augmented)
        self.views: tuple[View, ...] = (original, *partners)
        self.epoch = 0
        self.columns = dict(columns or {})
        lengths = {f"column {name!r}": len(values) for name, values in self.columns.items()}
        for number, view in enumerate(self.views):
            if isinstance(view, Mapping):
                lengths |= {f"{view_prefix(number)}{name}": len(values) for name, values in view.items()}
        given = {"has_partner": has_partner, "row_ids": row_ids}
        lengths |= {name: len(values) for name, values in given.items() if values is not None}
        if rows is not None:
            lengths["rows"] = rows
        if len(set(lengths.values())) != 1:
            raise DataError(
                f"TensorPairs: expected one number of rows, from rows=N if all are callables, got {lengths}"
            )
        self.n_rows = next(iter(lengths.values()))
        self.row_ids = np.array(row_ids if row_ids is not None else [str(row) for row in range(self.n_rows)])
        # On the host, where rows of batches are selected.
        self._partners = np.ones((self.n_rows, len(partners)), dtype=bool)
        if has_partner is not None:
            mask = has_partner.cpu().numpy()
            self._partners &= mask if mask.ndim == 2 else mask[:, None]
        if not self._partners.any():
            self.views, self._partners = (original,), self._partners[:, :0]
        for number, view in enumerate(self.views):
            if isinstance(original, Mapping) and isinstance(view, Mapping):
                _require_same_columns(original, view, number)

    @property
    def device(self) -> torch.device:
        """Device of the tensors; the CPU if all views are callables."""
        for view in self.views:
            if isinstance(view, Mapping):
                return next(iter(view.values())).device
        return torch.device("cpu")

    @property
    def partner_mask(self) -> np.ndarray:
        """Mask of the rows with a partner, `[N]` bool."""
        return np.asarray(self._partners.any(1))

    @property
    def partners(self) -> np.ndarray:
        """Mask of the partners, `[N, P]` bool."""
        return self._partners

    def set_epoch(self, epoch: int) -> None:
        """Switch to the views of `epoch`."""
        self.epoch = epoch

    def originals(self) -> TensorPairs:
        """Return the same rows of the same epoch without partners."""
        originals = TensorPairs(self.views[0], rows=self.n_rows, row_ids=self.row_ids.tolist(), columns=self.columns)
        originals.set_epoch(self.epoch)
        return originals

    def view(self, rows: Tensor, number: int) -> Columns:
        """Return the columns of view `number` for some rows, `[B]` int64 on the device of the views."""
        source = self.views[number]
        if isinstance(source, Mapping):
            return {name: values.index_select(0, rows) for name, values in source.items()}  # faster than values[rows]
        return source(rows, self.epoch)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one row: its `row_id`, columns and `augmented_` columns. `__getitems__` is faster for many rows."""
        batch = self.__getitems__([range(self.n_rows)[index]])
        row: dict[str, Any] = {ROW_ID: batch.pop(ROW_ID)[0]}
        mask = batch.pop(VIEW_MASK)
        row.update({name: values[0, 0] for name, values in batch.items()})
        for view in range(1, len(self.views)):
            exists = view < mask.shape[1] and bool(mask[0, view])
            row.update(
                {view_prefix(view) + name: values[0, view] if exists else None for name, values in batch.items()}
            )
        return row

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return rows as `PairCollator` does: `{column: [B, V, ...]}`, `view_mask`, and `row_id` as an array `[B]`."""
        chosen = np.asarray(indices, dtype=np.int64)
        rows = on_device(chosen, self.device)
        whole = len(chosen) == self.n_rows and bool((chosen == np.arange(self.n_rows)).all())
        original = self._view(rows, 0, whole)
        partners = self._partners[chosen]
        count = 1 + max(np.flatnonzero(partners.any(0)).tolist(), default=-1)
        mask = torch.ones(len(rows), 1 + count, dtype=torch.bool, device=rows.device)
        views: list[Columns] = []
        positions: list[Tensor | None] = []  # rows that have the partner; None: all
        for number, exists in enumerate(partners[:, :count].T, 1):
            at = None if exists.all() else on_device(np.flatnonzero(exists), rows.device)
            if not exists.any():
                views.append({name: values[:0] for name, values in original.items()})
            else:
                some = rows if at is None else rows.index_select(0, at)
                views.append(self._view(some, number, whole and at is None))
                _require_same_columns(original, views[-1], number)
            positions.append(at)
            if at is not None:
                mask[:, number] = on_device(exists, rows.device)
        batch: dict[str, Any] = {
            name: _stack_views(name, values, [view[name] for view in views], positions)
            for name, values in original.items()
        }
        batch[VIEW_MASK] = mask
        # An array, since Trainer and accelerate walk through the lists of a batch one element at a time.
        batch[ROW_ID] = self.row_ids[chosen].astype(object)
        return batch

    def _view(self, rows: Tensor, number: int, whole: bool) -> Columns:
        source = self.views[number]
        if whole and isinstance(source, Mapping):
            return source  # all rows in order: nothing to copy
        return self.view(rows, number)


def tensor_fingerprint(*tensors: Tensor) -> str:
    """Return 16 hex digits that depend on the shapes, types and values of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{values.dtype}{list(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _as_list(views: View | Sequence[View] | None) -> list[View]:
    if views is None:
        return []
    return list(views) if isinstance(views, Sequence) else [views]


def _require_same_columns(original: Columns, augmented: Columns, number: int) -> None:
    """Refuse views that stacking would convert to one type, or cut to the columns of the original."""
    kinds = [{name: (v.dtype, v.shape[1:]) for name, v in view.items()} for view in (original, augmented)]
    if kinds[0] != kinds[1]:
        raise DataError(f"TensorPairs: expected {kinds[0]} as in the original, got {kinds[1]} in partner {number}")


def _stack_views(name: str, original: Tensor, partners: Sequence[Tensor], positions: Sequence[Tensor | None]) -> Tensor:
    """Return all views, `[B, V, ...]`, with partners at some positions each (None: all); absent views are filled."""
    if not partners:
        return original[:, None]
    if all(at is None for at in positions):
        return torch.stack([original, *partners], dim=1)
    laid_out = original.new_full((len(original), 1 + len(partners), *original.shape[1:]), fill_value(name, original))
    laid_out[:, 0] = original
    for view, (partner, at) in enumerate(zip(partners, positions, strict=True), 1):
        laid_out[:, view] = partner if at is None else laid_out[:, view].index_copy(0, at, partner)
    return laid_out
