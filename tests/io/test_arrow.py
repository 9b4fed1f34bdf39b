"""Nested Arrow columns as Python values, and the pause of the garbage collector while they are made."""

from __future__ import annotations

import gc
import random
from typing import Any

import pyarrow as pa
import pytest

from dair_hf.io.arrow import paused_gc, to_python


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[{"a": "x", "b": [1, 2]}], None, [], [{"a": None, "b": None}, None, {"a": "ü", "b": []}]]),
        pa.array([[1, None], [2]]),
        pa.array([], pa.list_(pa.string())),
        pa.array([None, None], pa.list_(pa.struct({"a": pa.string()}))),
        pa.array([1.5, None]),
        pa.array([{}, None], pa.struct({})),
        pa.array([["a"], None], pa.large_list(pa.large_string())),
    ],
)
def test_columns_are_read_as_by_arrow(column: Any) -> None:
    for part in (
        column,
        column[1:],
        column[1:2],
        pa.chunked_array([column[:1], column[1:]]),
        column.slice(len(column)),
    ):
        assert to_python(part) == part.to_pylist()
    shuffled = column.take(pa.array(random.Random(0).sample(range(len(column)), len(column)), pa.int64()))
    assert to_python(shuffled) == shuffled.to_pylist()


def test_the_garbage_collector_is_restored_after_a_pause() -> None:
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), paused_gc(), paused_gc():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
