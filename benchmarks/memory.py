"""Peak memory of a computation on Linux, measured in a new process."""

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
    """Return the resident memory now (VmRSS) or its peak (VmHWM), in bytes."""
    match = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert match is not None
    return 1024 * int(match[1])


def peak_above_start(run: Callable[[], object]) -> int:
    """Return the rise of resident memory during `run()`, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that the allocator keeps would be used again without a rise
    CLEAR.write_text(RESET_PEAK)
    start = resident()
    run()
    return resident("VmHWM") - start


def _measure(build: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> int:
    run = build(*arguments)
    run()  # allocates gradients and workspaces
    return peak_above_start(run)


def peak_memory(build: Callable[..., Callable[[], object]], *arguments: Any) -> int:
    """Return the memory rise during the second call of `build(*arguments)()`, in bytes.

    Args:
        build: Function of a module that creates model and data, which are not measured, and returns the function to
            measure.
        *arguments: Its arguments.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, build, arguments).result()
