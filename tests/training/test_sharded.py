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
    return launched(tmp_path_factory.mktemp("sharded"))


@pytest.fixture(scope="module")
def with_deepspeed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return the results of both ranks from DeepSpeed."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    return launched(tmp_path_factory.mktemp("deepspeed"), DS_ACCELERATOR="cpu")


def launched(folder: Path, **changes: str) -> tuple[Path, list[dict[str, Any]]]:
    sharded_run.save_start(folder / "start")
    return folder, launch_two("tests.fixtures.sharded_run", folder, **changes)


@pytest.mark.parametrize("engine", sharded_run.SETTINGS)
def test_every_step_has_the_losses_of_one_process(
    two_processes: tuple[Path, list[dict[str, Any]]], tmp_path: Path, engine: str
) -> None:
    require_equal(two_processes, tmp_path, engine, relative=1e-9, absolute=1e-10)


@pytest.mark.parametrize("engine", sharded_run.DEEPSPEED)
def test_every_step_of_deepspeed_has_the_losses_of_one_process(
    with_deepspeed: tuple[Path, list[dict[str, Any]]], tmp_path: Path, engine: str
) -> None:
    """Its gradients and optimizer are in float32, whatever the model is in."""
    require_equal(with_deepspeed, tmp_path, engine, relative=1e-4, absolute=1e-5)


def require_equal(
    found: tuple[Path, list[dict[str, Any]]], tmp_path: Path, engine: str, relative: float, absolute: float
) -> None:
    folder, (first, second) = found
    alone = sharded_run.train(tmp_path, folder / "start", engine, processes=1)
    assert len(alone["logs"]) == sharded_run.STEPS
    for one, two in zip(alone["logs"], first[engine]["logs"], strict=True):
        # The Trainer sums the loss in float32.
        assert two.pop("loss") == pytest.approx(one.pop("loss"), rel=max(relative, 1e-6))
        assert two == pytest.approx(one, rel=relative)
    for rank in (first, second):
        assert tiny.distance(rank[engine]["weights"], alone["weights"]) < absolute
        assert rank[engine]["eval_loss"] == pytest.approx(alone["eval_loss"], rel=relative)
        assert rank[engine]["answers"] == alone["answers"]
    if engine != "zero2":  # whose losses are chunked
        # The projection got hidden states at targets alone, without padding, which differs between ranks.
        assert first[engine]["projected"] + second[engine]["projected"] == alone["projected"]
    started = tiny.weights(tiny.model("llama"))
    assert tiny.distance(alone["weights"], started) > 1e-2
    assert (first[engine]["in_shards"] == len(started)) == engine.startswith(("fsdp2", "zero3"))
