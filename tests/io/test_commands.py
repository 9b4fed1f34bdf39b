"""Errors that a user can cause end a command with one line and a specific exit status; `--help` works everywhere."""

from __future__ import annotations

from dair_hf.io.commands import exit_status, run_recipe

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
from dair_hf.io.folders import claim_folder, claimed_folders
from tests.fixtures.paths import ROOT

SCRIPTS = [
    *(path for folder in ("recipes", "data_scripts", "benchmarks") for path in sorted((ROOT / folder).glob("*.py"))),
    *sorted((ROOT / "dair_hf").rglob("__main__.py")),
    *(ROOT / "reproduction" / name for name in ("ledger.py", "results.py", "theory.py")),
]
# Modules that other scripts import.
NOT_COMMANDS = {"measuring", "memory", "sources", "workloads"}


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
        (raising(OSError(28, "No space left on device")), 2, "error: [Errno 28] No space left on device: the disk "),
        (lambda: repr(NESTED), 1, "error: RecursionError: maximum recursion depth exceeded"),
        (raising(MemoryError()), 2, "error: out of memory "),
        (raising(RuntimeError("CUDA out of memory. Tried to")), 2, "error: out of memory (CUDA out of memory); use sm"),
        (raising(KeyboardInterrupt()), 130, "interrupted, no incomplete file is left: run the same command again"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 143, "ended, no incomplete file is left: run the same comm"),
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
    before = signal.getsignal(signal.SIGTERM)
    assert exit_status(main) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(line) and shown.err.count("\n") == bool(line)
    assert signal.getsignal(signal.SIGTERM) == before
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


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_rank_that_is_no_number_is_named_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "x")
    monkeypatch.setattr("dair_hf.io.commands.GRACE", 60.0)
    with pytest.raises(SystemExit) as ended:
        run_recipe(lambda: None)
    assert ended.value.code == 2
    line = f"error: environment variable {name}='x': must be a whole number; unset it, and start several processes "
    assert capsys.readouterr().err == line + "with accelerate launch\n"


def test_a_removed_working_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    line = "the working folder no longer exists; change to another folder, and run the same command there"
    assert exit_status(lambda: print(os.path.realpath("data"))) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert exit_status(raising(KeyboardInterrupt())) == 130
    assert exit_status(raising(OSError(28, "No space left on device"))) == 2


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
    assert [Path(folder).name for folder in claimed_folders() if folder.startswith(str(tmp_path))] == ["used"]


# Prints more than fits into a pipe, or works in a folder until it is stopped.
COMMAND = """
import os, sys, time
from pathlib import Path
from dair_hf.io.commands import exit_status
from dair_hf.io.files import atomic_path
from dair_hf.io.folders import claim_folder
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_command_with_one_line_and_no_incomplete_file(tmp_path: Path, number: signal.Signals) -> None:
    with start("out", stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        process.send_signal(number)
        _, line = process.communicate()
    verb = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended"}[number]
    assert line.decode() == (
        f"{verb}, no incomplete file is left: run the same command again; it goes on with what out holds\n"
    )
    assert process.returncode == 128 + number
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"dair_hf.lock", "record.json"}


def test_an_open_progress_bar_ends_its_line_first() -> None:
    code = """
import sys
from tqdm.auto import tqdm
from dair_hf.io.commands import exit_status
bars = []
def main():
    bars.append(tqdm(total=3, file=sys.stderr))
    bars[0].update()
    raise KeyboardInterrupt
sys.exit(exit_status(main))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, text=True, timeout=40)
    *bar, line = done.stderr.splitlines()
    assert "1/3" in bar[-1] and line == "interrupted, no incomplete file is left: run the same command again"


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


@pytest.mark.parametrize(("option", "status"), [("ignore", 0), ("error", 1)])
def test_warnings_follow_the_option_of_python(option: str, status: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", option, "-c", WARNING]
    if option == "error":  # of libraries, too: only our own here
        command[2] = "error:nothing to measure"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == status
    assert ("nothing to measure" in done.stderr) == (option == "error")


# Python drops exceptions in `__del__`, and prints "Exception ignored in".
DELETED = """
import os, signal, sys, time
from dair_hf.io.commands import exit_status
class Slow:
    def __del__(self):
        os.write(1, b"x")
        time.sleep(60)
class Signals:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[2]))
        time.sleep(60)
def main():
    if sys.argv[1] == "signal":
        Slow()
        time.sleep(60)
    elif sys.argv[1] == "again":
        try:
            os.write(1, b"x")
            time.sleep(60)
        finally:
            Signals()
            time.sleep(0.2)
            os.write(1, b"clean")
    elif sys.argv[1] == "late":
        Signals()
    elif sys.argv[1] == "own":
        class Interrupts:
            def __del__(self):
                raise KeyboardInterrupt
        Interrupts()
        time.sleep(0.2)
    else:
        class Faulty:
            def __del__(self):
                raise ValueError("own")
        Faulty()
status = exit_status(main)
time.sleep(0.1)  # what a late signal would end
sys.exit(status)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_whose_exception_python_drops_ends_the_command(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DELETED, "signal"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        process.send_signal(number)
        _, printed = process.communicate(timeout=40)
    verb = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended"}[number]
    assert printed.decode() == f"{verb}, no incomplete file is left: run the same command again\n"
    assert process.returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_that_python_drops_leaves_the_clean_up_alone(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DELETED, "again", str(int(number))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        process.send_signal(number)
        written, printed = process.communicate(timeout=40)
    assert written == b"clean" and printed.count(b"\n") == 1
    assert process.returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_python_drops_at_the_very_end_is_late(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DELETED, "late", str(int(number))]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=40)
    assert (done.returncode, done.stderr) == (0, b"")


def test_interrupt_without_a_signal_is_printed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", DELETED, "own"], capture_output=True, env=environment, timeout=40)
    assert done.returncode == 0 and done.stderr.startswith(b"Exception ignored in")


def test_other_dropped_exceptions_are_printed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", DELETED, "error"], capture_output=True, env=environment, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith("Exception ignored in") and "ValueError: own" in done.stderr


@pytest.mark.parametrize(
    ("module", "is_command"),
    [
        ("dair_hf.io.commands", True),
        ("dair_hf.metrics.command_line", True),
        ("dair_hf.errors", False),
        ("dair_hf", False),
    ],
)
def test_ctrl_c_during_the_imports_of_a_command_prints_one_line(tmp_path: Path, module: str, is_command: bool) -> None:
    (tmp_path / "program.py").write_text(f"import atexit, {module}\natexit.register(print, 'exited')\nimport slow\n")
    (tmp_path / "slow.py").write_text("import time\nprint(end='x', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(tmp_path / "program.py")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
        rest, printed = process.communicate()
    assert rest == b"exited\n"
    assert process.returncode == (130 if is_command else -signal.SIGINT)
    if is_command:
        assert printed.decode() == "interrupted, no incomplete file is left: run the same command again\n"
    else:
        assert printed.startswith(b"Traceback")


PROGRAM = """
import sys
import builtins
real = builtins.__import__
def slow(name, *rest):
    if name == {name!r}:
        builtins.__import__ = real
        print(end="x", flush=True)
        import time
        {wait}
    return real(name, *rest)
builtins.__import__ = slow
from dair_hf.io.commands import run_recipe
def main():
    import slow_module
run_recipe(main)
"""
WAITS = "time.sleep(60)"
SWALLOWS = """
        try:
            time.sleep(60)
        except BaseException:
            pass"""
# As compiled modules do, and packages that import them lazily.
REPLACES = f"{SWALLOWS}\n        raise ImportError('failed')"


@pytest.mark.parametrize("name", ["socket", "slow_module"])  # of the module itself, and of the command
@pytest.mark.parametrize("wait", [WAITS, SWALLOWS, REPLACES], ids=["plain", "swallowed", "replaced"])
def test_ctrl_c_during_any_import_prints_one_line(name: str, wait: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM.format(name=name, wait=wait)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate()
    assert printed.decode() == "interrupted, no incomplete file is left: run the same command again\n"
    assert process.returncode == 130


def test_an_interpreter_that_a_user_types_into_keeps_its_ctrl_c() -> None:
    code = "import signal, sys; {}; import dair_hf.io.commands; print(sys.excepthook is sys.__excepthook__, "
    code += "signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for prompt, kept in (("sys.ps1 = '>>> '", "True True"), ("pass", "False False")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code.format(prompt)]
        assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip() == kept


def test_other_exceptions_of_a_program_keep_their_traceback(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import dair_hf.io.commands\nraise ValueError('own')\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, env=environment)
    assert done.returncode == 1 and done.stderr.startswith(b"Traceback") and done.stderr.endswith(b"ValueError: own\n")


@pytest.mark.parametrize("value", ["-1", "0"])
def test_a_rank_of_minus_1_means_one_process(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", value)
    run_recipe(lambda: None)


def test_every_command_handles_ctrl_c_before_its_slow_imports() -> None:
    for path in SCRIPTS:
        modules = re.findall(r"^from ([\w.]+) import|^import [\w.]+$", path.read_text(), re.MULTILINE)
        if path.parent.name == "commands":
            continue  # `main` imports what a subcommand needs when it runs
        if path.stem == "__main__":
            # The command line of the metrics imports it first.
            assert [name for name in modules if name.startswith("dair_hf.metrics")][0] == "dair_hf.metrics", path
        elif path.stem not in NOT_COMMANDS:
            assert modules[:2] == ["__future__", "dair_hf.io.commands"], path


def test_closed_pipe_and_full_disk_of_stdout() -> None:
    with start("print", stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read(5) == b"line\n"
        process.stdout.close()
        assert process.stderr and process.stderr.read() == b""
    assert process.returncode == 141
    with open("/dev/full", "wb") as full, start("print", stdout=full) as process:
        _, line = process.communicate()
    assert line.startswith(b"error: [Errno 28] No space left on device: the disk ")
    assert (process.returncode, line.count(b"\n")) == (2, 1)
