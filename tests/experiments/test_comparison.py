"""Runs of a comparison: what each is told, which are skipped, what a killed one goes on from."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    compare,
    lambda_note,
    last_checkpoint,
    runs_of,
    save_run,
    train_base_once,
    train_resumable,
    with_settings,
)
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import REDO_CHANGED, fingerprint
from dair_hf.io.files import read_json, write_json
from tests.fixtures import tiny
from tests.fixtures.paths import ROOT

COLUMNS = [Column("cm", "CM")]


def test_runs_by_hand(tmp_path: Path) -> None:
    args = tiny.config(tmp_path / "out", dair_lambda=0.25, normalization="token")
    config = ComparisonConfig(["erm", "kl", "dair_l1"], {"kl": 3.0}, [4, 5])
    found = [
        (run.name, run.args.method, run.args.regularizer, run.args.dair_lambda, run.args.seed)
        for run in runs_of(config, args)
    ]
    assert found == [
        ("erm_seed4", "erm", "sq", 0.25, 4),
        ("kl_seed4", "dair", "kl", 3.0, 4),
        ("dair_l1_seed4", "dair", "l1", 0.25, 4),
        ("erm_seed5", "erm", "sq", 0.25, 5),
        ("kl_seed5", "dair", "kl", 3.0, 5),
        ("dair_l1_seed5", "dair", "l1", 0.25, 5),
    ]
    folders = {run.args.output_dir for run in runs_of(config, args)}
    assert len(folders) == 6
    assert str(tmp_path / "out" / "runs" / "kl_seed5") in folders
    # The rest is shared, and the given arguments stay what they were.
    assert {run.args.normalization for run in runs_of(config, args)} == {"token"}
    assert (args.seed, args.output_dir) == (5, str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"methods": ["erm", "mixup"]}, "methods: unknown mixup; use erm, da, kl, js, dair, dair_l1"),
        ({"lambdas": {"q": 1.0}}, "methods: unknown q"),
        ({"methods": []}, "must each hold at least one entry"),
        ({"seeds": []}, "must each hold at least one entry"),
        ({"methods": ["da", "da"]}, r"methods=\['da', 'da'\] holds an entry twice"),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\] holds an entry twice"),
        ({"seeds": [0, -1]}, r"seeds: -1 is no seed; give integers from 0 to 4294967295"),
    ],
)
def test_refused_comparisons(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        ComparisonConfig(**settings)


def test_derive_refuses_what_the_arguments_refuse(tmp_path: Path) -> None:
    args = tiny.config(tmp_path)
    assert with_settings(args, max_steps=9).max_steps == 9
    with pytest.raises(DataError, match="DAIRConfig has no field max_step, stepz; see --help"):
        with_settings(args, stepz=1, max_step=2)
    with pytest.raises(DataError, match="dair_lambda=-1 is out of range"):
        with_settings(args, dair_lambda=-1)


def test_derived_arguments_share_nothing(tmp_path: Path) -> None:
    args = tiny.config(tmp_path)
    one, other = with_settings(args), with_settings(args)
    before = fingerprint(other)
    one.accelerator_config.dispatch_batches = False
    assert args.accelerator_config.dispatch_batches is None
    assert fingerprint(other) == before


class Bench:
    """Stands in for training: notes which runs were executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executed: list[str] = []

    def execute(self, run: Run) -> Result:
        self.executed.append(run.name)
        Path(run.args.output_dir, "weights").write_text(f"{run.args.learning_rate}")
        return Result({"cm": 0.5}, {"training": 1.234})

    def compare(self, methods: list[str], data: str = "d", shared: str = "s", **settings: Any) -> str:
        runs = list(runs_of(ComparisonConfig(methods), tiny.config(self.folder, **settings)))
        self.executed.clear()
        return compare(
            runs, self.execute, self.folder, "Title", COLUMNS, {"shared": shared}, {"train": data}, ["Note."]
        )


def test_only_what_is_missing_is_executed(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "out")
    table = bench.compare(["erm", "dair"])
    assert bench.executed == ["erm_seed0", "dair_seed0"]
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| erm", "| dair"]
    assert bench.compare(["erm", "dair"]) == table
    assert bench.executed == []
    bench.compare(["da", "dair"])
    assert bench.executed == ["da_seed0"]
    record = json.loads((tmp_path / "out/da_seed0.json").read_text())
    assert (record["method"], record["seed"], record["metrics"], record["seconds"]) == (
        "da", 0, {"cm": 0.5}, {"training": 1.23},
    )  # fmt: skip


def test_a_later_call_keeps_the_rows_of_earlier_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.compare(["erm", "dair"])
    bench.compare(["dair_l1"], learning_rate=0.5)
    write_json(tmp_path / "notes_seed1.json", [])
    table = bench.compare(["da"], dair_lambda=2.0)
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| da", "| dair", "| erm"]
    named = [run["name"] for run in read_json(tmp_path / "comparison.json")["runs"]]
    assert named == ["da_seed0", "dair_seed0", "erm_seed0"]
    said = "From earlier calls: dair_seed0 (lambda 0.5), erm_seed0 (lambda 0.5)."
    assert said in (tmp_path / "comparison.md").read_text()


def test_changed_runs_are_set_aside_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path)
    bench.compare(["erm", "dair"])
    before = read_json(tmp_path / "dair_seed0.json")
    monkeypatch.setenv(REDO_CHANGED, "1")
    for _ in range(2):
        table = bench.compare(["dair", "da"], learning_rate=0.5)
        assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| dair", "| da"]
    assert bench.executed == []
    (kept,) = (tmp_path / "superseded").iterdir()
    assert kept.name.startswith(f"dair_seed0_of_{before['settings_fingerprint']}_")
    assert read_json(kept) == before
    assert "dair_seed0.json: a finished run of other settings (training.learning_rate was " in capsys.readouterr().out
    assert read_json(tmp_path / "dair_seed0.json")["config"]["training"]["learning_rate"] == 0.5


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": "e"}, 'data.train was "d", is "e"'),
        ({"shared": "t"}, 'shared was "s", is "t"'),
        ({"learning_rate": 0.5}, "training.learning_rate was "),
    ],
)
def test_finished_runs_of_other_settings_stay(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    bench = Bench(tmp_path)
    bench.compare(["erm", "dair"])
    before = contents(tmp_path)
    # Before the first run, even where the one that is in the way is the last.
    with pytest.raises(DataError, match="dair_seed0.json: a finished run of other settings") as refused:
        bench.compare(["da", "dair"], **change)
    assert named in str(refused.value)
    assert bench.executed == []
    assert contents(tmp_path) == before


def test_an_unfinished_run_of_other_settings_is_moved_aside(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    execute = bench.execute

    def dies(run: Run) -> Result:
        execute(run)
        raise KeyboardInterrupt

    # The third has the settings of the first: its remains do not take the place of those.
    for rate in (0.1, 0.2, 0.1, 0.2):
        bench.execute = dies if rate == 0.1 else execute  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            bench.compare(["erm"], learning_rate=rate)
        if rate == 0.2:
            (tmp_path / "erm_seed0.json").unlink()
    found = {path.name[:13]: [] for path in (tmp_path / "runs").iterdir()}
    for path in (tmp_path / "runs").iterdir():
        found[path.name[:13]].append((path / "weights").read_text())
    assert {name: sorted(rates) for name, rates in found.items()} == {
        "erm_seed0": ["0.2"],
        "erm_seed0_of_": ["0.1", "0.1", "0.2"],
    }


OTHER = """
import sys
from dair_hf.io.folders import claim_folder
claim_folder(sys.argv[1])
print("claimed", flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == "claimed\n"
        bench = Bench(tmp_path)
        with pytest.raises(DataError, match=f"process {other.pid} works there; wait until it has ended"):
            bench.compare(["erm"])
        assert bench.executed == []
        other.communicate()
    bench.compare(["erm"])
    assert bench.executed == ["erm_seed0"]


def test_a_killed_run_of_the_same_settings_keeps_its_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def dies(run: Run) -> Result:
        Path(run.args.output_dir, "checkpoint").write_text("step 3")
        raise KeyboardInterrupt

    execute, bench.execute = bench.execute, dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.compare(["erm"])
    assert not (tmp_path / "erm_seed0.json").exists()
    bench.execute = execute  # type: ignore[method-assign]
    bench.compare(["erm"])
    assert (tmp_path / "runs/erm_seed0/checkpoint").read_text() == "step 3"


def checkpoint(folder: Path, step: int, state: str | None = None) -> str:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(b"weights")
    if state is not None:
        (place / "trainer_state.json").write_text(state)
    return str(place)


def test_last_checkpoint_is_whole(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "absent") is None
    checkpoint(tmp_path, 4)
    assert last_checkpoint(tmp_path) is None
    checkpoint(tmp_path, 9, '{"global_step": 9}')
    newest = checkpoint(tmp_path, 10, '{"global_step": 10}')
    checkpoint(tmp_path, 11, '{"global_st')
    checkpoint(tmp_path, 12)
    assert last_checkpoint(tmp_path) == newest


def test_common_base_is_trained_once_and_whole(tmp_path: Path) -> None:
    made = []

    def make() -> Any:
        made.append(1)
        return tiny.trainer(tmp_path / "training", "t5", tiny.pairs("t5", 4), max_steps=1, method="erm")

    folder = train_base_once(tmp_path / "base", make)
    assert folder == tmp_path / "base"
    assert (folder / "model.safetensors").exists()
    train_base_once(tmp_path / "base", make)
    assert len(made) == 1

    def fails() -> Any:
        trainer = make()
        trainer.save_model = lambda path: 1 / 0
        return trainer

    with pytest.raises(ZeroDivisionError):
        train_base_once(tmp_path / "other", fails)
    assert not (tmp_path / "other").exists()


def test_train_on_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    data = tiny.pairs("t5", 8)
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = tiny.trainer(tmp_path / "whole", "t5", data, **settings)
    train_resumable(whole)
    begun = tiny.trainer(tmp_path / "begun", "t5", data, **settings)
    begun.train()
    # As if killed after step 2, while step 4 was being written.
    (tmp_path / "begun/checkpoint-4/trainer_state.json").unlink()
    (tmp_path / "begun/checkpoint-4/model.safetensors").write_bytes(b"torn")
    resumed = tiny.trainer(tmp_path / "begun", "t5", data, **settings)
    train_resumable(resumed)
    assert resumed.state.global_step == 4
    assert tiny.distance(tiny.weights(resumed.model), tiny.weights(whole.model)) == 0


def test_a_full_disk_leaves_whole_checkpoints_and_no_part_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = tiny.pairs("t5", 8), {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "method": "erm"}
    full, save = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), torch.save

    def fails_at_the_second(value: Any, path: str, **others: Any) -> None:
        if "checkpoint-2" in str(path):
            raise full
        save(value, path, **others)

    monkeypatch.setattr(torch, "save", fails_at_the_second)
    with pytest.raises(DataError, match=f"{tmp_path}: cannot be written: the disk mounted at .* is full"):
        train_resumable(tiny.trainer(tmp_path, "t5", data, **settings))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
    monkeypatch.undo()
    trainer = tiny.trainer(tmp_path, "t5", data, **settings)
    train_resumable(trainer)
    before = set(tmp_path.iterdir())

    def fails(**card: Any) -> None:
        assert (tmp_path / "model.safetensors").exists()
        raise OSError(28, "No space left on device")

    trainer.create_model_card = fails
    with pytest.raises(
        DataError, match=r"is full, or .* \(No space left on device; [\d,]+ bytes are free\); free some"
    ):
        save_run(trainer)
    assert set(tmp_path.iterdir()) == before


def test_default_arguments_can_be_derived() -> None:
    assert with_settings(DAIRConfig("out", use_cpu=True)).method == "dair"


def test_a_sweep_runs_each_lambda_of_what_has_a_regularizer(tmp_path: Path) -> None:
    config = ComparisonConfig(["erm", "dair", "kl"], None, [0], [0.5, 10.0])
    runs = list(runs_of(config, DAIRConfig(str(tmp_path), use_cpu=True)))
    found = [(run.name, run.args.method, run.args.regularizer, run.args.dair_lambda) for run in runs]
    assert found == [
        ("erm_seed0", "erm", "sq", 0.5),
        ("dair_lambda0.5_seed0", "dair", "sq", 0.5),
        ("dair_lambda10_seed0", "dair", "sq", 10.0),
        ("kl_lambda0.5_seed0", "dair", "kl", 0.5),
        ("kl_lambda10_seed0", "dair", "kl", 10.0),
    ]
    assert runs[1].args.output_dir == str(tmp_path / "runs" / "dair_lambda0.5_seed0")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambdas": {"kl": 1.0}, "lambda_sweep": [1.0]}, "lambdas and lambda_sweep are both given"),
        ({"lambda_sweep": [1.0, 1.0]}, "holds an entry twice"),
    ],
)
def test_a_sweep_that_contradicts_itself_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ComparisonConfig(methods=["dair", "kl"], **settings)


def test_a_checkpoint_to_resume_is_refused(tmp_path: Path) -> None:
    args = tiny.config(tmp_path, resume_from_checkpoint="there")
    with pytest.raises(DataError, match="resume_from_checkpoint=there is for a single run; leave it out"):
        list(runs_of(ComparisonConfig(["erm"]), args))


def test_environment_baselines_train_on_both_views(tmp_path: Path) -> None:
    runs = runs_of(ComparisonConfig(["irm", "rex", "dro"]), DAIRConfig(str(tmp_path), use_cpu=True))
    assert [(run.method, run.args.method) for run in runs] == [("irm", "da"), ("rex", "da"), ("dro", "da")]


def test_a_run_that_changes_its_arguments_stays_the_same_run(tmp_path: Path) -> None:
    runs = list(runs_of(ComparisonConfig(["erm"]), DAIRConfig(str(tmp_path), use_cpu=True)))
    executed = []

    def execute(run: Run) -> Result:
        run.args.dataloader_pin_memory = not run.args.dataloader_pin_memory
        executed.append(run.name)
        return Result({"accuracy": 0.5}, {"training": 1.0})

    for _ in range(2):
        compare(runs, execute, tmp_path, "title", [Column("accuracy", "accuracy")], {}, {})
    assert executed == ["erm_seed0"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "lambda 2 "),
        ({"methods": ["erm", "kl", "dair"], "lambdas": {"kl": 0.5, "js": 3.0}}, "lambda 2, of kl 0.5 "),
        ({"lambda_sweep": [10.0, 0.193, 1.0]}, "lambda 0.193 to 10, as each row says "),
    ],
)
def test_a_table_says_which_lambda_its_rows_have(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    args = DAIRConfig(str(tmp_path), use_cpu=True, dair_lambda=2.0)
    assert lambda_note(ComparisonConfig(**settings), args) == expected + "(per pair: objective = sum of f / rows)"
