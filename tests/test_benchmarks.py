"""The arithmetic of the benchmarks; the benchmarks themselves are run by hand."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


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


def test_pair_cost_flattens_and_doubles_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    cost = runpy.run_path(str(FOLDER / "pair_cost.py"))
    columns = ("input_ids", "attention_mask", "labels")
    pairs = datasets.Dataset.from_dict(
        {name: [[1], [2, 2]] for name in columns} | {f"augmented_{name}": [[3], [4]] for name in columns}
    )
    assert cost["_flat"](pairs).to_dict() == {name: [[1], [3], [2, 2], [4]] for name in columns}
    batch = {name: [[1], [2]] for name in columns} | {f"augmented_{name}": [None, [4]] for name in columns}
    assert cost["_own_partner"](batch) == {f"augmented_{name}": [[1], [4]] for name in columns}
