"""Two gloo processes equal one process: updates, logs, evaluation and predictions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures import points, tiny
from tests.fixtures.distributed_run import (
    RESUMED,
    attack_case,
    evaluate_case,
    leading_half,
    partners_case,
    report_case,
    settings_of_cases,
    tensors_case,
    train_case,
    trees_case,
)
from tests.fixtures.launching import launch_two

pytestmark = pytest.mark.slow
CASES = sorted(settings_of_cases())


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of both ranks, from one launch for all tests."""
    return launch_two("tests.fixtures.distributed_run", tmp_path_factory.mktemp("two_processes"))


def test_partners_are_unevenly_distributed_and_rows_are_repeated() -> None:
    """Premise: rank 0 gets every partner, and 9 and 11 rows do not fill steps of 2 processes x 2 rows."""
    data = tiny.pairs("gpt2", 11, partner=leading_half)
    partners = [value is not None for value in data["augmented_labels"]]
    of_rank = [[partners[row] for row in range(11) if row // 2 % 2 == rank] for rank in range(2)]
    assert (sum(of_rank[0]), sum(of_rank[1])) == (6, 0)
    assert 9 % 4 and 11 % 4


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_and_log_like_one(two_processes: list[dict[str, Any]], tmp_path: Path, name: str) -> None:
    alone = train_case(name, tmp_path, processes=1)
    first, second = (rank[name] for rank in two_processes)
    assert tiny.distance(first["weights"], second["weights"]) == 0.0
    assert tiny.distance(first["weights"], alone["weights"]) < 1e-10
    assert tiny.distance(alone["weights"], tiny.weights(tiny.model(settings_of_cases()[name][0]))) > 1e-3

    assert len(alone["logs"]) == len(first["logs"]) > 0
    for one, two in zip(alone["logs"], first["logs"], strict=True):
        assert one.keys() == two.keys() >= {"loss", "loss_original", "partner_share", "rows", "pairs"}
        assert two.pop("loss") == pytest.approx(one.pop("loss"), rel=1e-6)  # the Trainer sums it in float32
        assert two == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("name", sorted(RESUMED))
def test_a_run_resumed_within_an_epoch_trains_the_rows_that_two_processes_repeat_no_more_often(
    two_processes: list[dict[str, Any]], name: str
) -> None:
    for rank in two_processes:
        assert tiny.distance(rank[f"{name}-resumed"], rank[name]["weights"]) == 0.0


def test_token_batches_are_distributed_over_processes(two_processes: list[dict[str, Any]]) -> None:
    first, second = (rank["by-tokens"] for rank in two_processes)
    assert tiny.distance(first["weights"], second["weights"]) == 0.0
    assert first["rows"] == second["rows"]
    assert sum(first["rows"]) == 2 * 23  # every row once per epoch
    assert first["sizes"] != second["sizes"]
    assert len(first["sizes"]) == len(second["sizes"])
    assert max(first["sizes"] + second["sizes"]) <= 60


def test_a_rank_without_a_row_takes_part_in_the_step(two_processes: list[dict[str, Any]]) -> None:
    """Five rows that each fill a batch are three steps of two processes."""
    first, second = (rank["row-by-row"] for rank in two_processes)
    assert tiny.distance(first["weights"], second["weights"]) == 0.0
    assert first["rows"] == second["rows"]
    for epoch in (first["rows"][:3], first["rows"][3:]):
        assert sorted(epoch) == [1, 2, 2]


def test_separate_forwards_with_batch_norm_share_weights_but_not_statistics(
    two_processes: list[dict[str, Any]],
) -> None:
    first, second = (rank["normed"] for rank in two_processes)
    assert tiny.distance(first["weights"], second["weights"]) == 0.0
    # Inputs of partners differ by ten, and only rank 0 has partners; DDP's broadcast would equalize statistics or hang.
    assert (first["mean"] > second["mean"] + 1).all()


def test_prefix_trees_train_and_evaluate_on_two_processes_as_on_one(
    two_processes: list[dict[str, Any]], tmp_path: Path
) -> None:
    alone = trees_case(tmp_path, processes=1)
    first, second = (rank["trees"] for rank in two_processes)
    assert tiny.distance(first["weights"], second["weights"]) == 0.0
    assert tiny.distance(first["weights"], alone["weights"]) < 1e-10
    assert tiny.distance(alone["weights"], tiny.weights(tiny.model("gpt2"))) > 1e-3
    assert first["rows"] == alone["rows"] == [6] * 4
    assert first["shared"] == pytest.approx(alone["shared"])
    assert min(alone["shared"]) > 0.3
    same(alone["metrics"], first["metrics"])
    same(first["metrics"], second["metrics"])
    assert first["predictions"] == alone["predictions"]


def test_tensors_train_and_evaluate_on_two_processes_as_on_one(
    two_processes: list[dict[str, Any]], tmp_path: Path
) -> None:
    alone = tensors_case(tmp_path, processes=1)
    first, second = (rank["tensors"] for rank in two_processes)
    assert torch.equal(first["weights"], second["weights"])
    assert (first["weights"] - alone["weights"]).abs().max() < 1e-10
    same(alone["metrics"], first["metrics"])
    same(first["metrics"], second["metrics"])
    assert (alone["metrics"]["rows"], alone["metrics"]["pairs"]) == (11, 6)


def test_several_partners_are_evaluated_on_two_processes_as_on_one(
    two_processes: list[dict[str, Any]], tmp_path: Path
) -> None:
    alone = partners_case(tmp_path, processes=1)
    first, second = (rank["partners-evaluation"] for rank in two_processes)
    same(alone["metrics"], first["metrics"])
    same(first["metrics"], second["metrics"])
    assert alone["predictions"] == first["predictions"]
    assert alone["predictions"].count('"augmented_2"') == 3
    assert (alone["metrics"]["eval_rows"], alone["metrics"]["eval_pairs"], alone["metrics"]["partners"]) == (11, 6, 9)


@pytest.mark.parametrize("method", ["dair", "augmented"])
def test_attacks_train_and_evaluate_on_two_processes_as_on_one(
    two_processes: list[dict[str, Any]], tmp_path: Path, method: str
) -> None:
    """Each rank attacks its own rows with its own copy of the model; evaluation distributes the batches."""
    alone = attack_case(tmp_path, processes=1, method=method)
    first, second = (rank[f"attack-{method}"] for rank in two_processes)
    for name in ("weights", "attacked"):
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], alone[name], rtol=0, atol=1e-6 if name == "attacked" else 1e-10)
    x, _, _ = points.points(11)
    moved = (alone["attacked"] - x).abs()
    assert 0.1 < moved.max() <= 0.3 + 1e-6
    assert (alone["weights"] - points.weights(points.trainer(tmp_path, points.pairs(11)))).abs().max() > 1e-3


def same(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Compare metrics, with NaN equal to NaN."""
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert right[key] == pytest.approx(value, rel=1e-10, nan_ok=isinstance(value, float) and math.isnan(value)), key


def test_two_processes_evaluate_like_one(two_processes: list[dict[str, Any]], tmp_path: Path) -> None:
    alone = evaluate_case(tmp_path, processes=1)
    first, second = (rank["evaluation"] for rank in two_processes)
    for key in ("metrics", "pairs", "stream"):
        same(alone[key], first[key])
        same(first[key], second[key])
    for key in ("predicted", "labels", "written"):
        assert alone[key] == first[key] == second[key]
    assert alone["predictions"] == first["predictions"]
    lines = [json.loads(line) for line in alone["predictions"].splitlines()]
    assert [line["variant"] for line in lines] == ["original"] * 11 + ["augmented"] * 6
    assert 0 < alone["pairs"]["original_accuracy"] < 1  # neither all correct nor all wrong
    assert alone["metrics"]["eval_rows"] == 11
    assert len({row.count(-100) for row in alone["written"]}) > 1


def test_two_processes_write_the_report_of_one(two_processes: list[dict[str, Any]], tmp_path: Path) -> None:
    alone = report_case(tmp_path, processes=1)
    assert two_processes[0]["report"] == two_processes[1]["report"]
    launched = two_processes[0]["report"]
    assert launched["summary"]["steps_per_pair"] == 2.0, "the losses of the steps of both ranks"
    for name in ("row_id", "partner"):
        assert launched["pairs"][name] == alone["pairs"][name]
    for name in ("loss_original", "loss_augmented", "score", "weight_original"):
        torch.testing.assert_close(launched["pairs"][name], alone["pairs"][name], rtol=1e-6, atol=1e-9)
    assert launched["worst"] == alone["worst"] and launched["correctness"] == alone["correctness"]
