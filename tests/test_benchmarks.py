"""Arithmetic of the benchmarks; the benchmarks themselves are run by hand."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def measuring() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "measuring.py"), run_name="measuring")


def test_ratio_by_hand(measuring: dict[str, Any]) -> None:
    seconds = {"a": [1.0, 9.0, 3.0], "b": [2.0, 3.0, 4.0]}
    # Medians 3 and 3; within the rounds 0.5, 3 and 0.75.
    measure = measuring["ratio"]("speed", seconds, "a", "b", target=1.5)
    assert (measure.name, measure.value, measure.target) == ("speed", 1.0, 1.5)
    # Halfway from 0.75 to its neighbours: within what was measured, however few the rounds.
    assert measure.low == pytest.approx(0.625)
    assert measure.high == pytest.approx(1.875)
    single = measuring["ratio"]("speed", {"a": [1.0], "b": [4.0]}, "a", "b")
    assert (single.value, single.low, single.high) == (0.25, 0.25, 0.25)


def test_rounds_are_interleaved_and_start_with_each_variant_in_turn(
    measuring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    order: list[str] = []

    def variant(name: str, cost: float) -> Any:
        def run() -> None:
            order.append(name)
            clock[0] += cost

        return run

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    variants = {"a": variant("a", 1.0), "b": variant("b", 2.0), "c": variant("c", 4.0)}
    seconds = measuring["interleaved"](variants, 3, warmup=1)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [4.0] * 3}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Function from the name of a script to its globals."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))


def test_the_page_of_results_is_up_to_date(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    results = FOLDER.parent / "results"
    page = benchmarks("performance")["performance"](results / "benchmarks")
    assert page == (results / "PERFORMANCE.md").read_text(encoding="utf-8"), "run benchmarks/performance.py"
    assert page.count("\n## ") == 1 + len(list((results / "benchmarks").glob("*.json")))


@pytest.mark.parametrize("partners", [True, False])
def test_shapes_of_dialogues_are_counted_exactly(benchmarks: Callable[[str], dict[str, Any]], partners: bool) -> None:
    shapes = benchmarks("prefix_tree_shapes")
    for turns, history, target, dialogues in ((1, 4, 1, 1), (3, 8, 4, 2), (20, 10, 16, 1)):
        shape = shapes["Shape"](turns, history, target, partners, dialogues)
        forest = shapes["forest_of"](shape, 2048)
        assert (forest.nodes, forest.tokens) == (shape.nodes, shape.row_tokens)
        rows = [length for turn in range(turns) for length in [shape.length(turn)] * shape.views * dialogues]
        assert shape.row_scores == sum(sum(range(1, length + 1)) for length in rows)
    # Two turns of 4 tokens and 1 target, partners from the second token: 1 + 2 x 7 + 2 x 2 nodes, 2 x (5 + 9) tokens.
    shape = shapes["Shape"](2, 4, 1)
    assert (shape.nodes, shape.row_tokens) == (19, 28)
    assert shapes["dense_scores"](shape) == shapes["block_scores"](shape) == 19**2
    # A block of these 618 nodes has 128, and the depth of the first is the number of its ancestors.
    depths = shapes["forest_of"](larger := shapes["Shape"](3, 100, 5), 2048).trees[0].position_ids.tolist()
    starts = range(0, larger.nodes, 128)
    blocks = [(min(128, larger.nodes - start), depths[start]) for start in starts]
    assert shapes["block_scores"](larger) == sum(own * (own + ancestors) for own, ancestors in blocks)


def test_steps_by_trees_and_by_rows_have_the_same_gradients(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    shapes = benchmarks("prefix_tree_shapes")
    model = shapes["tracker"](32, 2, 2, 100).double()
    shape = shapes["Shape"](3, 8, 4, dialogues=2)
    found = {}
    for way in ("trees", "turns", "padded"):
        shapes["step"](model, shape, way)()
        found[way] = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert found["turns"].abs().max() > 0
    torch.testing.assert_close(found["trees"], found["turns"], rtol=1e-5, atol=1e-7)  # norms compute in float32
    torch.testing.assert_close(found["padded"], found["turns"], rtol=1e-5, atol=1e-7)


def test_the_benchmark_of_a_gpu_has_figures_for_every_case(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    options = ("--tiny", "--part", "exactness", "step", "--output", output)
    done = forked("benchmarks/gpu.py", *options, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads(output.read_text(encoding="utf-8"))["metrics"]
    exactness, steps = metrics["parts"]["exactness"], metrics["parts"]["step"]
    assert {case: figures for case, figures in {**exactness, **steps}.items() if "failed" in figures} == {}
    ways = [f"{dtype}, {way}" for dtype in ("float32", "bfloat16") for way in ("rows", "dense")]
    assert [*exactness] == [f"{model}, {way}" for model in ("llama", "qwen3", "gemma3") for way in ways]
    for case, errors in exactness.items():
        bound = 1e-6 if "float32" in case else 1e-3
        assert errors["mean error of losses"] <= bound and errors["error of gradients"] <= 30 * bound, (case, errors)
    assert [*steps] == ["DAIRTrainer", "Seq2SeqTrainer"]
    assert all(figures["ms a step"] > 0 for figures in steps.values()), steps
    same = {figures["tokens a step"] for figures in steps.values()}
    assert len(same) == 1, "the trainers took other rows"
    assert len(metrics["measures"]) == 3
