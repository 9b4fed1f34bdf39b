"""Search for lambda in a recipe on real digits: with early stops it makes the choice of the full search, for less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dair_hf.io.files import read_json
from tests.fixtures.recipe_runs import command_line, run

pytestmark = pytest.mark.slow

GRID = {"search_lambdas": [0.1, 1, 1000], "methods": "dair", "seeds": 0, "lambda_sweep": 1}
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
