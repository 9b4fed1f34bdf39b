"""Searches for lambda in recipes: early stops on real digits, and on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from dair_hf.io.files import read_json
from tests.fixtures.recipe_runs import CONFIGS, QUIET, command_line, run, run_two_processes

pytestmark = pytest.mark.slow

GRID = {"search_lambdas": [0.1, 1, 1000], "methods": "dair", "seeds": 0}
SIZE = {"train_rows": 1000, "validation_rows": 300, "num_train_epochs": 4, "lr_drop_epochs": 2}


def search(folder: Path, **options: Any) -> dict[str, Any]:
    run("rotated_6_9", "rotated_6_9", folder, *command_line(**GRID, **SIZE, **options))
    choice: dict[str, Any] = read_json(folder / "search" / "dair" / "choice.json")
    return choice


@pytest.mark.realdata
def test_search_with_early_stops_makes_the_choice_of_the_full_search(real_data: Path, tmp_path: Path) -> None:
    mnist = str(real_data / "mnist")
    full = search(tmp_path / "full", mnist=mnist)
    cheap = search(tmp_path / "cheap", mnist=mnist, search_pruner="median", search_reports=4, search_warmup=2)
    assert cheap["dair_lambda"] == full["dair_lambda"]
    # Lambda 1000 learns nothing in this time.
    assert cheap["stopped_early"] == [1000]
    stopped = read_json(tmp_path / "cheap" / "search" / "dair" / "stopped" / "dair_lambda1000_seed0.json")
    assert stopped["stopped_early"]["step"] == 32 and stopped["stopped_early"]["max_steps"] == 64
    # What was not stopped is the run of the full search.
    assert cheap["points"] == full["points"][:2]
    finals = [read_json(tmp_path / name / "final" / "dair_seed0.json")["metrics"] for name in ("full", "cheap")]
    assert finals[0] == finals[1]


@pytest.fixture
def qsar(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = {name: generator.integers(0, 2, (count, 5)) for name, count in (("X_train", 64), ("X_test", 20))}
    targets = {"y" + name[1:]: values.sum(1, keepdims=True).astype(float) for name, values in rows.items()}
    scipy.io.savemat(tmp_path / "qsar.mat", {**rows, **targets})
    return tmp_path / "qsar.mat"


def test_two_ranks_stop_a_lambda_together(qsar: Path, tmp_path: Path) -> None:
    pruner = {"search_pruner": "median", "search_startup": 1, "search_reports": 4, "search_warmup": 1}
    grid = {"search_lambdas": [1, 0, 10], "methods": "dair", "seeds": 0, "validation_share": 0.5, "max_steps": 8}
    options = command_line(data_file=qsar, config=CONFIGS / "robust_regression.yaml", output_dir=tmp_path / "out")
    done = run_two_processes("robust_regression", [*options, *command_line(**grid, **pruner), *QUIET])
    assert done.returncode == 0, done.stderr[-4000:]
    folder = tmp_path / "out" / "search" / "dair"
    choice = read_json(folder / "choice.json")
    assert choice["stopped_early"] and choice["dair_lambda"] not in choice["stopped_early"]
    assert len(choice["points"]) + len(choice["stopped_early"]) == 3
    for value in choice["stopped_early"]:
        record = read_json(folder / "stopped" / f"dair_lambda{value:g}_seed0.json")
        assert record["hardware"]["processes"] == 2 and record["stopped_early"]["step"] < 8
    assert read_json(tmp_path / "out" / "final" / "dair_seed0.json")["hardware"]["processes"] == 2
