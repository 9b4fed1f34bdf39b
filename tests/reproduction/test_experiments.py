"""Experiments: their list, their status, and the transfer of records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dair_hf.errors import DataError
from dair_hf.experiments.comparison import ComparisonConfig, Result, Run, compare, runs_of
from dair_hf.experiments.report import Column
from dair_hf.io.files import mark_folder, write_json
from reproduction import experiments as module
from reproduction.experiments import (
    Experiment,
    collect,
    finished_runs,
    is_done,
    read_experiments,
    remove_leftovers,
    restore,
    settings_of,
)
from tests.fixtures import tiny
from tests.fixtures.paths import ROOT

ENTRY: dict[str, Any] = {"name": "adv", "command": "recipes/a.py --mnist '{data}/m n'", "runs": 3, "minutes": 2.5}


def write(folder: Path, *entries: Any) -> Path:
    path = folder / "experiments.yaml"
    path.write_text(yaml.safe_dump({"experiments": list(entries)}))
    return path


def test_experiments_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, ENTRY, {**ENTRY, "name": "noise/share_0.2", "command": "-m reproduction.theory --k 1"})
    first, second = read_experiments(path)
    assert first == Experiment("adv", ("recipes/a.py", "--mnist", "{data}/m n"), 3, 2.5)
    assert first.argv("../data", Path("outputs/adv")) == [
        "recipes/a.py", "--mnist", "../data/m n", "--output_dir", "outputs/adv",
    ]  # fmt: skip
    assert (first.needs_data, second.needs_data) == (True, False)
    assert second.name == "noise/share_0.2"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"run": 3}, "runs"),
        ({"command": ["a"]}, "command"),
        ({"command": "a.py --name 'b"}, "command"),
        ({"command": " "}, "command"),
        ({"runs": True}, "runs"),
        ({"runs": 0}, "run"),
        ({"minutes": -1}, "minutes"),
        ({"name": "../x"}, "name"),
        ({"name": "/x"}, "name"),
    ],
)
def test_invalid_experiments_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        read_experiments(write(tmp_path, {**ENTRY, **changes}))


def test_nested_folders_are_refused(tmp_path: Path) -> None:
    for first, second in (("adv", "adv"), ("adv", "adv/a"), ("adv/a/b", "adv")):
        with pytest.raises(DataError, match="adv"):
            read_experiments(write(tmp_path, {**ENTRY, "name": first}, {**ENTRY, "name": second}))
    assert len(read_experiments(write(tmp_path, {**ENTRY, "name": "adv/a"}, {**ENTRY, "name": "adv/ab"}))) == 2


def record(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "method": name.split("_")[0], "seed": int(name[-1]), "metrics": {"cm": 0.5}, **more}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Output of a recipe: two comparisons, a run in neither, trainer folders, and temporary files."""
    folder = tmp_path / "outputs" / "adv"
    write_json(folder / "comparison.json", {"runs": [record("erm_seed0"), record("dair_seed1")]})
    write_json(folder / "noise" / "comparison.json", {"runs": [record("erm_seed0", noise=1)]})
    for name in ("erm_seed0", "dair_seed1", "old_seed0", "noise/erm_seed0"):
        write_json(folder / f"{name}.json", {})
    write_json(folder / "runs" / "erm_seed0" / "state_seed0.json", {})
    write_json(folder / "runs" / "erm_seed0" / "comparison.json", {"runs": [record("no_seed0")]})
    write_json(folder / ".comparison.json.x1" / "comparison.json", {"runs": [record("no_seed1")]})
    (folder / "comparison.md").write_text("table")
    (folder / "sweep.png").write_bytes(b"png")
    (folder / "output.log").write_text("log")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


EXPERIMENT = Experiment("adv", ("recipes/a.py", "--config", "a.yaml"), 3, 1.0)


def test_collect_copies_the_records_of_the_comparisons(tmp_path: Path, output: Path) -> None:
    results = tmp_path / "results"
    write_json(results / "adv" / "erm_seed0.json", record("erm_seed0"))
    assert collect(EXPERIMENT, output, results) == 3
    assert files(results) == [
        "adv/comparison.md", "adv/dair_seed1.json", "adv/erm_seed0.json", "adv/experiment.json",
        "adv/noise/erm_seed0.json", "adv/sweep.png",
    ]  # fmt: skip
    assert json.loads((results / "adv/noise/erm_seed0.json").read_text())["noise"] == 1
    assert is_done(EXPERIMENT, results)


def test_collect_leaves_no_differences_of_an_earlier_comparison(tmp_path: Path, output: Path) -> None:
    (output / "paired.md").write_text("dair - da")
    collect(EXPERIMENT, output, tmp_path)
    assert (tmp_path / "adv" / "paired.md").read_text() == "dair - da"
    (output / "paired.md").unlink()
    collect(EXPERIMENT, output, tmp_path)
    assert not (tmp_path / "adv" / "paired.md").exists()


@pytest.mark.parametrize("name", ["gone_seed0", "erm_seed0", "noise/erm_seed0"])
def test_collect_replaces_no_finished_run(tmp_path: Path, output: Path, name: str) -> None:
    results = tmp_path / "results"
    before = record(Path(name).name, settings="others", settings_fingerprint="0a1b")
    write_json(results / "adv" / f"{name}.json", before)
    with pytest.raises(DataError, match=f"{name}.json"):
        collect(EXPERIMENT, output, results)
    assert files(results) == [f"adv/{name}.json"]
    assert json.loads((results / "adv" / f"{name}.json").read_text()) == before


def test_collect_marks_the_experiment_last(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "copyfile", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collect(EXPERIMENT, output, tmp_path)
    assert not is_done(EXPERIMENT, tmp_path)
    with pytest.raises(DataError, match="adv"):  # without the table of the recipe
        collect(EXPERIMENT, tmp_path / "nothing", tmp_path / "results")


def test_records_of_a_real_comparison_are_collected_and_restored(tmp_path: Path) -> None:
    executed: list[str] = []

    def execute(run: Run) -> Result:
        executed.append(run.name)
        return Result({"accuracy": 0.5}, {"training": 1.0})

    def compared(folder: Path) -> Path:
        runs = list(runs_of(ComparisonConfig(["erm", "dair"]), tiny.config(folder)))
        compare(runs, execute, folder, "Title", [Column("accuracy", "accuracy")], {}, {})
        return folder

    first = compared(tmp_path / "first")
    assert collect(EXPERIMENT, first, tmp_path / "results") == finished_runs(first) == 2
    restore(EXPERIMENT, tmp_path / "second", tmp_path / "results")
    assert collect(EXPERIMENT, compared(tmp_path / "second"), tmp_path / "results") == 2
    assert executed == ["erm_seed0", "dair_seed0"]


def test_status_depends_on_command_and_configuration(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("seeds: [0]")
    results = tmp_path / "results"
    assert not is_done(EXPERIMENT, results)
    collect(EXPERIMENT, output, results)
    assert is_done(EXPERIMENT, results)
    # The expected time does not matter, but a record that was moved away does.
    assert is_done(EXPERIMENT._replace(minutes=9.0), results)
    assert not is_done(EXPERIMENT._replace(runs=EXPERIMENT.runs + 1), results)
    assert not is_done(EXPERIMENT._replace(command=(*EXPERIMENT.command, "--seeds", "1")), results)
    # Nor do comments in the configuration.
    Path("a.yaml").write_text("# Expect 3.\nseeds:\n- 0 # the first")
    assert is_done(EXPERIMENT, results)
    Path("a.yaml").write_text("seeds: [0, 1]")
    assert not is_done(EXPERIMENT, results)
    assert settings_of(EXPERIMENT)["configs"].keys() == {"a.yaml"}


def test_restore_copies_missing_records(tmp_path: Path, output: Path) -> None:
    results = tmp_path / "results"
    collect(EXPERIMENT, output, results)
    empty = tmp_path / "new" / "adv"
    mark_folder(empty)
    write_json(empty / "dair_seed1.json", {"newer": True})
    restore(EXPERIMENT, empty, results)
    assert files(empty) == ["dair_hf.lock", "dair_seed1.json", "erm_seed0.json", "noise/erm_seed0.json"]
    assert json.loads((empty / "dair_seed1.json").read_text()) == {"newer": True}
    assert json.loads((empty / "erm_seed0.json").read_text()) == record("erm_seed0")
    restore(EXPERIMENT._replace(name="other"), tmp_path / "none", results)
    assert not (tmp_path / "none").exists()


def test_restored_records_lose_only_settings_that_were_removed(tmp_path: Path) -> None:
    kept = {"use_peft": True, "lora_alpha": 16}
    for seed, model in enumerate(({**kept, "lora_rank": 0}, kept)):  # before and after the setting of this name
        write_json(tmp_path / "results" / "adv" / f"da_seed{seed}.json", record("da_seed0", config={"model": model}))
    restore(EXPERIMENT, tmp_path / "out", tmp_path / "results")
    restored = [json.loads((tmp_path / "out" / f"da_seed{seed}.json").read_text()) for seed in (0, 1)]
    assert [found["config"]["model"] for found in restored] == [{"use_peft": True}, kept]


def test_temporary_folders_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in (".adv.a1.dair_hf", "noise/.erm_seed0.json.c3.dair_hf", "adv", ".git", ".RESULTS.md.d4"):
        (results / name).mkdir(parents=True)
    (results / ".RESULTS.md.swp").write_text("an editor's")
    remove_leftovers(results)
    remaining = {str(path.relative_to(results)) for path in results.rglob("*")}
    assert remaining == {"adv", ".git", ".RESULTS.md.d4", ".RESULTS.md.swp", "noise"}


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from reproduction.experiments import sole_worker
with sole_worker(Path(sys.argv[1])) as lock:
    subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=[lock])
    print("entered", flush=True)
    time.sleep(600)
"""
WAITER = """
import sys
from pathlib import Path
from reproduction.experiments import sole_worker
with sole_worker(Path(sys.argv[1])):
    print("entered", flush=True)
"""


def test_child_that_outlives_its_parent_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "lock"
    settings: dict[str, Any] = {
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "text": True,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
    }
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], **settings) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "entered\n"
        holder.kill()
        holder.wait()
        with subprocess.Popen([sys.executable, "-c", WAITER, str(lock)], **settings) as waiter:
            assert waiter.stdout
            assert "waiting" in waiter.stdout.readline()
            assert waiter.poll() is None
            # The child of the killed process ends with its input.
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert waiter.stdout.readline() == "entered\n"
