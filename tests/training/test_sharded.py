"""DDP and FSDP2 on two gloo processes: losses equal those of one process at every step, weights after ten steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import sharded_run, tiny
from tests.fixtures.launching import launch_two

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return the results of both ranks, from one launch."""
    folder = tmp_path_factory.mktemp("sharded")
    sharded_run.save_start(folder / "start")
    return folder, launch_two("tests.fixtures.sharded_run", folder)


@pytest.mark.parametrize("engine", sharded_run.SETTINGS)
def test_every_step_has_the_losses_of_one_process(
    two_processes: tuple[Path, list[dict[str, Any]]], tmp_path: Path, engine: str
) -> None:
    folder, (first, second) = two_processes
    alone = sharded_run.train(tmp_path, folder / "start", engine, processes=1)
    assert len(alone["logs"]) == sharded_run.STEPS
    for one, launched in zip(alone["logs"], first[engine]["logs"], strict=True):
        # The Trainer sums the loss in float32.
        assert launched.pop("loss") == pytest.approx(one.pop("loss"), rel=1e-6)
        assert launched == pytest.approx(one, rel=1e-9)
    for rank in (first, second):
        assert tiny.distance(rank[engine]["weights"], alone["weights"]) < 1e-10
        assert rank[engine]["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-9)
        assert rank[engine]["answers"] == alone["answers"]
    started = tiny.weights(tiny.model("llama"))
    assert tiny.distance(alone["weights"], started) > 1e-2
    assert (first[engine]["in_shards"] == len(started)) == engine.startswith("fsdp2")
