"""The theory recipe from the command line, with fewer rows."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from dair_hf.experiments.arguments import parse_arguments
from reproduction.theory import TheoryConfig, lambda_table
from tests.fixtures.paths import ROOT

TINY = ["--rows", "500", "--logistic_rows", "1000"]
LAMBDAS = ["--lambdas", "1", "100", "10000"]

pytestmark = pytest.mark.slow


def run(folder: Path, *options: str) -> None:
    before = sys.argv
    sys.argv = ["theory.py", "--output_dir", str(folder), *TINY, *options]
    try:
        runpy.run_path(str(ROOT / "reproduction" / "theory.py"), run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theory") / "out"
    run(folder, *LAMBDAS, "--seeds", "0", "1")
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((folder / "comparison.json").read_text())["runs"]
    return runs


def metrics(folder: Path, method: str) -> list[dict[str, Any]]:
    selected = [record["metrics"] for record in records(folder) if record["method"] == method]
    assert len(selected) == 2
    return selected


def test_da_equals_its_closed_form(outputs: Path) -> None:
    assert [record["name"] for record in records(outputs)] == ["da_seed0", "dair_seed0", "da_seed1", "dair_seed1"]
    for values in metrics(outputs, "da"):
        # By hand: b = 0.75 / 1.075, w1 = 1 - 0.75 b.
        assert values["w1"] == pytest.approx(1 - 0.75 * 0.75 / 1.075, abs=1e-3)
        assert values["w2"] == pytest.approx(0.75 / 1.075, abs=1e-3)
        assert max(values["error"], values["wide_error"]) < 1e-3 < values["error_plain_rows"]
        assert values["rmse_best_decay"] > 0.7
        assert min(values["distance_best_decay"], values["wide_distance_best_decay"]) > 0.3


def test_tables_and_plots(outputs: Path) -> None:
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


def test_shipped_configuration_is_valid() -> None:
    path = ROOT / "reproduction" / "theory.yaml"
    (config,) = parse_arguments([TheoryConfig], ["--config", str(path)])
    assert config.output_dir == "outputs/theory"
    assert config.dair_lambda in config.lambdas
    assert path.read_text().startswith("# ")
