"""Search for lambda: grids, resumption, the choice on validation rows, and the single evaluation on the test set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.experiments.comparison import ComparisonConfig, Result, Run
from dair_hf.experiments.report import Column
from dair_hf.experiments.search import SearchConfig, search_or_compare
from dair_hf.io.files import read_json
from tests.fixtures import tiny

pytestmark = pytest.mark.usefixtures("undrawn")
# Validation and test metrics by lambda and seed: lambda 1 is best on validation, lambda 10 on test.
VALIDATION = {(0.1, 0): 0.60, (0.1, 1): 0.62, (1.0, 0): 0.90, (1.0, 1): 0.70, (10.0, 0): 0.78, (10.0, 1): 0.79}
CONSISTENCY = {0.1: 0.5, 1.0: 0.6, 10.0: 0.9}
TEST = {0.1: 0.1, 1.0: 0.4, 10.0: 0.9}
GRID = [0.1, 1.0, 10.0]
TRIALS = [f"dair_lambda{value}_seed{seed}" for seed in (0, 1) for value in ("0.1", "1", "10")]


class Bench:
    """Replacement for training that records each call and can be interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: dict[str, list[str]] = {"validation": [], "test": []}
        self.interrupt_at: int | None = None

    def execute(self, run: Run, split: str) -> Result:
        if len(self.ran["validation"]) == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.ran[split].append(run.name)
        value = float((run.args.view_weights or [0, run.args.dair_lambda])[1])
        accuracy = VALIDATION[value, run.seed] if split == "validation" else TEST[value]
        return Result({"acc": accuracy, "cm": CONSISTENCY[value]}, {"training": 1.0})

    def search(
        self,
        grid: list[float] | None = GRID,
        weights: list[float] | None = None,
        methods: tuple[str, ...] = ("dair",),
        seeds: tuple[int, ...] = (0,),
        metrics: tuple[str, ...] = ("acc", "cm"),
        shared: str = "s",
        lambdas: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        return search_or_compare(
            SearchConfig(search_lambdas=grid, search_weights=weights, search_seeds=[0, 1]),
            ComparisonConfig(list(methods), lambdas, list(seeds)),
            tiny.config(self.folder, normalization="pair", dair_lambda=10.0),
            self.execute,
            "title",
            [Column("acc", "ACC")],
            {"shared": shared},
            {"rows": "r"},
            ["A note."],
            metrics=metrics,
            **options,
        )


def test_the_grid_is_sorted() -> None:
    assert SearchConfig().lambdas == ()
    assert SearchConfig(search_lambdas=[3.0, 0.0, 1.0]).lambdas == (0.0, 1.0, 3.0)


def test_every_trial_is_a_run_with_a_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.search(methods=("erm", "dair")) == ""
    assert bench.ran == {"validation": TRIALS, "test": ["erm_seed0", "dair_seed0"]}
    folder = tmp_path / "search" / "dair"
    assert {path.stem for path in folder.glob("dair_*.json")} == set(TRIALS)
    record = read_json(folder / "dair_lambda10_seed1.json")
    assert (record["method"], record["seed"], record["metrics"]) == ("dair_lambda10", 1, {"acc": 0.79, "cm": 0.9})
    assert (record["config"]["training"]["dair_lambda"], record["config"]["training"]["seed"]) == (10.0, 1)
    table = (folder / "comparison.md").read_text().splitlines()
    assert [line.split("|")[1:3] for line in table if line.startswith("| dair")] == [
        [" dair_lambda0.1 ", " 2 "], [" dair_lambda1 ", " 2 "], [" dair_lambda10 ", " 2 "],
    ]  # fmt: skip
    choice = read_json(folder / "choice.json")
    # Means 0.61, 0.80 and 0.785.
    assert choice["value"] == 1.0
    assert [point["value"] for point in choice["points"]] == GRID
    assert choice["points"][1]["accuracies"] == [0.9, 0.7] and choice["points"][1]["consistencies"] == [0.6, 0.6]
    assert (folder / "sweep.png").exists()
    final = (tmp_path / "final" / "comparison.md").read_text()
    assert final.startswith("# title: test set\n")
    assert "A note.\nChosen on validation data by acc: lambda 1 for dair (per pair" in final
    tested = read_json(tmp_path / "final" / "dair_seed0.json")
    assert (tested["config"]["training"]["dair_lambda"], tested["metrics"]["acc"]) == (1.0, 0.4)
    assert not (tmp_path / "comparison.md").exists()


def test_partner_weights_of_da_are_chosen_as_lambdas_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search(None, [10.0, 1.0], methods=("erm", "da"))
    trials = [f"da_weight{value}_seed{seed}" for seed in (0, 1) for value in (1, 10)]
    assert bench.ran == {"validation": trials, "test": ["erm_seed0", "da_seed0"]}
    choice = read_json(tmp_path / "search" / "da" / "choice.json")
    assert choice["value"] == 1.0 and [point["value"] for point in choice["points"]] == [1.0, 10.0]
    settings = [read_json(tmp_path / "final" / f"{name}_seed0.json")["config"]["training"] for name in ("erm", "da")]
    assert [of_run["view_weights"] for of_run in settings] == [None, [0.5, 1.0]]
    assert "Chosen on validation data by acc: weight 1 for da" in (tmp_path / "final" / "comparison.md").read_text()


def test_methods_without_a_grid_keep_their_lambdas(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search(None, [1.0], methods=("da", "kl", "dair"), lambdas={"kl": 0.1})
    finals = {
        name: read_json(tmp_path / "final" / f"{name}_seed0.json")["config"]["training"] for name in ("kl", "dair")
    }
    assert [finals[name]["dair_lambda"] for name in ("kl", "dair")] == [0.1, 10.0]
    assert "without a choice: lambda 0.1 for kl, 10.0 for dair (per" in (tmp_path / "final/comparison.md").read_text()
    with pytest.raises(DataError, match="no effect"):
        SearchConfig(search_weights=[1.0]).check_with([], set(), {"view_weights"})


def test_interrupted_search_resumes(tmp_path: Path) -> None:
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    whole.search()
    killed.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        killed.search()
    assert not (tmp_path / "killed" / "final").exists()
    killed.search()
    killed.search()
    assert killed.ran == whole.ran
    for name in ("choice.json", "comparison.md", "sweep.png"):
        assert (tmp_path / "killed/search/dair" / name).read_bytes() == (
            tmp_path / "whole/search/dair" / name
        ).read_bytes()


def test_wider_grids_keep_their_runs_and_other_settings_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search([1.0, 10.0])
    bench.search(seeds=(0, 7))
    assert bench.ran["validation"][-2:] == ["dair_lambda0.1_seed0", "dair_lambda0.1_seed1"]
    assert bench.ran["test"] == ["dair_seed0", "dair_seed7"]  # more seeds of the same choice
    with pytest.raises(DataError, match="dair_lambda.*json"):
        bench.search(shared="other")
    assert len(bench.ran["validation"]) == 6


def test_second_choice_is_not_evaluated_on_the_test_set(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.search(seeds=(5,))
    for seed in (5, 9):
        with pytest.raises(DataError, match=r"dair_seed5\.json: .* now lambda 0\.1"):
            bench.search(seeds=(seed,), lower_is_better=True)
    assert bench.ran["test"] == ["dair_seed5"]


def test_undefined_accuracy_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VALIDATION, (10.0, 1), float("nan"))
    with pytest.raises(DataError, match="dair_lambda10_seed1: acc"):
        Bench(tmp_path).search()


def test_search_for_the_lowest_error_without_cm(tmp_path: Path) -> None:
    Bench(tmp_path).search(metrics=("acc",), lower_is_better=True)
    assert read_json(tmp_path / "search" / "dair" / "choice.json")["value"] == 0.1


@pytest.mark.parametrize(
    "given",
    [
        {"metrics": ("cm",)},
        {"metrics": ("reverse_cm",)},
        {"methods": ("erm", "da")},
        {"methods": ("irm",)},
        {"weights": [1.0]},
    ],
)
def test_searches_without_a_choice_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    """A model that answers all inputs alike has a CM of 1; ERM and DA-ERM have no lambda."""
    with pytest.raises(DataError, match="metrics=.*, methods="):
        Bench(tmp_path).search(**given)
    assert not (tmp_path / "search").exists()
