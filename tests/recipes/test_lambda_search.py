"""Search for lambda in a recipe, on two ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from dair_hf.io.files import read_json
from tests.fixtures.launching import forked
from tests.fixtures.recipe_runs import CONFIGS, QUIET, RECIPES, command_line

pytestmark = pytest.mark.slow


def test_two_ranks_search_and_compare_once(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = {name: generator.integers(0, 2, (count, 5)) for name, count in (("X_train", 64), ("X_test", 20))}
    targets = {"y" + name[1:]: values.sum(1, keepdims=True).astype(float) for name, values in rows.items()}
    scipy.io.savemat(tmp_path / "qsar.mat", {**rows, **targets})
    options = {"data_file": tmp_path / "qsar.mat", "config": CONFIGS / "robust_regression.yaml"}
    grid = {"search_lambdas": [1, 0], "methods": "dair", "seeds": 0, "validation_share": 0.5, "max_steps": 2}
    options |= {"output_dir": tmp_path / "out", **grid}
    done = forked(RECIPES / "robust_regression.py", *command_line(**options), *QUIET, ranks=2)
    assert done.returncode == 0, done.stderr[-4000:]
    choice = read_json(tmp_path / "out" / "search" / "dair" / "choice.json")
    errors = {point["value"]: point["accuracy"] for point in choice["points"]}
    assert sorted(errors) == [0, 1] and choice["value"] == min(errors, key=errors.__getitem__)
    record = read_json(tmp_path / "out" / "final" / "dair_seed0.json")
    assert record["hardware"]["processes"] == 2
    assert record["config"]["training"]["dair_lambda"] == choice["value"]
