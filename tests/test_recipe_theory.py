"""The recipe of the theory as a user runs it, on fewer rows."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parent.parent / "recipes" / "theory.py"
TINY = ["--rows", "500", "--logistic_rows", "1000", "--lambdas", "1", "100", "10000"]

pytestmark = pytest.mark.slow


def run(folder: Path, *options: str) -> None:
    before = sys.argv
    sys.argv = [str(RECIPE), "--output_dir", str(folder), *TINY, *options]
    try:
        runpy.run_path(str(RECIPE), run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theory") / "out"
    run(folder, "--seeds", "0", "1")
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "comparison.json").read_text())["runs"]
    return found


def test_what_must_be_shown(outputs: Path) -> None:
    assert [record["name"] for record in records(outputs)] == ["theory_seed0", "theory_seed1"]
    for record in records(outputs):
        found = record["metrics"]
        # The closed form by hand: b = 0.75 / 1.075, w1 = 1 - 0.75 b.
        assert found["da_w1"] == pytest.approx(1 - 0.75 * 0.75 / 1.075, abs=1e-3)
        assert found["da_w2"] == pytest.approx(0.75 / 1.075, abs=1e-3)
        assert max(found["da_error"], found["wide_da_error"]) < 1e-3
        assert (found["dair_w1"], found["dair_w2"]) == pytest.approx((1, 0), abs=1e-3)
        for prefix in ("", "wide_"):
            assert found[f"{prefix}distance_lambda_10000"] < 1e-3 < 0.3 < found[f"{prefix}da_distance"]
            assert found[f"{prefix}da_rmse_best_decay"] > 1.05 * found[f"{prefix}rmse_lambda_100"]
            for value in (1, 100, 10000):
                assert found[f"{prefix}consistency_lambda_{value}"] <= found[f"{prefix}bound_lambda_{value}"]
        assert found["iterations_rank_correlation"] > 0.8
        assert found["iterations_lambda_10000"] > 2 * found["iterations_lambda_0.5"]
        assert found["smallest_gap"] >= -1e-12


def test_tables_and_plots(outputs: Path) -> None:
    lines = (outputs / "lambdas.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")] == [
        "lambda", "---", "1", "100", "10000",
        "lambda", "---", "0.5", "1", "2", "5", "10", "100", "1000", "10000",
    ]  # fmt: skip
    assert "| 10000 | 803 |" in lines[-1]
    assert "| theory | 2 | 0.477" in (outputs / "comparison.md").read_text()
    for name in ("weights", "bound", "iterations", "gap", "comparison"):
        assert (outputs / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_finished_seeds_are_not_repeated(outputs: Path) -> None:
    kept = outputs / "theory_seed0.json"
    before = kept.stat().st_mtime_ns
    run(outputs, "--seeds", "0")
    assert kept.stat().st_mtime_ns == before
    assert [record["name"] for record in records(outputs)] == ["theory_seed0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lambdas", "0"], "each must be above 0, since 0 is DA-ERM"),
        (["--rows", "3"], "rows=3 must be at least 100"),
        (["--row", "3"], "unknown option --row; did you mean 'rows'?"),
    ],
)
def test_bad_settings_are_one_line(options: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "out", *options)
    message = str(ended.value.code)
    assert message.startswith("error: ")
    assert said in message
    assert not (tmp_path / "out").exists()
