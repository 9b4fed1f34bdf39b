"""Entry points of commands and recipes: one-line errors and a meaningful exit status instead of a traceback.

A program that imports this module first also ends with one line when Ctrl-C interrupts its other imports.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

FAILED, REFUSED, FINDINGS, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 3, 130, 141, 143
_NOTHING_LEFT = ", no incomplete file is left: run the same command again"
_received: set[int] = set()  # SIGINT, after Ctrl-C


def _is_other_rank() -> bool:
    """Return whether rank 0, another process, prints the messages."""
    rank = os.environ.get("RANK", "0")
    return rank.isdecimal() and int(rank) > 0


class _Terminated(BaseException):
    """SIGTERM as an exception, so that temporary files are removed."""


class _DroppedSignals:
    """Sends a signal again if Python drops its exception, as it does in `__del__`, while a command runs.

    Attributes:
        is_running: Whether a command runs. Before it `_received` is enough, and after it there is nothing to end.
        under_way: Number of exceptions that handlers have raised and Python has not dropped.
        timer: Sends the signal again.
    """

    def __init__(self) -> None:
        self.is_running = False
        self.under_way = 0
        self.timer: threading.Timer | None = None

    def start(self) -> None:
        self.is_running, self.under_way = True, 0

    def stop(self) -> None:
        self.is_running = False
        if self.timer is not None:
            self.timer.cancel()

    def hook(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Take the place of `sys.unraisablehook`; print exceptions that no handler raised."""
        number = {KeyboardInterrupt: signal.SIGINT, _Terminated: signal.SIGTERM}.get(unraisable.exc_type)
        if number is None or not (self.is_running and self.under_way):
            sys.__unraisablehook__(unraisable)
            return
        self.under_way -= 1
        if not self.under_way:  # no other one ends the command
            # Later: an exception raised in this hook would be dropped too.
            self.timer = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, number))
            self.timer.daemon = True
            self.timer.start()


_dropped = _DroppedSignals()


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt and remember it: imports of compiled modules may end with another exception instead."""
    _received.add(number)
    _dropped.under_way += 1
    raise KeyboardInterrupt


def _end_interrupted(kind: type[BaseException], error: BaseException, stack: object) -> None:
    """End with one line if Ctrl-C ends the program before its command starts; print other exceptions."""
    if not _received and not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, stack)  # type: ignore[arg-type]
        return
    if not _is_other_rank() and sys.stderr is not None:
        print(f"interrupted{_NOTHING_LEFT}", file=sys.stderr, flush=True)
    sys.exit(INTERRUPTED)


# Before the imports below, during which Ctrl-C may come. An interpreter that a user types into keeps its own.
if not hasattr(sys, "ps1") and not sys.flags.interactive:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _end_interrupted
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _dropped.hook
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _interrupt)
        except ValueError:
            pass  # only the main thread may set handlers

import contextlib
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from dair_hf.errors import (
    BeliefTextWarning,
    DataError,
    NonFiniteLossError,
    SlotNameWarning,
    UndefinedMetricWarning,
    is_out_of_memory,
)
from dair_hf.io.files import is_disk_full, mount_point_and_free_bytes
from dair_hf.io.folders import claimed_folders, release_unused_folders

_HTTP_CLIENTS = {"httpx", "httpx2", "requests", "urllib3"}
# Seconds that other ranks wait before printing an error, so that rank 0 can print the same one and end them.
GRACE = 15.0


def exit_status(main: Callable[[], int | None]) -> int:
    """Run a command and return its exit status; print errors that a user can cause as one line on stderr.

    Args:
        main: The command; returns an exit status, or None for 0.

    Returns:
        0: success. 1: unexpected error; the line names a file with the traceback. 2: invalid input, or the run stopped;
        the line says where, what, and what to do. 3: findings, of a command that was asked to fail on them. 130 and
        143: ended by SIGINT (Ctrl-C) or SIGTERM. 141: the reader of the output, such as `head`, closed the pipe;
        nothing is printed.
    """
    return _run(main)[0]


def run_recipe(main: Callable[[], int | None]) -> None:
    """Run a recipe; unless it succeeds, end the process with the exit status described in `exit_status`."""

    def checked() -> int | None:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            value = os.environ.get(name, "0")
            try:
                int(value)
            except ValueError as error:
                raise DataError(
                    f"environment variable {name}={value!r}: must be a whole number; unset it, and start several "
                    "processes with accelerate launch"
                ) from error
        return main()

    status, message, cause = _run(checked)
    if status:
        ended = SystemExit(message)
        ended.code = status
        raise ended from cause


def _run(main: Callable[[], int | None]) -> tuple[int, str, BaseException | None]:
    """Return exit status, printed line and exception of a command."""
    try:
        if _received:  # an import has swallowed it
            raise KeyboardInterrupt
        with _sigterm_as_exception(), _unused_folders_released(), _own_warnings_in_one_line():
            for stream in (sys.stdout, sys.stderr):
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(errors="backslashreplace")
            _dropped.start()
            try:
                status = main() or 0
            finally:
                _dropped.stop()
            sys.stdout.flush()
            return status, "", None
    except (KeyboardInterrupt, _Terminated, Exception) as error:
        return *_reported(error), error
    finally:
        _received.clear()


def _reported(error: BaseException) -> tuple[int, str]:
    """Print the line on the exception that ended a command; return exit status and line."""
    if isinstance(error, (KeyboardInterrupt, _Terminated)) or _received:
        status, verb = (TERMINATED, "ended") if isinstance(error, _Terminated) else (INTERRUPTED, "interrupted")
        folders = f"; it goes on with what {' and '.join(claimed_folders())} holds" if claimed_folders() else ""
        return status, _print_error(f"{verb}{_NOTHING_LEFT}{folders}", wait=False)
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return BROKEN_PIPE, ""
    if isinstance(error, (DataError, NonFiniteLossError)):
        return REFUSED, _print_error(f"error: {error}")
    if isinstance(error, OSError):
        _discard_stdout()
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_working_folder_gone():
        line = "the working folder no longer exists; change to another folder, and run the same command there"
        return REFUSED, _print_error(f"error: {line}")
    names_a_file = isinstance(error, OSError) and error.filename is not None
    if names_a_file or is_disk_full(error) or is_out_of_memory(error) or _is_network_failure(error):
        return REFUSED, _print_error(f"error: {_describe(error)}")
    return FAILED, _print_error(f"error: {_describe(error)} ({_save_traceback(error)})")


def _is_working_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _describe(error: BaseException) -> str:
    """Describe an error of another library in one line."""
    text = " ".join(str(error).split())
    if is_out_of_memory(error):
        return f"out of memory ({text.partition('. ')[0]}); use smaller batches, or gradient_cache for a large one"
    if is_disk_full(error):
        working_folder = [] if _is_working_folder_gone() else [os.getcwd()]
        candidates = [*claimed_folders(), tempfile.gettempdir(), os.path.expanduser("~"), *working_folder]
        disks = dict(mount_point_and_free_bytes(path) for path in candidates)
        full = ", ".join(disk for disk, free in disks.items() if free < 2**20) or "that is written to"
        return f"{text}: the disk {full} is full; free some space and run the same command again"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path"
    if _is_network_failure(error):
        return f"{text}; check the name and the network, or give a local folder"
    return f"{type(error).__name__}: {text}"


def _is_network_failure(error: BaseException) -> bool:
    """Return whether the Hub, or another host, refused a request or could not be reached."""
    cause: BaseException | None = error
    for _ in range(10):
        packages = {kind.__module__.partition(".")[0] for kind in type(cause).__mro__}
        if isinstance(cause, socket.gaierror) or packages & _HTTP_CLIENTS:
            return True
        if not isinstance(cause, OSError):
            return False
        if "huggingface_hub" in packages:
            return True
        cause = cause.__cause__ or cause.__context__  # transformers wraps it in a plain OSError
    return False


def _print_error(line: str, wait: bool = True) -> str:
    """Print a line to stderr and return it; ranks other than 0 wait first, since rank 0 may print the same one."""
    if _is_other_rank():
        if not wait:
            return line
        time.sleep(GRACE)
    with contextlib.suppress(OSError):
        _close_progress_bars()
        print(line, file=sys.stderr, flush=True)
    return line


@contextlib.contextmanager
def _own_warnings_in_one_line() -> Iterator[None]:
    """Print our warnings as one line, without file and source line, which mean nothing to the user of a command."""
    own = BeliefTextWarning, SlotNameWarning, UndefinedMetricWarning
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if not issubclass(category, own):
            others(message, category, *place, **options)
        elif not _is_other_rank() and sys.stderr is not None:
            with contextlib.suppress(OSError):  # as Python does: a warning is no reason to end
                _print_between_bars(f"warning: {message}")

    with warnings.catch_warnings():
        for category in () if sys.warnoptions else own:  # python -W and PYTHONWARNINGS decide, where they are given
            warnings.simplefilter("default", category)
        warnings.showwarning = show
        yield


def _open_progress_bars() -> list[Any]:
    return list(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()))


def _close_progress_bars() -> None:
    """Close the progress bars that an exception left open, such as Trainer's, since they end their line only then."""
    for bar in _open_progress_bars():
        bar.close()


def _print_between_bars(line: str) -> None:
    """Print a line to stderr; progress bars that are open move below it."""
    if bars := _open_progress_bars():
        bars[0].write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr)


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


@contextlib.contextmanager
def _unused_folders_released() -> Iterator[None]:
    try:
        yield
    except BaseException:
        release_unused_folders()
        raise


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Raise `_Terminated` on SIGTERM, unless another handler is installed."""
    is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread() or not is_default:
        yield
        return

    owner = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            _dropped.under_way += 1
            raise _Terminated
        # A forked data loader worker has nothing to remove, and would print a traceback.
        os._exit(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
