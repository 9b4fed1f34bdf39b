"""`dair-hf`: help without slow imports, and the exit status of the examples in docs/recipes.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dair_hf import __version__
from dair_hf.commands import main
from dair_hf.io import commands
from tests.fixtures import saved_models, tiny
from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SUBCOMMANDS = ("compare", "evaluate", "prompts", "audit", "train", "jga")
# Each of them takes longer to import than all that `--help` needs.
SLOW = {"torch", "transformers", "datasets", "accelerate", "evaluate", "numpy", "pyarrow", "plotly", "rich"}


def imported_by(*arguments: str) -> tuple[int, set[str], str]:
    """Exit status, top-level modules and output of the command in a new process."""
    code = (
        "import json, sys; from dair_hf.commands.main import run\n"
        "try: status = run(sys.argv[1:])\n"
        "except SystemExit as ended: status = ended.code\n"
        "print(json.dumps([status, [name for name in sys.modules if '.' not in name]]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=tiny.child_environment()
    )
    status, modules = json.loads(done.stderr.splitlines()[-1])
    return status, set(modules), done.stdout


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in SUBCOMMANDS)], ids=" ".join)
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    status, modules, shown = imported_by(*arguments)
    assert (status, modules & SLOW) == (0, set())
    assert shown.lower().startswith("usage: ") and "--help" in shown
    if "jga" not in arguments:
        assert "Exit status: 0 success" in shown and "3 findings of" in " ".join(shown.split())


def test_an_audit_by_named_columns_imports_nothing_slow_and_the_rule_sees_what_is(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"question": "a", "augmented_question": "b"}\n')
    audit = ["audit", str(tmp_path / "pairs.jsonl")]
    status, modules, shown = imported_by(*audit, "--input", "question")
    assert (status, modules & SLOW) == (0, set()) and shown.count("\n") == 1
    (tmp_path / "states.jsonl").write_text("{}\n")
    files = [word for name in ("--predictions", "--references") for word in (name, str(tmp_path / "states.jsonl"))]
    assert "numpy" in imported_by("jga", *files)[1]
    absent = ["evaluate", "model", str(tmp_path / "nothing.jsonl"), "--output", str(tmp_path)]
    status, modules, _ = imported_by(*absent)  # refused before anything slow is imported
    assert status == commands.REFUSED and not modules & {"torch", "datasets", "transformers"}


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"dair-hf {__version__}\n"


def test_all_subcommands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out.partition("Commands:")[2]
    listed = re.findall(r"^  (\w+)  +[A-Z]", shown, re.MULTILINE)
    assert sorted(listed) == sorted(SUBCOMMANDS)
    assert "..." not in shown, "a description that is too long"
    assert [name for name in SUBCOMMANDS if f"`dair-hf {name}" not in PAGE] == []
    assert main.run(["nope"]) == 2
    assert "nope" in capsys.readouterr().err


def examples() -> dict[int, str]:
    """Exit status -> example, of the table in docs/recipes.md."""
    rows = re.findall(r"^\| (\d+) \| .* \| `(.*)` \|$", PAGE, re.MULTILINE)
    return {int(status): command.replace("\\|", "|") for status, command in rows}


def test_every_exit_status_has_an_example() -> None:
    names = ("FAILED", "REFUSED", "FINDINGS", "INTERRUPTED", "BROKEN_PIPE")
    assert set(examples()) == {0, 128 + signal.SIGTERM, *(getattr(commands, name) for name in names)}
    shown = main.EPILOG
    assert all(re.search(rf"\b{status}\b", shown) for status in examples())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a model and the files of the examples are, with `dair-hf` in bin/."""
    made = tmp_path_factory.mktemp("page")
    (made / "bin").mkdir()
    program = made / "bin" / "dair-hf"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dair_hf.commands "$@"\n')
    program.chmod(0o755)
    saved_models.classifier(made / "model")
    for name, partner in (("pairs", "c"), ("faulty", "a b")):
        row = {"text": "a b", "label": "no", "augmented_text": partner, "augmented_label": "no"}
        (made / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (made / "latin1.jsonl").write_bytes('{"text": "café"}\n'.encode("latin-1"))
    return made


def interrupted_while_reading(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Interrupt a command that reads the pairs: a pipe, of which it waits for the end."""
    pipe = folder / "waiting.jsonl"
    os.mkfifo(pipe)
    arguments = [str(pipe) if name == "pairs.jsonl" else name for name in arguments]
    started = subprocess.Popen(
        [sys.executable, "-m", "dair_hf.commands", *arguments], cwd=folder, env=tiny.child_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    with pipe.open("w"):  # as soon as the command has opened it, too
        started.send_signal(signal.SIGINT)
        return subprocess.CompletedProcess(arguments, started.wait(280), *started.communicate())


def call(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line: in a fork of this process if it starts nothing else."""
    if "--signal INT" in command:
        return interrupted_while_reading(folder, shlex.split(command)[6:])
    if not re.search("[|]|timeout|--launch", command):
        return forked("-m", "dair_hf.commands", *shlex.split(command)[1:], cwd=folder)
    environment = {**tiny.child_environment(), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment['PATH']}"
    settings: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    # Tests that a shell runs in the background ignore Ctrl-C.
    settings["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], **settings, timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "command"), examples().items(), ids=lambda value: str(value) if isinstance(value, int) else ""
)
def test_an_example_ends_with_the_status_that_the_page_says(folder: Path, status: int, command: str) -> None:
    done = call(folder, command)
    assert done.returncode == status, done.stderr[-2000:]
    if status == commands.REFUSED:
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not (folder / "stopped").exists()
