"""Run a command or a recipe: one line in place of a traceback, and an exit status that says what happened."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.io.files import disk_of, is_disk_full
from dair_hf.io.folders import claimed_folders, leave_unused_folders

FAILED, REFUSED, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 130, 141, 143
_HTTP_CLIENTS = {"httpx", "httpx2", "requests", "urllib3"}
# Seconds in which the first rank, if it has the same error, ends and takes the others with it.
GRACE = 15.0


class _Terminated(BaseException):
    """SIGTERM, so that what is half-written is removed on the way out."""


def exit_status(main: Callable[[], int | None]) -> int:
    """Run a command; whatever a user can cause ends it with one line on stderr.

    Args:
        main: The command; it returns an exit status, or None for 0.

    Returns:
        0: done. 1: an unexpected error, whose traceback is in a file that the line names. 2: refused, or stopped; the
        line says where, what, and what to do. 130 and 143: ended by SIGINT (Ctrl-C) and SIGTERM. 141: the reader of
        the output went away, as `head` does; nothing is said.
    """
    return _run(main)[0]


def run_recipe(main: Callable[[], None]) -> None:
    """Run a recipe and end the process as `exit_status` says, unless all went well.

    Args:
        main: The recipe.
    """
    status, message, cause = _run(main)
    if status:
        ended = SystemExit(message)
        ended.code = status
        raise ended from cause


def _run(main: Callable[[], int | None]) -> tuple[int, str, BaseException | None]:
    """Exit status, the line that was said, and what caused it."""
    try:
        with _sigterm_raised(), _unused_folders_left():
            for stream in (sys.stdout, sys.stderr):
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(errors="backslashreplace")
            status = main() or 0
            sys.stdout.flush()
            return status, "", None
    except (KeyboardInterrupt, _Terminated) as error:
        status, word = (INTERRUPTED, "interrupted") if isinstance(error, KeyboardInterrupt) else (TERMINATED, "ended")
        kept = f"; it goes on from {' and '.join(claimed_folders())}" if claimed_folders() else ""
        return (
            status,
            _say(f"{word}, nothing half-written is left: run the same command again{kept}", wait=False),
            error,
        )
    except BrokenPipeError as error:
        _silence_stdout()
        return BROKEN_PIPE, "", error
    except (DataError, NonFiniteLossError) as error:
        return REFUSED, _say(f"error: {error}"), error
    except Exception as error:
        if isinstance(error, OSError):
            _silence_stdout()
        names_a_file = isinstance(error, OSError) and error.filename is not None
        if names_a_file or is_disk_full(error) or _is_out_of_memory(error) or _is_network_failure(error):
            return REFUSED, _say(f"error: {_describe(error)}"), error
        return FAILED, _say(f"error: {_describe(error)} ({_keep_traceback()})"), error


def _describe(error: BaseException) -> str:
    """An error of another library in one line."""
    text = " ".join(str(error).split())
    if _is_out_of_memory(error):
        return f"out of memory ({text.partition('. ')[0]}); use smaller batches, or gradient_cache for a large one"
    if is_disk_full(error):
        places = [*claimed_folders(), tempfile.gettempdir(), os.path.expanduser("~"), os.getcwd()]
        disks = dict(disk_of(place) for place in places)
        full = ", ".join(disk for disk, free in disks.items() if free < 2**20) or "that is written to"
        return f"{text}: the disk {full} is full; free some space and run the same command again"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path"
    if _is_network_failure(error):
        return f"{text}; check the name and the network, or give a local folder"
    return f"{type(error).__name__}: {text}"


def _is_out_of_memory(error: BaseException) -> bool:
    """MemoryError, or what torch raises for a device or for the CPU."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def _is_network_failure(error: BaseException) -> bool:
    """Tell whether the Hub, or another host, refused or could not be reached."""
    found: BaseException | None = error
    for _ in range(10):
        roots = {kind.__module__.partition(".")[0] for kind in type(found).__mro__}
        if isinstance(found, socket.gaierror) or roots & _HTTP_CLIENTS:
            return True
        if not isinstance(found, OSError):
            return False
        if "huggingface_hub" in roots:
            return True
        found = found.__cause__ or found.__context__  # transformers makes a nameless OSError of it
    return False


def _say(line: str, wait: bool = True) -> str:
    """Print a line to stderr; of several processes with the same error the first speaks."""
    if os.environ.get("RANK", "0") != "0":
        if not wait:
            return line
        time.sleep(GRACE)
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
    return line


def _keep_traceback() -> str:
    """Write the traceback of the error at hand to a file, and return where it is."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="dair_hf_traceback_", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exc(file=file)
    except OSError:
        traceback.print_exc()
        return "the traceback is above"
    return f"traceback: {path}"


def _silence_stdout() -> None:
    """Drop what stdout still holds: the interpreter would try to write it once more at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _unused_folders_left() -> Iterator[None]:
    try:
        yield
    except BaseException:
        leave_unused_folders()
        raise


@contextlib.contextmanager
def _sigterm_raised() -> Iterator[None]:
    """Make SIGTERM an exception, where nobody else has a use for it."""
    usual = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not usual:
        yield
        return

    owner = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise _Terminated
        # A forked worker of a data loader has nothing to remove, and would print a traceback.
        os._exit(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
