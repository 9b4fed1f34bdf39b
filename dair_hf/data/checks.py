"""The gate of a data set: rows, named columns, one numbering of classes, and at least one pair."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import datasets
import torch

from dair_hf.data.held_rows import is_transformed
from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import columns_by_view, is_augmented, parse_column
from dair_hf.errors import DataError


def require_rows(data: Any, name: str) -> None:
    """Refuse data that are not rows, or empty, and partners with a column that the originals lack.

    None and streams are accepted.
    """
    if data is None:
        return
    if not isinstance(data, torch.utils.data.IterableDataset | datasets.IterableDataset):
        has_rows = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str)
        if not has_rows or not len(data):
            raise DataError(
                f"{name}: expected rows, such as a datasets.Dataset, got a {type(data).__name__} without any"
            )
    columns_by_view(columns_of(data) or (), name)


def require_pairs(data: Any, known: Collection[str], method: str, name: str) -> bool:
    """Refuse data without a single pair; return False if that is unknown until the rows are read.

    Data sets of `datasets`, tensors and lists are searched.
    """
    columns_by_view(columns_of(data) or (), name)
    has_pair = _has_pair(data, known)
    if has_pair is False:
        raise DataError(no_pairs(name, columns_of(data), known, method))
    return bool(has_pair)


def no_pairs(name: str, columns: Sequence[str] | None, known: Collection[str], method: str) -> str:
    """Return the error message for data without pairs."""
    read = [column for column in columns or () if column in known]
    found = f"got the columns {columns}, of which {read} are read"
    return f"{name}: method={method!r} expects a row with a partner (columns 'augmented_...'), {found}"


def require_equal_classes(data: Any, label2id: Mapping[str, int], name: str) -> None:
    """Refuse columns of labels whose `ClassLabel` numbers a class in another way than the originals or the model.

    Names are compared without case; a name that the other side lacks is ignored.
    """
    numbers: dict[str, dict[str, int]] = {}
    for column, feature in (getattr(data, "features", None) or {}).items():
        of_token = getattr(feature, "feature", feature)
        if parse_column(column)[1] in LABEL_COLUMNS and isinstance(of_token, datasets.ClassLabel):
            numbers[column] = {text.casefold(): number for number, text in enumerate(of_token.names)}
    of_model = {text.casefold(): number for text, number in label2id.items()}
    for column, found in numbers.items():
        for expected in (numbers.get(parse_column(column)[1], {}), of_model):
            if wrong := {text: number for text, number in found.items() if expected.get(text, number) != number}:
                raise DataError(f"{name}, column {column!r}: expected the numbers of classes {expected}, got {wrong}")


def columns_of(data: Any) -> list[str] | None:
    """Return the columns of a data set; None if they are unknown."""
    if isinstance(data, (list, tuple)):
        return list(dict.fromkeys(name for row in data for name in row)) if _holds_rows(data) else None
    columns = getattr(data, "column_names", None)
    if isinstance(data, datasets.Dataset) and not data.format["output_all_columns"] and not is_transformed(data):
        columns = data.format["columns"]  # rows lack the others
    return list(columns) if columns else None


def _has_pair(data: Any, known: Collection[str]) -> bool | None:
    """Return whether a row has a partner; None if that is unknown until the rows are read."""
    if isinstance(data, TensorPairs):
        return bool(data.partner_mask.any())
    if isinstance(data, (list, tuple)) and _holds_rows(data):
        cells = (cell for row in data for cell in row.items())
        return any(is_augmented(name) and name in known and value is not None for name, value in cells)
    if isinstance(data, EpochPairs):
        # Another epoch may have partners in the same columns.
        return None if any(map(is_augmented, data.column_names)) else False
    if not isinstance(data, datasets.Dataset) or is_transformed(data):
        return None
    names = [name for name in columns_of(data) or () if is_augmented(name) and name in known]
    tables = data.select_columns(names).with_format("arrow").iter(batch_size=1000) if names else ()
    return any(table[name].null_count < len(table) for table in tables for name in names)


def _holds_rows(data: Sequence[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in data)
