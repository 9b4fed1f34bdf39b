"""Search for lambda: resumption, early stops, shared work, and the single evaluation on the test set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf import DAIRTrainer
from dair_hf.errors import DataError
from dair_hf.experiments.comparison import ComparisonConfig, Result, Run, train_evaluate_save
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import LambdaSearch, SearchConfig, evaluate_choices, search_or_compare
from dair_hf.io.files import read_json
from tests.fixtures import points, tiny
from tests.fixtures.paths import ROOT

# Validation and test metrics by lambda and seed: lambda 1 is best on validation, lambda 10 on test.
VALIDATION = {(0.1, 0): 0.60, (0.1, 1): 0.62, (1.0, 0): 0.90, (1.0, 1): 0.70, (10.0, 0): 0.78, (10.0, 1): 0.79}
CONSISTENCY = {0.1: 0.5, 1.0: 0.6, 10.0: 0.9}
TEST = {0.1: 0.1, 1.0: 0.4, 10.0: 0.9}


class Bench:
    """Replacement for training that records each call and can be interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried: list[str] = []
        self.tested: list[str] = []
        self.interrupt_at: int | None = None

    def search(self, settings: str = "s", **config: Any) -> LambdaSearch:
        grid: dict[str, Any] = {"search_lambdas": [0.1, 1.0, 10.0], "search_seeds": [0, 1], **config}
        args = tiny.config(self.folder, normalization="pair")
        return LambdaSearch(
            SearchConfig(**grid),
            "dair",
            args,
            "acc",
            "cm",
            settings={"shared": settings},
            validation={"validation": "v"},
        )

    def validate(self, run: Run) -> Result:
        if len(self.tried) == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.tried.append(run.name)
        value = run.args.dair_lambda
        return Result({"acc": VALIDATION[value, run.seed], "cm": CONSISTENCY[value]}, {"training": 1.0})

    def test(self, run: Run) -> Result:
        self.tested.append(run.name)
        return Result({"acc": TEST[run.args.dair_lambda], "cm": 1.0}, {"training": 1.0})


def final(bench: Bench, search: LambdaSearch, data: dict[str, str], seeds: list[int]) -> list[dict[str, Any]]:
    return evaluate_choices([search], [search.method], bench.test, data, seeds)


TRIALS = {f"dair_lambda{value}_seed{seed}" for value in ("0.1", "1", "10") for seed in (0, 1)}


def test_every_trial_is_a_run_with_a_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    search = bench.search()
    chosen = search.run(bench.validate)
    # Means 0.61, 0.80 and 0.785.
    assert (chosen.dair_lambda, round(chosen.accuracy, 6), chosen.accuracies) == (1.0, 0.8, (0.9, 0.7))
    assert sorted(bench.tried) == sorted(TRIALS)
    folder = tmp_path / "search" / "dair"
    assert {path.stem for path in folder.glob("dair_*.json")} == TRIALS
    record = json.loads((folder / "dair_lambda10_seed1.json").read_text())
    assert (record["method"], record["seed"], record["metrics"]) == ("dair_lambda10", 1, {"acc": 0.79, "cm": 0.9})
    assert record["config"]["training"]["dair_lambda"] == 10.0
    assert record["config"]["training"]["seed"] == 1
    assert record["data"] == {"validation": "v"}
    folders = {run.name: run.args.output_dir for run in search.trials}
    assert folders["dair_lambda10_seed1"] == str(folder / "runs" / "dair_lambda10_seed1")
    table = (folder / "comparison.md").read_text().splitlines()
    assert [line.split("|")[1:3] for line in table if line.startswith("| dair")] == [
        [" dair_lambda0.1 ", " 2 "], [" dair_lambda1 ", " 2 "], [" dair_lambda10 ", " 2 "],
    ]  # fmt: skip
    choice = json.loads((folder / "choice.json").read_text())
    assert (choice["dair_lambda"], choice["front"]) == (1.0, [1.0, 10.0])
    assert [entry["dair_lambda"] for entry in choice["points"]] == [0.1, 1.0, 10.0]
    assert (folder / "sweep.png").exists()
    assert (folder / "front.png").exists()
    # Nothing was evaluated on the test set.
    assert bench.tested == []
    assert not (tmp_path / "final").exists()


def test_cm_cannot_choose(tmp_path: Path) -> None:
    """A model that answers all inputs alike has a CM of 1."""
    for name in ("cm", "cm_theta_45", "reverse_cm"):
        with pytest.raises(DataError, match=f"^accuracy='{name}': "):
            LambdaSearch(
                SearchConfig(search_grid="vqa"), "dair", tiny.config(tmp_path), name, settings={}, validation={}
            )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A search that ran without interruption."""
    bench = Bench(tmp_path_factory.mktemp("uninterrupted"))
    bench.search().run(bench.validate)
    return bench


@pytest.mark.parametrize("interrupt_at", [0, 3, 5])
def test_interrupted_search_resumes(tmp_path: Path, uninterrupted: Bench, interrupt_at: int) -> None:
    bench = Bench(tmp_path / "killed")
    bench.interrupt_at = interrupt_at
    with pytest.raises(KeyboardInterrupt):
        bench.search().run(bench.validate)
    with pytest.raises(DataError, match=r"this trial has not finished; call run\(\) first"):
        bench.search().choice()
    with pytest.raises(DataError, match="this trial has not finished"):
        final(bench, bench.search(), {"test": "t"}, [0])
    # The temporary folder of a file that was being written when its process was killed.
    (tmp_path / "killed/search/dair/.dair_lambda1_seed0.json.x1").mkdir(parents=True, exist_ok=True)
    (tmp_path / "killed/search/dair/.dair_lambda1_seed0.json.x1/dair_lambda1_seed0.json").write_text('{"name": "da')
    chosen = bench.search().run(bench.validate)
    assert bench.tried == uninterrupted.tried
    assert chosen == uninterrupted.search().choice()
    files = [Path("search/dair") / name for name in ("choice.json", "comparison.md", "sweep.png", "front.png")]
    for file in files:
        assert (tmp_path / "killed" / file).read_bytes() == (uninterrupted.folder / file).read_bytes()


def test_changed_settings_and_wider_grids(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search(search_lambdas=[0.1, 1.0]).run(bench.validate)
    assert len(bench.tried) == 4
    bench.tried.clear()
    bench.search().run(bench.validate)
    assert set(bench.tried) == {"dair_lambda10_seed0", "dair_lambda10_seed1"}
    bench.tried.clear()
    with pytest.raises(DataError, match=r"a finished run with other settings \(shared was \"s\", is \"other\"\)"):
        bench.search(settings="other").run(bench.validate)
    assert bench.tried == []


def test_test_set_is_evaluated_once_with_the_chosen_lambda(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search().run(bench.validate)
    first = final(bench, bench.search(), {"test": "t"}, [5, 6])
    assert bench.tested == ["dair_seed5", "dair_seed6"]
    assert [record["metrics"]["acc"] for record in first] == [0.4, 0.4]
    assert {record["config"]["training"]["dair_lambda"] for record in first} == {1.0}
    assert final(bench, bench.search(), {"test": "t"}, [5, 6]) == first
    assert len(bench.tested) == 2
    # More seeds of the same choice are allowed.
    final(bench, bench.search(), {"test": "t"}, [5, 6, 7])
    assert bench.tested == ["dair_seed5", "dair_seed6", "dair_seed7"]


@pytest.mark.parametrize("seed", [5, 9])
def test_second_choice_is_not_evaluated_on_the_test_set(tmp_path: Path, seed: int) -> None:
    bench = Bench(tmp_path)
    bench.search().run(bench.validate)
    final(bench, bench.search(), {"test": "t"}, [5])
    second = bench.search()
    second.lower_is_better = True
    message = r"dair_seed5\.json: the test set was already evaluated with lambda 1; now lambda 0.1 is chosen"
    with pytest.raises(DataError, match=message):
        final(bench, second, {"test": "t"}, [seed])
    with pytest.raises(
        DataError, match="was already evaluated with lambda 1; now lambda 1 is chosen, or other settings"
    ):
        final(bench, bench.search(), {"test": "another"}, [5])
    assert bench.tested == ["dair_seed5"]


def test_undefined_cm_is_not_on_the_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setitem(CONSISTENCY, 10.0, float("nan"))
    bench.search().run(bench.validate)
    choice = json.loads((tmp_path / "search" / "dair" / "choice.json").read_text())
    assert (choice["front"], choice["points"][2]["consistency"]) == ([1.0], None)


def test_search_for_the_lowest_error_without_cm(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    config = SearchConfig(search_lambdas=[0.1, 1.0, 10.0], search_seeds=[1])
    args = tiny.config(tmp_path)
    search = LambdaSearch(config, "dair", args, "acc", settings={}, validation={}, lower_is_better=True)
    assert search.run(bench.validate).dair_lambda == 0.1
    assert not (tmp_path / "search" / "dair" / "front.png").exists()


@pytest.mark.parametrize(
    ("config", "method", "message"),
    [
        (SearchConfig(), "dair", "a search needs a grid: set search_grid or search_lambdas"),
        (SearchConfig(search_grid="vqa"), "da", "method 'da' has no lambda to search for"),
        (SearchConfig(search_grid="vqa"), "irm", "method 'irm' has no lambda to search for"),
        (SearchConfig(search_grid="vqa"), "dare", "method 'dare' has no lambda to search for"),
    ],
)
def test_invalid_searches_are_refused(tmp_path: Path, config: SearchConfig, method: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        LambdaSearch(config, method, tiny.config(tmp_path), "acc", settings={}, validation={})


@pytest.mark.parametrize("grid", [None, [0.1, 1.0, 10.0]])
def test_methods_are_compared_if_there_is_no_grid_to_search(tmp_path: Path, grid: list[float] | None) -> None:
    executed: list[tuple[str, str]] = []

    def execute(run: Run, split: str) -> Result:
        executed.append((run.name, split))
        key = run.args.dair_lambda, run.seed
        return Result({"error": VALIDATION[key] if split == "validation" else TEST[key[0]]}, {"training": 1.0})

    search = SearchConfig(search_lambdas=grid, search_seeds=[0, 1])
    comparison = ComparisonConfig(["erm", "dair"], seeds=[0, 1])
    args = tiny.config(tmp_path, normalization="pair", dair_lambda=10.0)
    table = search_or_compare(
        search,
        comparison,
        args,
        execute,
        "title",
        [Column("error", "ERROR")],
        {},
        {"rows": "r"},
        ["A note."],
        metrics=["error"],
        lower_is_better=True,
    )
    if grid is None:
        assert executed == [(f"{method}_seed{seed}", "test") for seed in (0, 1) for method in ("erm", "dair")]
        written = (tmp_path / "comparison.md").read_text()
        assert "| method | runs | ERROR |" in table and table in written and "A note." in written
        assert json.loads((tmp_path / "dair_seed1.json").read_text())["metrics"] == {"error": 0.9}
        assert not (tmp_path / "search").exists()
    else:
        # The lowest error on validation, means 0.61, 0.80 and 0.785, is that of lambda 0.1.
        tested = [(f"{method}_seed{seed}", "test") for seed in (0, 1) for method in ("erm", "dair")]
        assert (table, executed[-4:], {split for _, split in executed[:-4]}) == ("", tested, {"validation"})
        written = (tmp_path / "final" / "comparison.md").read_text()
        assert "| method | runs | ERROR |" in written
        assert "Chosen on validation data by error: lambda 0.1 for dair (per pair" in written
        record = json.loads((tmp_path / "final" / "dair_seed0.json").read_text())
        assert (record["config"]["training"]["dair_lambda"], record["metrics"]) == (0.1, {"error": 0.1})
        assert not (tmp_path / "comparison.md").exists()


def search_methods(folder: Path, methods: list[str], **comparison: Any) -> list[tuple[str, str, float]]:
    """Search the grid 0.1, 1, 10; kl is best at 10 on validation, other methods at 1. Return name, split and lambda."""
    executed: list[tuple[str, str, float]] = []

    def execute(run: Run, split: str) -> Result:
        value = run.args.dair_lambda
        executed.append((run.name, split, value))
        is_kl = run.args.regularizer == "kl"
        return Result({"acc": 0.5 + 0.1 * (value == (10.0 if is_kl else 1.0)), "cm": 0.5}, {"training": 1.0})

    settings = ComparisonConfig(methods, seeds=[0], **comparison)
    args = tiny.config(folder, dair_lambda=5.0)
    grid = SearchConfig(search_lambdas=[0.1, 1.0, 10.0])
    columns = [Column("acc", "accuracy")]
    for _ in range(2):  # the second time everything is kept
        search_or_compare(grid, settings, args, execute, "title", columns, {}, {}, metrics=["acc", "cm"])
    return executed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metrics": []}, r"^metrics=\[\]: give a list of one or two names"),
        ({"metrics": ["acc", "cm", "x"]}, "^metrics=.*: give a list of one or two names"),
        ({"metrics": "cm"}, "^metrics='cm': give a list of one or two names"),
        ({"dair_lambda": "auto"}, "^dair_lambda='auto' has no effect beside a grid to search"),
    ],
)
def test_arguments_that_a_search_cannot_use_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    args = tiny.config(tmp_path, dair_lambda=given.get("dair_lambda", 0.5))
    rest: Any = (lambda run, split: pytest.fail("a run was started"), "title", [Column("acc", "ACC")], {}, {})
    with pytest.raises(DataError, match=message):
        search_or_compare(
            SearchConfig(search_lambdas=[1.0]), ComparisonConfig(["dair"]), args, *rest,
            metrics=given.get("metrics", ["acc"]),
        )  # fmt: skip


def test_a_record_without_metrics_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search().run(bench.validate)
    path = tmp_path / "search" / "dair" / "dair_lambda1_seed0.json"
    record = read_json(path)
    del record["metrics"]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match="dair_lambda1_seed0.json: not the record of a run; choose another output_dir"):
        bench.search().run(bench.validate)


def test_every_method_with_a_lambda_is_searched(tmp_path: Path) -> None:
    executed = search_methods(tmp_path, ["erm", "kl", "dair"])
    grid = [(method, value) for method in ("kl", "dair") for value in (0.1, 1, 10)]
    trials = [(f"{method}_lambda{value:g}_seed0", "validation", value) for method, value in grid]
    assert executed == [*trials, ("erm_seed0", "test", 5.0), ("kl_seed0", "test", 10.0), ("dair_seed0", "test", 1.0)]
    for method, chosen in (("kl", 10.0), ("dair", 1.0)):
        choice = json.loads((tmp_path / "search" / method / "choice.json").read_text())
        assert choice["dair_lambda"] == chosen
    table = (tmp_path / "final" / "comparison.md").read_text()
    assert table.startswith("# title: test set\n") and "lambda 10 for kl, 1 for dair (per pair" in table
    listed = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert listed == ["method", "erm", "kl", "dair"]


@pytest.mark.parametrize(
    ("methods", "lambdas", "message"),
    [
        (["erm", "da"], None, r"none of methods=\['erm', 'da'\] has a lambda to search for; add one"),
        (["erm", "dair"], {"dair": 2.0}, "lambdas and a grid to search are both given; keep one of them"),
    ],
)
def test_settings_that_a_search_would_ignore_are_refused(
    tmp_path: Path, methods: list[str], lambdas: dict[str, float] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        search_methods(tmp_path, methods, lambdas=lambdas)


# ---- hopeless lambdas are stopped early ----

Curve = Callable[[float, int, float], float]
FINAL = {0.1: 0.6, 1.0: 0.9, 10.0: 0.7, 100.0: 0.3}


def rising(value: float, seed: int, progress: float) -> float:
    """Accuracy that rises to its final value in all runs alike; the second seed is a little better."""
    return FINAL[value] * (0.5 + 0.5 * progress) + 0.01 * seed


class Training:
    """Runs of ten steps of a real trainer, whose accuracy is a given curve."""

    def __init__(self, folder: Path, curve: Curve = rising) -> None:
        self.folder, self.curve = folder, curve
        self.steps: dict[str, int] = {}
        self.interrupt: tuple[float, int] | None = None  # lambda and step

    def search(self, seeds: Sequence[int] = (0,), rows: int = 8, **config: Any) -> LambdaSearch:
        config = {"search_pruner": "median", "search_lambdas": [*FINAL], **config}
        args = tiny.config(self.folder, max_steps=10)
        settings: dict[str, Any] = {"settings": {"rows": rows}, "validation": {"validation": "v"}}
        return LambdaSearch(SearchConfig(search_seeds=[*seeds], **config), "dair", args, "acc", **settings)

    def execute(self, run: Run) -> Result:
        trainer = DAIRTrainer(points.model(), run.args, points.stack, points.pairs(8), sample_loss="binary")
        value = run.args.dair_lambda

        def evaluate(trained: DAIRTrainer) -> dict[str, float]:
            self.steps[run.name] = step = trained.state.global_step
            if self.interrupt == (value, step):
                self.interrupt = None
                raise KeyboardInterrupt
            return {"acc": self.curve(value, run.seed, step / 10)}

        return train_evaluate_save(trainer, evaluate, run)


def choice_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "search" / "dair" / "choice.json").read_text())
    return content


def test_hopeless_lambdas_are_stopped_and_never_chosen(tmp_path: Path) -> None:
    full = Training(tmp_path / "full")
    assert full.search(search_pruner="none").run(full.execute).dair_lambda == 1.0
    cheap = Training(tmp_path / "cheap")
    assert cheap.search().run(cheap.execute).dair_lambda == 1.0
    assert set(full.steps.values()) == {10}
    # Two lambdas finish; 0.7 and 0.3 are below the median of 0.6 and 0.9 at the third of ten reports.
    steps = {f"dair_lambda{value}_seed0": step for value, step in (("0.1", 10), ("1", 10), ("10", 3), ("100", 3))}
    assert cheap.steps == steps
    folder = tmp_path / "cheap" / "search" / "dair"
    assert sorted(path.stem for path in folder.glob("*_seed*.json")) == ["dair_lambda0.1_seed0", "dair_lambda1_seed0"]
    record = json.loads((folder / "stopped" / "dair_lambda10_seed0.json").read_text())
    assert {key: record["stopped_early"][key] for key in ("pruner", "reason", "step", "max_steps", "acc")} == {
        "pruner": "median", "reason": "worse than other lambdas", "step": 3, "max_steps": 10, "acc": 0.7 * 0.65,
    }  # fmt: skip
    assert record["seconds"].keys() == {"training", "reports"} and "metrics" not in record
    assert (record["config"]["training"]["dair_lambda"], record["seed"]) == (10.0, 0)
    choice = choice_of(tmp_path / "cheap")
    assert [point["dair_lambda"] for point in choice["points"]] == [0.1, 1.0]
    assert choice["stopped_early"] == [10.0, 100.0]
    assert "stopped_early" not in choice_of(tmp_path / "full")
    table = (folder / "comparison.md").read_text()
    assert "| dair_lambda1 | 1 | 0.900 |" in table and "| dair_lambda10 |" not in table
    assert "Stopped early: lambda 10 after step 3 of 10 with seed 0 (acc 0.455): worse than other lambdas." in table
    # Runs that finish have the metrics of the full search.
    for name in ("dair_lambda0.1_seed0", "dair_lambda1_seed0"):
        finished, whole = (read_json(root / "search" / "dair" / f"{name}.json") for root in (full.folder, cheap.folder))
        assert finished["metrics"] == whole["metrics"]


def test_finished_search_runs_nothing_again(tmp_path: Path) -> None:
    bench = Training(tmp_path)
    first = bench.search().run(bench.execute)
    bench.steps.clear()
    assert bench.search().run(bench.execute) == first == bench.search().choice()
    # Nor without the study, from the records alone.
    for study in (tmp_path / "search" / "dair").glob("study_*.log"):
        study.unlink()
    assert bench.search().run(bench.execute) == first
    assert bench.steps == {}
    # The full search repeats what was stopped.
    assert bench.search(search_pruner="none").run(bench.execute).dair_lambda == 1.0
    assert bench.steps == {"dair_lambda10_seed0": 10, "dair_lambda100_seed0": 10}


def test_lambda_that_is_stopped_with_one_seed_is_out(tmp_path: Path) -> None:
    # After the first seed lambda 1 leads by 0.6 to 0.5. With the second seed, 0.1 has (0.5 + 0.9) / 2 > 0.6.
    values = {(0.1, 0): 0.5, (0.1, 1): 0.9, (1.0, 0): 0.6, (1.0, 1): 0.2}
    bench = Training(tmp_path, lambda value, seed, progress: values[value, seed])
    grid: dict[str, Any] = {"seeds": (0, 1), "search_lambdas": [0.1, 1.0], "search_startup": 1}
    chosen = bench.search(**grid).run(bench.execute)
    assert (chosen.dair_lambda, chosen.accuracies) == (0.1, (0.5, 0.9))
    assert bench.steps == {
        "dair_lambda0.1_seed0": 10, "dair_lambda0.1_seed1": 10, "dair_lambda1_seed0": 10, "dair_lambda1_seed1": 1,
    }  # fmt: skip
    assert [point.dair_lambda for point in bench.search(**grid).points()] == [0.1]
    assert choice_of(tmp_path)["stopped_early"] == [1.0]


@pytest.mark.parametrize("interrupt", [(0.1, 2), (1.0, 9), (10.0, 2)])
def test_interrupted_search_with_a_pruner_resumes(tmp_path: Path, interrupt: tuple[float, int]) -> None:
    bench, whole = Training(tmp_path / "killed"), Training(tmp_path / "whole")
    bench.interrupt = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.search().run(bench.execute)
    with pytest.raises(DataError, match=r"this trial has not finished; call run\(\) first"):
        bench.search().choice()
    finished = [name for name, step in bench.steps.items() if step == 10]
    bench.steps.clear()
    assert bench.search().run(bench.execute) == whole.search().run(whole.execute)
    assert not bench.steps.keys() & set(finished)
    assert choice_of(bench.folder) == choice_of(whole.folder)


def test_lowest_error_with_a_pruner(tmp_path: Path) -> None:
    bench = Training(tmp_path)
    search = bench.search()
    search.lower_is_better = True
    assert search.run(bench.execute).dair_lambda == 100.0
    assert bench.steps["dair_lambda10_seed0"] == 10 and bench.steps["dair_lambda100_seed0"] == 10


def test_lambda_that_diverges_is_out(tmp_path: Path) -> None:
    bench = Training(tmp_path)
    execute = bench.execute

    def diverge(run: Run) -> Result:
        if run.args.dair_lambda < 100:
            return execute(run)
        assert run.watch is not None
        trainer = DAIRTrainer(points.model(), run.args, points.stack, points.pairs(8), sample_loss="binary")
        with torch.no_grad():
            trainer.model.linear.weight[0, 0] = float("nan")
        return train_evaluate_save(trainer, lambda trained: {"acc": 1.0}, run)

    assert bench.search(search_startup=4).run(diverge).dair_lambda == 1.0
    record = read_json(tmp_path / "search" / "dair" / "stopped" / "dair_lambda100_seed0.json")["stopped_early"]
    assert (record["acc"], record["step"]) == (None, 0)
    assert record["reason"].startswith("the loss of 4 of 4 rows is not finite")


def test_recipe_that_does_not_pass_its_run_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    message = "nothing watched dair_lambda0.1_seed0: pass the run to train_evaluate_save"
    with pytest.raises(DataError, match=message):
        bench.search(search_pruner="median").run(bench.validate)
    # Finished runs need no watch.
    bench.search().run(bench.validate)
    assert bench.search(search_pruner="median").run(bench.validate).dair_lambda == 1.0


def test_plain_search_needs_no_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    bench = Bench(tmp_path)
    bench.search().run(bench.validate)
    assert not list(tmp_path.rglob("study_*"))
    with pytest.raises(DataError, match="search_pruner and search_storage need optuna; it is not installed"):
        bench.search(search_pruner="median").run(bench.validate)


# ---- several processes ----

WORKER = """
import json, sys, time
from pathlib import Path
from dair_hf.experiments.comparison import ComparisonConfig, Result, train_evaluate_save
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.experiments.search import trials
from tests.experiments.search.test_lambda_search import FINAL, Training
from tests.fixtures import tiny

folder, storage, pruner = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
trials.POLL_SECONDS = 0.1
bench = Training(folder)
config = SearchConfig(search_lambdas=[*FINAL], search_seeds=[0, 1], search_pruner=pruner, search_storage=storage)
args = tiny.config(folder, max_steps=10)

def execute(run, split):
    with (folder / "ran").open("a") as lines:
        lines.write(f"{split} {run.name}\\n")
    time.sleep(0.2)
    return bench.execute(run)

print("ready", flush=True)
sys.stdin.readline()
methods = ComparisonConfig(["dair", "dair_l1"], seeds=[0, 1])
columns = [Column("acc", "accuracy")]
search_or_compare(config, methods, args, execute, "title", columns, {}, {"rows": "r"}, metrics=["acc"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["none", "median"])
def test_two_processes_share_a_search(tmp_path: Path, pruner: str) -> None:
    folders, storage = [tmp_path / name for name in ("first", "second")], tmp_path / "shared.log"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = []
    for folder in folders:
        folder.mkdir()
        command = [sys.executable, "-c", WORKER, str(folder), str(storage), pruner]
        processes.append(subprocess.Popen(command, env=tiny.child_environment(), cwd=ROOT, **pipes))
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            errors = process.communicate(timeout=200)[1]
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
    ran = [(folder / "ran").read_text().splitlines() for folder in folders]
    both = sorted(sum(ran, []))
    trials = {f"validation {m}_lambda{value:g}_seed{s}" for m in ("dair", "dair_l1") for value in FINAL for s in (0, 1)}
    tests = {f"test {method}_seed{seed}" for method in ("dair", "dair_l1") for seed in (0, 1)}
    assert len(both) == len(set(both)), "a run was executed twice"
    assert min(map(len, ran)) > 0
    if pruner == "none":
        assert set(both) == trials | tests
    else:
        assert tests < set(both) < trials | tests
        assert not [line for line in both if "lambda100_seed1" in line], "a stopped lambda went on"
    for method in ("dair", "dair_l1"):
        choices = [read_json(folder / "search" / method / "choice.json") for folder in folders]
        assert choices[0] == choices[1] and choices[0]["dair_lambda"] == 1.0
    for folder in folders:
        tested = {f"test {path.stem}" for path in (folder / "final").glob("*_seed*.json")}
        assert tested == tests
        for name in ("dair_seed0", "dair_l1_seed1"):
            assert read_json(folder / "final" / f"{name}.json")["config"]["training"]["dair_lambda"] == 1.0
    assert len({(folder / "final" / "comparison.md").read_text() for folder in folders}) == 1


def test_shared_search_with_other_settings_is_refused(tmp_path: Path) -> None:
    storage = str(tmp_path / "shared.log")
    first, second = Training(tmp_path / "first"), Training(tmp_path / "second")
    first.search(search_storage=storage).run(first.execute)
    with pytest.raises(DataError, match=r"shared.log: holds a search with other settings \(rows was 8, is 9\)"):
        second.search(rows=9, search_storage=storage).run(second.execute)
    with pytest.raises(DataError, match=r"other settings \(search_warmup was 3, is 4\)"):
        second.search(search_warmup=4, search_storage=storage).run(second.execute)
    assert second.steps == {}
    # With the same settings nothing is left to do, and the records of the first process are kept here, too.
    assert second.search(search_storage=storage).run(second.execute) == first.search(search_storage=storage).choice()
    assert second.steps == {}
    for name in ("dair_lambda1_seed0.json", "stopped/dair_lambda10_seed0.json"):
        records = [read_json(bench.folder / "search" / "dair" / name) for bench in (first, second)]
        assert records[0] == records[1]
