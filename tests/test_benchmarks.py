"""The arithmetic of the benchmarks; the benchmarks themselves are run by hand."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from typing import Any

import datasets
import pytest

from tests.fixtures.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def timing() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "timing.py"))


def test_ratio_by_hand(timing: dict[str, Any]) -> None:
    seconds = {"a": [1.0, 9.0, 3.0], "b": [2.0, 3.0, 4.0]}
    # Medians 3 and 3; within the rounds 0.5, 3 and 0.75.
    found = timing["ratio"](seconds, "a", "b")
    assert found["ratio"] == 1.0
    assert found["quartile_low"] == pytest.approx(0.5)
    assert found["quartile_high"] == pytest.approx(3.0)
    assert timing["ratio"]({"a": [1.0], "b": [4.0]}, "a", "b") == {
        "ratio": 0.25,
        "quartile_low": 0.25,
        "quartile_high": 0.25,
    }


def test_ratio_needs_the_same_rounds(timing: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shorter"):
        timing["ratio"]({"a": [1.0, 2.0], "b": [1.0]}, "a", "b")


def test_rounds_are_interleaved_and_begin_in_turn(timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    order: list[str] = []

    def variant(name: str, cost: float) -> Any:
        def run() -> None:
            order.append(name)
            clock[0] += cost

        return run

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    found = timing["interleaved"]({"a": variant("a", 1.0), "b": variant("b", 2.0), "c": variant("c", 4.0)}, 3, warmup=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [4.0] * 3}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Name of a script -> what it defines; its neighbours can be imported."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))


def test_views_as_rows_and_turns_as_their_own_partners(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    columns = ("input_ids", "attention_mask", "labels")
    pairs = datasets.Dataset.from_dict(
        {name: [[1], [2, 2]] for name in columns} | {f"augmented_{name}": [[3], None] for name in columns}
    )
    assert benchmarks("dialogs")["flat_rows"](pairs).to_dict() == {name: [[1], [3], [2, 2]] for name in columns}
    batch = {name: [[1], [2]] for name in columns} | {f"augmented_{name}": [None, [4]] for name in columns}
    assert benchmarks("pair_cost")["_own_partner"](batch) == {f"augmented_{name}": [[1], [4]] for name in columns}


def test_a_measure_says_whether_it_holds(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    measure = benchmarks("outcome")["Measure"]
    assert measure("a", 1.5, 1.0, 2.0, target=1.5).cells() == ("a", "1.500", "1.000 to 2.000", "at most 1.5", "yes", "")
    assert measure("b", 1.5, target=2.0, at_least=True).cells()[3:5] == ("at least 2", "no")
    assert measure("c", 1.5, arithmetic="2").cells() == ("c", "1.500", "", "", "", "2")


def test_the_page_of_results_is_that_of_the_files(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    results = FOLDER.parent / "results"
    page = benchmarks("performance")["performance"](results / "benchmarks")
    assert page == (results / "PERFORMANCE.md").read_text(encoding="utf-8"), "run benchmarks/performance.py"
    assert page.count("\n## ") == 1 + len(list((results / "benchmarks").glob("*.json")))


def test_every_benchmark_says_what_it_measures_and_how_long_it_takes() -> None:
    for path in FOLDER.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        if "conclude(\n" in code and path.stem != "outcome":
            assert f"python benchmarks/{path.name}" in code, path.name
            assert f"results/benchmarks/{path.stem}.json" in code, path.name
            assert "minutes on" in code or "hour on" in code, path.name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_that_of_what_runs(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    peak_above_start = benchmarks("memory")["peak_above_start"]
    kept = []

    def passing() -> None:
        del passing_by[:]
        passing_by.append(bytearray(b"x" * 64 * 2**20))
        del passing_by[:]

    passing_by: list[bytearray] = []
    assert 60 * 2**20 < peak_above_start(passing) < 200 * 2**20
    assert peak_above_start(lambda: kept.append(1)) < 4 * 2**20


def test_batching_counts_padding_by_hand(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    batching = benchmarks("batching")
    pairs = datasets.Dataset.from_dict(
        {"input_ids": [[1] * 4] * 16 + [[1] * 2] * 16, "augmented_input_ids": [[1] * 4] * 16 + [None] * 16}
    )
    shares = batching["padding_shares"](pairs)
    # A budget of 80 tokens: 10 rows of 4 with partners; the other 6 beside 8 rows of 2; the last 8.
    assert (shares["length"], shares["tokens"]) == (0.0, pytest.approx(16 / 176))
    assert 0 < shares["random"] < 1 - (16 * 8 + 16 * 2) / (48 * 4) + 1e-9
