"""Errors that a user can cause end a command with one line and a specific exit status; `--help` works everywhere."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.io.commands import align, exit_status, run_recipe
from dair_hf.io.files import claim_folder
from tests.fixtures.paths import ROOT

SCRIPTS = [
    *(path for folder in ("recipes", "data_scripts", "benchmarks") for path in sorted((ROOT / folder).glob("*.py"))),
    *sorted((ROOT / "dair_hf").rglob("__main__.py")),
    *(ROOT / "reproduction" / name for name in ("ledger.py", "results.py", "theory.py")),
]
# Modules that other scripts import.
NOT_COMMANDS = {"downloads", "measuring", "memory", "sources", "workloads"}


@pytest.mark.parametrize(
    "path", [path for path in SCRIPTS if path.stem not in NOT_COMMANDS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_help_is_shown(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert shown.out.strip().lower().startswith("usage: ") and "--" in shown.out
    assert (re.findall(r"%\(|%%", shown.out), shown.err) == ([], "")


def raising(error: BaseException) -> Any:
    def main() -> None:
        raise error

    return main


def unreachable() -> None:
    try:
        raise LocalEntryNotFoundError("not in the cache")
    except OSError as error:
        raise OSError("We couldn't connect") from error


NESTED: list[Any] = []
for _ in range(10_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("main", "status", "line"),
    [
        (lambda: None, 0, ""),
        (lambda: 3, 3, ""),
        (raising(DataError("a.json: line 3")), 2, "error: a.json: line 3\n"),
        (raising(NonFiniteLossError("rows 1")), 2, "error: rows 1\n"),
        (lambda: open("no/where"), 2, "error: no/where: No such file or directory; check the path\n"),
        (lambda: open("/"), 2, "error: /: Is a directory; check the path\n"),
        (raising(OSError("several\n  lines")), 1, "error: OSError: several lines (traceback: "),
        (
            raising(OfflineModeIsEnabled("404\n x")),
            2,
            "error: 404 x; check the name and the network, or give a local folder",
        ),
        (unreachable, 2, "error: We couldn't connect; check the name and the network"),
        (raising(socket.gaierror(-2, "Name not known")), 2, "error: [Errno -2] Name not known; check the name and the"),
        (raising(OSError(28, "No space left on device")), 2, "error: [Errno 28] No space left on device; free "),
        (lambda: repr(NESTED), 1, "error: RecursionError: maximum recursion depth exceeded"),
        (raising(MemoryError()), 2, "error: out of memory "),
        (raising(RuntimeError("CUDA out of memory. Tried to")), 2, "error: out of memory (CUDA out of memory); use sm"),
        (raising(KeyboardInterrupt()), 130, "interrupted, no incomplete file is left: run the same command again"),
        (raising(BrokenPipeError()), 141, ""),
    ],
)
def test_errors_print_one_line_and_set_the_exit_status(
    main: Any,
    status: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_status(main) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(line) and shown.err.count("\n") == bool(line)
    if status:
        with pytest.raises(SystemExit) as ended:
            run_recipe(main)
        assert ended.value.code == status
        assert str(ended.value).split(" (traceback: ")[0] == shown.err.rstrip("\n").split(" (traceback: ")[0]
    else:
        run_recipe(lambda: main() and None)


def test_traceback_of_an_unexpected_error_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert exit_status(lambda: int("x")) == 1
    (saved,) = tmp_path.iterdir()
    line = f"error: ValueError: invalid literal for int() with base 10: 'x' (traceback: {saved})\n"
    assert capsys.readouterr().err == line
    assert "in <lambda>\n" in saved.read_text()
    # Other ranks print an error only if rank 0 has not ended them.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("dair_hf.io.commands.GRACE", 0.0)
    assert exit_status(raising(DataError("on this rank"))) == 2
    assert exit_status(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: on this rank\n"


def test_refused_recipe_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    def main() -> None:
        for name in ("new/folder", "empty", "used"):
            claim_folder(tmp_path / name)
        (tmp_path / "used" / "record.json").write_text("{}")
        raise DataError("refused")

    assert exit_status(main) == 2
    paths = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert paths == {"new", "empty", "used", "used/dair_hf.lock", "used/record.json"}


# Prints more than fits into a pipe, or works in a folder until it is stopped.
COMMAND = """
import os, sys, time
from pathlib import Path
from dair_hf.io.commands import exit_status
from dair_hf.io.files import atomic_path
from dair_hf.io.files import claim_folder
def main():
    if sys.argv[1] == "print":
        print("line\\n" * 100_000)
    else:
        claim_folder(sys.argv[1])
        Path(sys.argv[1], "record.json").touch()
        with atomic_path(Path(sys.argv[1], "half")) as path:
            path.write_text("half")
            os.write(1, b"x")
            time.sleep(60)
sys.exit(exit_status(main))
"""


def start(argument: object, **settings: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", COMMAND, str(argument)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **settings)


def test_ctrl_c_ends_the_command_with_one_line_and_no_incomplete_file(tmp_path: Path) -> None:
    # A command that a shell starts in the background ignores Ctrl-C, and so do the tests in it.
    unignored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with start("out", stdout=subprocess.PIPE, cwd=tmp_path, **unignored) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
        _, line = process.communicate()
    assert line.decode() == "interrupted, no incomplete file is left: run the same command again\n"
    assert process.returncode == 130
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"dair_hf.lock", "record.json"}


@pytest.mark.parametrize("kind", [DataError, ValueError, NonFiniteLossError])
def test_escapes_of_a_terminal_are_not_printed(kind: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(raising(kind("row \x1b]0;title\x07\x9b2J\r")))
    assert "title" in (printed := capsys.readouterr().err)
    assert all(character.isprintable() for character in printed.rstrip("\n"))


WARNING = """
import contextlib, sys, warnings
from tqdm.auto import tqdm
from dair_hf.errors import UndefinedMetricWarning
from dair_hf.io.commands import exit_status
def main():
    with tqdm(total=3) if "bar" in sys.argv else contextlib.nullcontext():
        warnings.warn("nothing to measure", UndefinedMetricWarning)
    print("done")
sys.exit(exit_status(main))
"""


@pytest.mark.parametrize("stderr", ["file", "full", "closed", "bar"])
def test_a_warning_is_one_line_and_never_ends_a_command(tmp_path: Path, stderr: str) -> None:
    target = {"full": "/dev/full", "closed": "&-"}.get(stderr, str(tmp_path / "said"))
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(WARNING)} {stderr} 2>{target}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n")
    if stderr in ("file", "bar"):
        said = (tmp_path / "said").read_text().replace("\r", "\n").splitlines()
        assert [line.strip() for line in said if "nothing" in line] == ["warning: nothing to measure"]


def test_closed_pipe_and_full_disk_of_stdout() -> None:
    with start("print", stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read(5) == b"line\n"
        process.stdout.close()
        assert process.stderr and process.stderr.read() == b""
    assert process.returncode == 141
    with open("/dev/full", "wb") as full, start("print", stdout=full) as process:
        _, line = process.communicate()
    assert line.startswith(b"error: [Errno 28] No space left on device")
    assert (process.returncode, line.count(b"\n")) == (2, 1)


def test_cells_are_aligned() -> None:
    assert align([["", "train", "v"], ["rows", 20, 1], ["a", "", "1.5 %"]]) == [
        "      train      v",
        "rows     20      1",
        "a            1.5 %",
    ]
    assert align([["alone"], ["a"]]) == ["alone", "a    "]
