"""The pause of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from dair_hf.io.records import paused_gc


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
