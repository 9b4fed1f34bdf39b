"""`dair-hf train`: configurations by name and by path, the list, and what reaches the recipe."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dair_hf.commands.main import run
from dair_hf.io.commands import REFUSED
from tests.fixtures import tiny
from tests.fixtures.recipe_runs import CONFIGS, RECIPES


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines of the recipes that were started; none of them runs."""
    lines: list[list[str]] = []

    def record(path: str, run_name: str) -> None:
        assert run_name == "__main__" and sys.argv[0] == path
        lines.append(list(sys.argv))

    monkeypatch.setattr(sys, "argv", ["dair-hf"])
    monkeypatch.setattr(runpy, "run_path", record)
    return lines


def test_everything_after_the_configuration_is_for_the_recipe(started: list[list[str]]) -> None:
    options = ["--methods", "erm", "dair", "--max_steps=2", "--json", "--help"]
    assert run(["train", "demo", *options]) == 0
    assert started == [[str(RECIPES / "multiwoz_simpletod.py"), "--config", str(CONFIGS / "demo.yaml"), *options]]


def test_a_file_of_the_user(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text("recipe: colored_mnist\n")
    assert run(["train", "demo.yaml"]) == 0
    assert started.pop() == [str(RECIPES / "colored_mnist.py"), "--config", "demo.yaml"]
    for content in ("seeds: [1]\n", "- seeds\n", "recipe: [a]\n"):
        Path("demo.yaml").write_text(content)
        assert run(["train", "demo.yaml"]) == REFUSED
        assert "demo.yaml: recipe" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["dem"], "'dem'"), (["some/own.yaml"], "some/own.yaml"), ([], "''"), (["--launch", "dpp", "demo"], "'dpp'")],
)
def test_what_cannot_be_trained_is_refused(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run(["train", *arguments]) == REFUSED
    assert named in capsys.readouterr().err and started == []


def test_the_list_names_every_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "--list"]) == 0
    *lines, _, launchers, folder = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert list(shown) == sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    assert "cpu_processes" in launchers and folder.endswith(str(RECIPES))
    assert run(["train", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    items = {item["name"]: item for item in listed["configurations"]}
    assert {name: item["trains"] for name, item in items.items()} == shown  # nothing is cut in a pipe
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["train", "--list"]) == 0
    *lines, _, _, _ = capsys.readouterr().out.splitlines()
    cut = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in lines}
    assert max(map(len, lines)) <= 60 < max(map(len, shown.values()))
    assert cut.keys() == shown.keys() and all(shown[name].startswith(cut[name].removesuffix(" ...")) for name in cut)
    assert (items["vilt_lora"]["recipe"], items["demo"]["needs"]) == ("vqa_saaa", "nothing")
    assert items["woz2"]["needs"] == "WOZ 2.0 (--data_dir)"
    assert [item["name"] for item in listed["configurations"] if "not stated" in item.values()] == []


def test_launchers_start_the_same_command(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Any] = []

    def execute(program: str, command: list[str]) -> None:
        commands.append((program, command))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execute)
    with pytest.raises(SystemExit):
        run(["train", "--launch", "ddp", "demo", "--seeds", "1"])
    ((program, command),) = commands
    assert program == command[0] == sys.executable and started == []
    settings = str(RECIPES / "accelerate_configs" / "ddp.yaml")
    assert command[-8:] == ["--config_file", settings, "-m", "dair_hf.commands", "train", "demo", "--seeds", "1"]


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    small = ["--train_dialogs", "30", "--test_dialogs", "4", "--max_steps", "2", "--warmup_steps", "0"]
    quiet = ["--disable_tqdm", "true", "--allow_low_ceiling", "true", "--use_cpu", "true"]
    command = [sys.executable, "-m", "dair_hf.commands", "train", "--launch", "cpu_processes", "demo"]
    environment = {**tiny.child_environment(), "OMP_NUM_THREADS": "1"}
    options = ["--methods", "erm", *small, *quiet]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads((tmp_path / "outputs" / "demo" / "erm_seed0.json").read_text())
    assert record["hardware"]["processes"] == 2
