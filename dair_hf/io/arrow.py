"""Pause of the garbage collector while rows are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Disable cyclic garbage collection while many small objects without cycles are created.

    Tens of thousands of row dictionaries trigger frequent collections of the whole heap, which take about half the
    time of reading and rewriting rows.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
