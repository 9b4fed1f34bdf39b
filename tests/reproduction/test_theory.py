"""The theory recipe from the command line, with fewer rows."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from reproduction.theory import lambda_table
from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow


def test_theory_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DA-ERM equals its closed form, and the tables and plots are those of the records."""
    options = "--rows 500 --logistic_rows 1000 --lambdas 1 100 10000 --seeds 0 1".split()
    monkeypatch.setattr(sys, "argv", ["theory.py", "--output_dir", str(tmp_path / "out"), *options])
    runpy.run_path(str(ROOT / "reproduction" / "theory.py"), run_name="__main__")
    outputs = tmp_path / "out"
    records = json.loads((outputs / "comparison.json").read_text())["runs"]
    assert [record["name"] for record in records] == ["da_seed0", "dair_seed0", "da_seed1", "dair_seed1"]
    for values in (record["metrics"] for record in records if record["method"] == "da"):
        # By hand: b = 0.75 / 1.075, w1 = 1 - 0.75 b.
        assert values["w1"] == pytest.approx(1 - 0.75 * 0.75 / 1.075, abs=1e-3)
        assert values["w2"] == pytest.approx(0.75 / 1.075, abs=1e-3)
        assert max(values["error"], values["wide_error"]) < 1e-3 < values["error_plain_rows"]
        assert values["rmse_best_decay"] > 0.7
        assert min(values["distance_best_decay"], values["wide_distance_best_decay"]) > 0.3
    lines = (outputs / "lambdas.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")] == [
        "lambda", "---", "1", "100", "10000",
        "lambda", "---", "0.5", "1", "2", "5", "10", "100", "1000", "10000",
    ]  # fmt: skip
    assert lines[-1].startswith("| 10000 | 803 |")
    assert "| da | 2 | 0.477" in (outputs / "comparison.md").read_text()
    for name in ("weights", "bound", "iterations", "gap", "comparison"):
        assert (outputs / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_table_without_convergence() -> None:
    """Adam may not reach the tolerance: the number of its iterations is then undefined."""
    values = ({"steps_lambda_1": 3, "steps_lambda_2": 5}, {"steps_lambda_1": 4, "steps_lambda_2": None})
    table = lambda_table([{"metrics": metrics} for metrics in values], "Toy", [1.0, 2.0], ["steps"])
    assert table.splitlines()[-2:] == ["| 1 | 3.5 |", "| 2 | - |"]
