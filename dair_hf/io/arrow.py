"""Nested Arrow columns as Python values, without a detour over one Arrow scalar object per leaf."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the search for reference cycles while many small objects are made that hold none.

    Rows are tens of thousands of small dicts. Their number alone makes the collector walk all that the process has
    loaded, time and again, which took half the time of reading and rewriting them.

    Example:
        >>> with paused_gc():
        ...     gc.isenabled()
        False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def to_python(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column as a list of Python values, equal to `column.to_pylist()` and several times as fast.

    `to_pylist` builds a scalar object for every leaf. Here a list column becomes its flat leaves, converted at once
    and cut at the offsets; a struct column becomes its fields, zipped. A dialogue's history repeats in every one of
    its rows, so this is most of what reading such rows costs.

    Args:
        column: Any Arrow column; lists, structs and strings in any nesting take the fast path.

    Returns:
        One Python value per entry; None where the entry is null.

    Example:
        >>> to_python(pa.array([[{"a": "x"}], None, []]))
        [[{'a': 'x'}], None, []]
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in to_python(chunk)]
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column)
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    if pa.types.is_integer(kind) and not column.null_count:
        return column.to_numpy(zero_copy_only=False).tolist()
    return column.to_pylist()


def _lists(column: pa.ListArray) -> list[Any]:
    if not len(column):
        return []
    bounds = column.offsets.to_numpy().tolist()
    first = bounds[0]
    leaves = to_python(column.values.slice(first, bounds[-1] - first))
    found: list[Any] = [leaves[start - first : end - first] for start, end in zip(bounds, bounds[1:], strict=False)]
    return _without_null(column, found)


def _structs(column: pa.StructArray) -> list[Any]:
    names = [field.name for field in column.type]
    if not names:
        return column.to_pylist()
    fields = [to_python(column.field(index)) for index in range(len(names))]
    return _without_null(column, [dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)])


def _without_null(column: pa.Array, found: list[Any]) -> list[Any]:
    if not column.null_count:
        return found
    return [value if valid else None for value, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
