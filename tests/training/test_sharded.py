"""DDP and FSDP2 on two gloo processes: losses equal those of one process at every step, weights after ten steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import sharded_run, tiny
from tests.fixtures.launching import launch_two

pytestmark = pytest.mark.slow


Launched = Callable[[bool], tuple[Path, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """Return a function that gives the results of both ranks, from one launch with and one without DeepSpeed."""

    @functools.cache
    def launched(with_deepspeed: bool) -> tuple[Path, list[dict[str, Any]]]:
        folder = tmp_path_factory.mktemp("sharded")
        tiny.model("llama").save_pretrained(folder / "start")
        changes = {"DS_ACCELERATOR": "cpu"} if with_deepspeed else {}
        return folder, launch_two("tests.fixtures.sharded_run", folder, **changes)

    return launched


@pytest.mark.parametrize("engine", sharded_run.SETTINGS)
def test_every_step_has_the_losses_of_one_process(two_processes: Launched, tmp_path: Path, engine: str) -> None:
    relative, absolute = 1e-9, 1e-10
    if engine.startswith("zero"):
        pytest.importorskip("deepspeed", reason="deepspeed is not installed")
        relative, absolute = 1e-4, 1e-5  # gradients and optimizer are in float32, whatever the model is in
    folder, (first, second) = two_processes(engine.startswith("zero"))
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
