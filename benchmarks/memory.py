"""Peak memory of a computation on Linux, in a process of its own: what other variants left behind does not count."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): "reset the peak resident set size to the process's current resident set size"


def resident(field: str = "VmRSS") -> int:
    """Resident memory now (VmRSS) or its peak (VmHWM), bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def peak_above_start(run: Callable[[], object]) -> int:
    """How far resident memory rises above its start while `run` runs, bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator kept would be used again unseen
    CLEAR.write_text(RESET_PEAK)
    start = resident()
    run()
    return resident("VmHWM") - start


def _measure(build: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> int:
    run = build(*arguments)
    run()  # gradients and workspaces come into being
    return peak_above_start(run)


def peak_memory(build: Callable[..., Callable[[], object]], *arguments: Any) -> int:
    """Peak of the second run of `build(*arguments)()` above what the first one left, bytes.

    Args:
        build: A function of a module: makes model and data, which do not count, and returns what is measured.
        *arguments: Its arguments.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, build, arguments).result()
