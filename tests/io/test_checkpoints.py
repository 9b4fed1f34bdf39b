"""The checkpoint from which training resumes, after a run was killed or files were lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import TrainerState

from dair_hf import DataError
from dair_hf.io.checkpoints import last_checkpoint, resumable_checkpoint
from tests.fixtures import points


def checkpoint(folder: Path, step: int, state: str | None = None) -> str:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    safetensors.torch.save_file({"weight": torch.ones(3)}, path / "model.safetensors")
    safetensors.torch.save_file({"means": torch.ones(2)}, path / "lambda.safetensors")  # a state, not weights
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({}, path / name)
    (path / "config.json").write_text('{"model_type": "points"}')
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    return str(path)


def test_last_checkpoint_is_complete(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "absent") is None
    checkpoint(tmp_path, 4)
    assert last_checkpoint(tmp_path) is None
    checkpoint(tmp_path, 9, '{"global_step": 9}')
    newest = checkpoint(tmp_path, 10, '{"global_step": 10}')
    checkpoint(tmp_path, 11, '{"global_st')
    checkpoint(tmp_path, 12)
    assert last_checkpoint(tmp_path) == newest


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Warnings of a checkpoint that is skipped."""
    warnings: list[str] = []
    monkeypatch.setattr("dair_hf.io.checkpoints.logger.warning", warnings.append)
    return warnings


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("optimizer.pt", "optimizer missing"),
        ("scheduler.pt", "scheduler missing"),
        ("rng_state.pth", "random state missing"),
        ("model.safetensors", "weights missing"),
    ],
)
def test_checkpoint_that_lost_a_file_is_skipped_with_a_warning(
    tmp_path: Path, said: list[str], name: str, problem: str
) -> None:
    older, damaged = checkpoint(tmp_path, 1, '{"global_step": 1}'), checkpoint(tmp_path, 2, '{"global_step": 2}')
    Path(damaged, name).unlink()
    assert last_checkpoint(tmp_path) == older
    shutil.rmtree(older)
    assert last_checkpoint(tmp_path) is None
    assert said[0] == f"Incomplete, ignored: {damaged} ({problem}). Training resumes from {older}."
    assert len(said) == 2 and f"{damaged} ({problem}). Training resumes from the start" in said[1]


@pytest.mark.parametrize("name", ["", "checkpoint-99", "empty/checkpoint-99", "file"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    for step in (1, 10):
        checkpoint(tmp_path, step, f'{{"global_step": {step}}}')
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="^resume_from_checkpoint=.* holds checkpoint-1, checkpoint-10$"):
        resumable_checkpoint(str(tmp_path / name), str(tmp_path))


class Killed(BaseException):
    """Stands for the end of the process."""


def run(folder: Path) -> Any:
    return points.trainer(folder, points.pairs(8), max_steps=4, save_strategy="steps", save_steps=1)


def test_a_killed_run_resumes_from_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    whole = run(tmp_path / "whole")
    whole.train()
    save_state = TrainerState.save_to_json

    def save_or_die(state: TrainerState, path: str) -> None:
        if "checkpoint-3" in str(path):
            raise Killed
        save_state(state, path)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TrainerState, "save_to_json", save_or_die)
        run(tmp_path / "out").train()
    cut_off, before = tmp_path / "out/checkpoint-3", tmp_path / "out/checkpoint-2"
    assert cut_off.is_dir()
    resumed = run(tmp_path / "out")
    resumed.train(resume_from_checkpoint=True)
    assert said == [f"Incomplete, ignored: {cut_off} (cut off while it was saved). Training resumes from {before}."]
    assert resumed.state.global_step == 4
    assert torch.equal(points.weights(resumed), points.weights(whole))


def test_without_a_complete_checkpoint_the_error_says_so(tmp_path: Path) -> None:
    made = run(tmp_path)
    unfinished = checkpoint(tmp_path, 2)
    for given in (True, unfinished):
        with pytest.raises(DataError, match=f"^resume_from_checkpoint={given!r}: .* trainer_state.json"):
            made.train(resume_from_checkpoint=given)
