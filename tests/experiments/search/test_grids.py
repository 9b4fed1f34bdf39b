"""Grids of lambda and the settings of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig
from dair_hf.experiments.search.grids import GRIDS, SearchConfig, log_grid


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
        ({"search_lambdas": [1.0, -1.0]}, "search_lambdas: -1.0 is out of range; give finite numbers >= 0"),
        ({"search_lambdas": [1.0, float("nan")]}, "search_lambdas: nan is out of range"),
        ({"search_lambdas": [float("inf")]}, "search_lambdas: inf is out of range"),
        (
            {"search_lambdas": ["auto", 1]},
            "search_lambdas: 'auto' is no number; leave out search_lambdas and",
        ),
        ({"search_lambdas": ["a"]}, "search_lambdas: 'a' is out of range"),
        ({"search_lambdas": [True]}, "search_lambdas: True is out of range"),
        ({"search_lambdas": "1 10"}, "search_lambdas='1 10' is no list"),
        ({"search_lambdas": 5}, r"search_lambdas=5 is no list; give one, such as \[5\]"),
        ({"search_seeds": []}, "search_seeds is empty; give at least one entry"),
        ({"search_seeds": [3, 3]}, r"search_seeds=\[3, 3\] contains an entry twice"),
        ({"search_seeds": [-1]}, "search_seeds: -1 is no seed"),
        ({"search_seeds": ["a"]}, "search_seeds: 'a' is no seed; give integers from 0"),
        ({"search_seeds": [1.5]}, "search_seeds: 1.5 is no seed; give integers from 0"),
        ({"search_seeds": [True]}, "search_seeds: True is no seed"),
        ({"search_seeds": 3}, r"search_seeds=3 is no list; give one, such as \[3\]"),
        ({"search_seeds": None}, r"search_seeds=None is no list; give one, such as \[0\]"),
        ({"search_reports": 2.5}, "search_reports=2.5 is no integer"),
        ({"search_reports": "5"}, "search_reports='5' is no integer"),
        ({"search_warmup": None}, "search_warmup=None is no integer"),
        ({"search_startup": True}, "search_startup=True is no integer"),
        ({"search_storage": 5}, "search_storage=5 is no file name; give one"),
        ({"search_storage": ""}, "search_storage='' is no file name; give one"),
        ({"search_storage": str(Path(__file__).parent)}, "is a folder; name a file"),
        ({"search_pruner": "mean"}, "search_pruner='mean' is unknown; use none, median, halving"),
        ({"search_reports": 1}, "search_reports=1, search_warmup=3, search_startup=2: needs 1 <= search_warmup"),
        ({"search_warmup": 0}, "needs 1 <= search_warmup < search_reports"),
        ({"search_warmup": 10}, "needs 1 <= search_warmup < search_reports"),
        ({"search_startup": 0}, "search_startup >= 1"),
        ({"search_storage": "sqlite:///trials.db"}, "is a URL; name a file. SQLite lets two processes take the same"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        SearchConfig(**settings)


def test_storage_may_be_a_path(tmp_path: Path) -> None:
    storage: Any = tmp_path / "search.log"
    assert SearchConfig(search_lambdas=[1], search_storage=storage).search_storage == str(storage)


def test_grid_is_ascending() -> None:
    assert SearchConfig().lambdas == ()
    assert SearchConfig(search_lambdas=[3.0, 0.0, 1.0]).lambdas == (0.0, 1.0, 3.0)
    assert SearchConfig(search_grid="dialog").lambdas == GRIDS["dialog"]


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({}, "search_pruner", "search_pruner has no effect without search_lambdas"),
        ({}, "search_storage", "search_storage has no effect without search_lambdas"),
        ({"search_lambdas": [1.0]}, "search_reports", "search_reports has no effect without search_pruner;"),
        (
            {"search_lambdas": [1.0], "search_pruner": "halving"},
            "search_startup",
            "search_startup has no effect without search_pruner=median",
        ),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], given: str, message: str) -> None:
    config = SearchConfig(**settings)
    with pytest.raises(DataError, match=message):
        config.check_with([config], {given})
    config.check_with([config], {"seeds", *settings})


@pytest.mark.parametrize("grid", [["--search_lambdas", "1", "2"], ["--search_grid", "vqa"], "search_lambdas: [1, 2]"])
@pytest.mark.parametrize("option", ["dair_lambda", "lambda_sweep"])
def test_lambda_of_the_command_line_beside_a_grid_is_refused(tmp_path: Path, grid: Any, option: str) -> None:
    path, options = tmp_path / "settings.yaml", grid if isinstance(grid, list) else []
    path.write_text("" if options else f"{grid}\n")
    given = [*(["--config", str(path)] if not options else []), "--output_dir", "out", "--use_cpu", "true", *options]
    types = [SearchConfig, ComparisonConfig, DAIRConfig]
    assert parse_arguments(types, given)[0].lambdas
    name = "search_grid" if "--search_grid" in options else "search_lambdas"
    with pytest.raises(DataError, match=f"^{option} has no effect beside {name}, which chooses lambda; leave out"):
        parse_arguments(types, [*given, f"--{option}", "3"])
    if not options:  # the command line may empty the list of the file
        assert not parse_arguments(types, [*given, f"--{option}", "3", "--search_lambdas"])[0].lambdas


def test_lambda_of_the_file_may_stand_beside_a_grid_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("output_dir: out\nuse_cpu: true\ndair_lambda: 3\n")
    search, args = parse_arguments([SearchConfig, DAIRConfig], ["--config", str(path), "--search_lambdas", "1"])
    assert (search.lambdas, args.dair_lambda) == ((1.0,), 3.0)


def test_recipes_check_the_settings_of_a_search(tmp_path: Path) -> None:
    options = ["--output_dir", str(tmp_path), "--search_lambdas", "1", "2"]
    with pytest.raises(DataError, match="search_warmup has no effect without search_pruner"):
        parse_arguments([SearchConfig, DAIRConfig], [*options, "--search_warmup", "4"])
    parse_arguments([SearchConfig, DAIRConfig], [*options, "--search_warmup", "4", "--search_pruner", "median"])
