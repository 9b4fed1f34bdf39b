"""Arithmetic of the benchmarks; the benchmarks themselves are run by hand."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from dair_hf.errors import DataError
from tests.fixtures import tiny
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


def test_ratio_needs_the_same_rounds(measuring: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shorter"):
        measuring["ratio"]("speed", {"a": [1.0, 2.0], "b": [1.0]}, "a", "b")


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


def test_views_as_rows_and_turns_as_their_own_partners(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    columns = ("input_ids", "attention_mask", "labels")
    pairs = datasets.Dataset.from_dict(
        {name: [[1], [2, 2]] for name in columns} | {f"augmented_{name}": [[3], None] for name in columns}
    )
    assert benchmarks("workloads")["flat_rows"](pairs).to_dict() == {name: [[1], [3], [2, 2]] for name in columns}
    batch = {name: [[1], [2]] for name in columns} | {f"augmented_{name}": [None, [4]] for name in columns}
    assert benchmarks("pair_cost")["_own_partner"](batch) == {f"augmented_{name}": [[1], [4]] for name in columns}


def test_a_measure_shows_whether_it_reaches_its_target(measuring: dict[str, Any]) -> None:
    measure = measuring["Measure"]
    assert measure("a", 1.5, 1.0, 2.0, target=1.5).cells() == ("a", "1.500", "1.000 to 2.000", "at most 1.5", "yes", "")
    assert measure("b", 1.5, target=2.0, at_least=True).cells()[3:5] == ("at least 2", "no")
    assert measure("c", 1.5, arithmetic="2").cells() == ("c", "1.500", "", "", "", "2")


def test_the_page_of_results_is_up_to_date(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    results = FOLDER.parent / "results"
    page = benchmarks("performance")["performance"](results / "benchmarks")
    assert page == (results / "PERFORMANCE.md").read_text(encoding="utf-8"), "run benchmarks/performance.py"
    assert page.count("\n## ") == 1 + len(list((results / "benchmarks").glob("*.json")))


def test_every_benchmark_states_command_output_and_time() -> None:
    for path in FOLDER.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        if "conclude(\n" in code and path.stem != "measuring":
            assert f"python benchmarks/{path.name}" in code, path.name
            assert f"results/benchmarks/{path.stem}.json" in code, path.name
            assert "minutes on" in code or "hour on" in code, path.name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_includes_what_is_freed_again(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    peak_above_start = benchmarks("memory")["peak_above_start"]
    small: list[int] = []
    buffers: list[bytearray] = []

    def allocate_and_free() -> None:
        buffers.append(bytearray(b"x" * 64 * 2**20))
        buffers.clear()

    assert 60 * 2**20 < peak_above_start(allocate_and_free) < 200 * 2**20
    assert peak_above_start(lambda: small.append(1)) < 4 * 2**20


def test_batching_counts_padding_by_hand(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    batching = benchmarks("batching")
    pairs = datasets.Dataset.from_dict(
        {"input_ids": [[1] * 4] * 16 + [[1] * 2] * 16, "augmented_input_ids": [[1] * 4] * 16 + [None] * 16}
    )
    shares = batching["padding_shares"](pairs)
    # A budget of 80 tokens: 10 rows of 4 with partners; the other 6 beside 8 rows of 2; the last 8.
    assert (shares["length"], shares["tokens"]) == (0.0, pytest.approx(16 / 176))
    assert 0 < shares["random"] < 1 - (16 * 8 + 16 * 2) / (48 * 4) + 1e-9


def test_options_that_cannot_work_are_refused_before_anything_is_measured(
    measuring: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.json").write_text('{"mine": 1}')
    for arguments, message in (
        (["--rounds", "0"], "argument --rounds: must be at least 1, found 0"),
        (["--rounds", "two"], "argument --rounds: invalid integer value: 'two'"),
        (["--output", str(tmp_path / "mine.json")], "mine.json: was not written by this benchmark; name another file"),
        (["--output", str(tmp_path)], "is a folder; name a file"),
        (["--output", "/proc/x/y.json"], "/proc/x/y.json: cannot "),
    ):
        with pytest.raises(SystemExit) as ended:
            measuring["benchmark_parser"](None, rounds=3).parse_args(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["foreign", "decoder"])
def test_generation_refuses_a_folder_without_a_model_that_it_can_measure(
    benchmarks: Callable[[str], dict[str, Any]], tmp_path: Path, name: str
) -> None:
    if name == "decoder":
        tiny.model("gpt2").save_pretrained(tmp_path)
        tiny.tokenizer().save_pretrained(tmp_path)
    else:
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=str(tmp_path)):
        benchmarks("generation")["load_or_train"](argparse.Namespace(model_dir=str(tmp_path)))


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
    for nodes in (512, 1024, 2048, 4096, 8192):
        shape = shapes["shape_of_nodes"](nodes, 40_000)
        assert 0.96 < shape.nodes / shape.dialogues / nodes <= 1
        assert 0.5 < shape.row_tokens / 40_000 <= 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_shapes_are_measured_by_trees_and_by_rows_and_what_cannot_run_is_named(
    benchmarks: Callable[[str], dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = benchmarks("prefix_tree_shapes")
    output = tmp_path / "shapes.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["x", "--tiny", "--device", "cpu", "--rounds", "1", "--output", str(output)])
        shapes["main"]()
    metrics = json.loads(output.read_text())["metrics"]
    names = [measure["name"].split(",")[0] for measure in metrics["measures"]]
    assert names == ["tokens", "time", "memory"] * 4
    assert all(measure["value"] > 0 for measure in metrics["measures"])

    model = shapes["tracker"](32, 2, 2, 100, "cpu")
    ways = [("turns", "sdpa"), ("turns", "none such")]
    seconds, peaks, skipped = shapes["measure"](model, shapes["Shape"](1, 4, 1), ways, "cpu", 2, "a case")
    assert len(seconds["turns, sdpa"]) == 2
    assert (set(seconds), set(peaks), set(skipped)) == ({"turns, sdpa"}, {"turns, sdpa"}, {"turns, none such"})
    assert "a case, turns, none such: skipped, ValueError" in capsys.readouterr().out


def test_steps_by_trees_and_by_rows_have_the_same_gradients(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    shapes = benchmarks("prefix_tree_shapes")
    model = shapes["tracker"](32, 2, 2, 100, "cpu").double()
    shape = shapes["Shape"](3, 8, 4, dialogues=2)
    found = {}
    for way in ("trees", "turns", "padded"):
        shapes["step"](model, shape, way, "sdpa", "cpu")()
        found[way] = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert found["turns"].abs().max() > 0
    torch.testing.assert_close(found["trees"], found["turns"], rtol=1e-5, atol=1e-7)  # norms compute in float32
    torch.testing.assert_close(found["padded"], found["turns"], rtol=1e-5, atol=1e-7)

    packed = shapes["packed_rows"](shapes["batch_of"](shape, 100, range(3))[0])
    assert packed.shape == (6, 2)
    assert packed.nodes == packed.tokens == shape.row_tokens
    assert int((packed.trees[0].position_ids == 0).sum()) == 12


def test_answers_that_differ_are_not_timed(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    require_equal = benchmarks("prefix_tree_answers")["require_equal"]
    require_equal({"rows": ["a", "b"], "trees": ["a", "b"]})
    with pytest.raises(DataError, match="1 of 2 answers of 'trees' differ from the answers of 'rows', first in view 1"):
        require_equal({"rows": ["a", "b"], "trees": ["a", "c"]})


def test_the_table_of_prefix_trees_is_up_to_date(benchmarks: Callable[[str], dict[str, Any]]) -> None:
    shapes = benchmarks("prefix_tree_shapes")
    record = shapes["record_of"](ROOT / "results" / "benchmarks")
    page = (ROOT / "docs" / "prefix_trees.md").read_text(encoding="utf-8")
    assert shapes["table"](record) in page, "put in the output of: python benchmarks/prefix_tree_shapes.py --table"
