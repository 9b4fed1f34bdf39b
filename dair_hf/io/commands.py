"""Entry points of commands and recipes: one-line errors and a meaningful exit status instead of a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from dair_hf.errors import (
    BeliefTextWarning,
    DataError,
    NonFiniteLossError,
    SlotNameWarning,
    UndefinedMetricWarning,
    is_out_of_memory,
)
from dair_hf.io.folders import release_unused_folders

FAILED, REFUSED, FINDINGS, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141
_NETWORK_LIBRARIES = {"httpx", "httpx2", "requests", "urllib3", "huggingface_hub"}
# Seconds that other ranks wait before printing an error, so that rank 0 can print the same one and end them.
GRACE = 15.0


def exit_status(main: Callable[[], int | None]) -> int:
    """Run a command and return its exit status; print errors that a user can cause as one line on stderr.

    0: success. 1: unexpected error; the line names a file with the traceback. 2: invalid input, or the run stopped.
    3: findings, of a command that was asked to fail on them. 130: Ctrl-C. 141: the reader of the output, such as
    `head`, closed the pipe; nothing is printed.
    """
    return _run(main)[0]


def run_recipe(main: Callable[[], int | None]) -> None:
    """Run a recipe; unless it succeeds, end the process with the exit status described in `exit_status`."""
    status, message, cause = _run(main)
    if status:
        ended = SystemExit(message)
        ended.code = status
        raise ended from cause


def printable(text: str) -> str:
    """Escape the control characters of a text, which could send commands to a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text)


def align(rows: Sequence[Sequence[object]]) -> list[str]:
    """Return one line for each row: the first cell on the left, the others on the right, two spaces apart."""
    cells = [list(map(str, row)) for row in rows]
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [
        f"{label:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(row, others, strict=True))
        for label, *row in cells
    ]


def _run(main: Callable[[], int | None]) -> tuple[int, str, BaseException | None]:
    """Return exit status, printed line and exception of a command."""
    try:
        with contextlib.ExitStack() as unused, _own_warnings_in_one_line():
            unused.callback(release_unused_folders)  # unless the command succeeds
            for stream in (sys.stdout, sys.stderr):
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(errors="backslashreplace")
            status = main() or 0
            sys.stdout.flush()
            unused.pop_all()
            return status, "", None
    except (KeyboardInterrupt, Exception) as error:
        return *_reported(error), error


def _reported(error: BaseException) -> tuple[int, str]:
    """Print the line on the exception that ended a command; return exit status and line."""
    if isinstance(error, KeyboardInterrupt):
        if _is_other_rank():
            return INTERRUPTED, ""
        return INTERRUPTED, _print_error("interrupted, no incomplete file is left: run the same command again")
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return BROKEN_PIPE, ""
    if isinstance(error, (DataError, NonFiniteLossError)):
        return REFUSED, _print_error(f"error: {error}")
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        _discard_stdout()
        if error.filename is not None:
            return REFUSED, _print_error(f"error: {error.filename}: {error.strerror}; check the path")
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return REFUSED, _print_error(f"error: {text}; free some space and run the same command again")
    if is_out_of_memory(error):
        remedy = "use smaller batches, or gradient_cache for a large one"
        return REFUSED, _print_error(f"error: out of memory ({text.partition('. ')[0]}); {remedy}")
    if _is_network_failure(error):
        return REFUSED, _print_error(f"error: {text}; check the name and the network, or give a local folder")
    return FAILED, _print_error(f"error: {type(error).__name__}: {text} ({_save_traceback(error)})")


def _is_network_failure(error: BaseException | None) -> bool:
    """Return whether the Hub, or another host, refused a request or could not be reached."""
    while isinstance(error, Exception):
        packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if isinstance(error, socket.gaierror) or packages & _NETWORK_LIBRARIES:
            return True
        # transformers wraps it in a plain OSError
        error = error.__cause__ or error.__context__ if isinstance(error, OSError) else None
    return False


def _is_other_rank() -> bool:
    """Return whether rank 0, another process, prints the messages."""
    return os.environ.get("RANK", "0") != "0"


def _print_error(text: str) -> str:
    """Print to stderr and return the text; ranks other than 0 wait first, since rank 0 may print the same."""
    text = "\n".join(map(printable, text.split("\n")))
    if _is_other_rank():
        time.sleep(GRACE)
    with contextlib.suppress(OSError):
        _close_progress_bars()
        print(text, file=sys.stderr, flush=True)
    return text


@contextlib.contextmanager
def _own_warnings_in_one_line() -> Iterator[None]:
    """Print our warnings as one line, without file and source line, which mean nothing to the user of a command."""
    own = BeliefTextWarning, SlotNameWarning, UndefinedMetricWarning
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if not issubclass(category, own):
            others(message, category, *place, **options)
        elif not _is_other_rank() and sys.stderr is not None:
            with contextlib.suppress(OSError):  # as in Python, a failing warning does not end the program
                tqdm.write(printable(f"warning: {message}"), file=sys.stderr)  # above open bars

    with warnings.catch_warnings():
        for category in () if sys.warnoptions else own:  # python -W and PYTHONWARNINGS decide, where they are given
            warnings.simplefilter("default", category)
        warnings.showwarning = show
        yield


def _close_progress_bars() -> None:
    """Close the progress bars that an exception left open, such as Trainer's, since they end their line only then."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()


def _save_traceback(error: BaseException) -> str:
    """Write the traceback of an exception to a file, and return a note that names it."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="dair_hf_traceback_", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        traceback.print_exception(error)
        return "the traceback is above"
    return f"traceback: {path}"


def _discard_stdout() -> None:
    """Discard buffered output that cannot be written; otherwise the interpreter would report it again on exit."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
