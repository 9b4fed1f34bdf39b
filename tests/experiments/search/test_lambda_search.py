"""Search for lambda: grids, settings, resumption, and the single evaluation on the test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.experiments.comparison import ComparisonConfig, Result, Run
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import (
    GRIDS,
    LambdaSearch,
    SearchConfig,
    evaluate_choices,
    log_grid,
    search_or_compare,
)
from tests.fixtures import tiny


@pytest.mark.parametrize(("low", "high", "points"), [(0.1, 10, 8), (1, 1e4, 5), (1e-3, 100, 20), (2, 3, 2)])
def test_log_grid_is_that_of_numpy(low: float, high: float, points: int) -> None:
    grid = log_grid(low, high, points)
    np.testing.assert_allclose(grid, np.logspace(np.log10(low), np.log10(high), points), rtol=6e-6)
    assert (grid[0], grid[-1], len(grid)) == (low, high, points)
    assert all(float(f"{value:g}") == value for value in grid)


@pytest.mark.parametrize("arguments", [(0, 1, 3), (-1, 1, 3), (2, 1, 3), (1, 1, 3), (1, 2, 1), (float("nan"), 1, 3)])
def test_invalid_log_grids_are_refused(arguments: Any) -> None:
    with pytest.raises(DataError, match="needs 0 < low < high and at least 2 points"):
        log_grid(*arguments)


def test_grids_of_the_paper() -> None:
    assert GRIDS["dialog"] == (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)
    assert GRIDS["regression"] == (1, 10, 100, 1000, 10000)
    # Printed in the paper's trade-off for VQA, rounded.
    assert {0.72, 2.68, 5.18, 10} <= {round(value, 2) for value in GRIDS["vqa"]}
    # Printed in its table on longer training, truncated to two decimals.
    assert {1.43, 8.85, 16.23, 100} <= {int(value * 100) / 100 for value in GRIDS["mnist"]}
    # A grid that starts at 0.1 does not contain them.
    assert {1.43, 8.85} & {int(value * 100) / 100 for value in log_grid(0.1, 100, 20)} == set()
    assert all(list(grid) == sorted(grid) for grid in GRIDS.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search_grid": "cifar"}, "search_grid='cifar' is unknown; use dialog, vqa, regression, mnist, or search_l"),
        ({"search_grid": "vqa", "search_lambdas": [1.0]}, "search_grid and search_lambdas are both given"),
        ({"search_lambdas": [1.0, 2.0, 1.0]}, r"search_lambdas=\['1', '1', '2'\] contains an entry twice"),
        ({"search_lambdas": [1.0, 1.00000001]}, "contains an entry twice"),
        ({"search_lambdas": [1.0, -1.0]}, r"search_lambdas=\[1.0, -1.0\]: each must be 0 or more"),
        ({"search_seeds": []}, "search_seeds is empty; give at least one entry"),
        ({"search_seeds": [3, 3]}, r"search_seeds=\[3, 3\] contains an entry twice"),
        ({"search_seeds": [-1]}, "search_seeds: -1 is no seed"),
        ({"search_rule": "best"}, "search_rule='best' is unknown; use best_accuracy or best_consistency_within"),
        ({"search_epsilon": -0.1}, "search_epsilon=-0.1 is out of range"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        SearchConfig(**settings)


def test_grid_is_ascending() -> None:
    assert SearchConfig().lambdas == ()
    assert SearchConfig(search_lambdas=[3.0, 0.0, 1.0]).lambdas == (0.0, 1.0, 3.0)
    assert SearchConfig(search_grid="dialog").lambdas == GRIDS["dialog"]


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
    assert (choice["dair_lambda"], choice["rule"], choice["front"]) == (1.0, "best_accuracy", [1.0, 10.0])
    assert [entry["dair_lambda"] for entry in choice["points"]] == [0.1, 1.0, 10.0]
    assert (folder / "sweep.png").exists()
    assert (folder / "front.png").exists()
    # Nothing was evaluated on the test set.
    assert bench.tested == []
    assert not (tmp_path / "final").exists()


def test_rule_with_consistency(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    rule = {"search_rule": "best_consistency_within"}
    assert bench.search(search_epsilon=0.01, **rule).run(bench.validate).dair_lambda == 1.0
    # 0.80 - 0.785 = 0.015. Another rule needs no new trials.
    assert bench.search(search_epsilon=0.015, **rule).run(bench.validate).dair_lambda == 10.0
    assert len(bench.tried) == 6


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
    second = bench.search(search_rule="best_consistency_within", search_epsilon=0.5)
    message = r"dair_seed5\.json: the test set was already evaluated with lambda 1; now lambda 10 is chosen"
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
        (
            SearchConfig(search_grid="vqa", search_rule="best_consistency_within"),
            "dair",
            "needs CM, which is not measured",
        ),
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
        assert "Chosen on validation data by best_accuracy: lambda 0.1 for dair (per pair" in written
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
