"""Resuming from checkpoints, base models that are trained once, and failures while saving."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.checkpoints import base_fingerprint, save_run, train_base_once, train_resumable
from tests.fixtures import tiny


def test_base_is_trained_once_and_saved_completely(tmp_path: Path) -> None:
    made = []

    def make_trainer() -> Any:
        made.append(1)
        return tiny.trainer(tmp_path / "training", "t5", tiny.pairs("t5", 4), max_steps=1, method="erm")

    folder = train_base_once(tmp_path / "base", make_trainer)
    assert folder == tmp_path / "base"
    assert (folder / "model.safetensors").exists()
    train_base_once(tmp_path / "base", make_trainer)
    assert len(made) == 1

    def make_failing_trainer() -> Any:
        trainer = make_trainer()
        trainer.save_model = lambda path: 1 / 0
        return trainer

    with pytest.raises(ZeroDivisionError):
        train_base_once(tmp_path / "other", make_failing_trainer)
    assert not (tmp_path / "other").exists()


def name_of_base(folder: Path, tokenizer: Any = None, **changes: Any) -> str:
    data = {"rows": changes.pop("rows", "f00d")}
    config = {"data": {"slots": changes.pop("slots", 3), "evaluate_on": changes.pop("evaluate_on", "test")}}
    args = DAIRConfig(str(folder), use_cpu=True, **{"max_steps": 10, **changes})
    return base_fingerprint(args, config, data, tokenizer or tiny.tokenizer(), ("data.evaluate_on",))


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 0.5},
        {"per_device_train_batch_size": 3},
        {"warmup_steps": 5},
        {"max_steps": 11},
        {"max_steps": -1},
        {"method": "da"},
        {"dair_lambda": 7.0},
        {"seed": 1},
        {"rows": "beef"},
        {"slots": 4},
    ],
)
def test_bases_with_other_weights_have_other_names(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert name_of_base(tmp_path, **changes) != name_of_base(tmp_path)


def test_bases_with_other_tokenizers_have_other_names(tmp_path: Path) -> None:
    other = tiny.tokenizer()
    other.add_tokens(["käse"])
    assert name_of_base(tmp_path, other) != name_of_base(tmp_path)
    padded = tiny.tokenizer()
    padded(["w1", "w2 w3"], padding=True, truncation=True, max_length=2)
    assert name_of_base(tmp_path, padded) == name_of_base(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_train_epochs": 9},
        {"logging_steps": 7},
        {"save_steps": 7},
        {"per_device_eval_batch_size": 7},
        {"evaluate_on": "validation"},
    ],
)
def test_equal_bases_have_one_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert name_of_base(tmp_path / "elsewhere", **changes) == name_of_base(tmp_path)


def test_training_resumes_from_the_last_complete_checkpoint(tmp_path: Path) -> None:
    data = tiny.pairs("t5", 8)
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    uninterrupted = tiny.trainer(tmp_path / "uninterrupted", "t5", data, **settings)
    train_resumable(uninterrupted)
    interrupted = tiny.trainer(tmp_path / "interrupted", "t5", data, **settings)
    interrupted.train()
    # As if killed while the checkpoint of step 4 was being written.
    (tmp_path / "interrupted/checkpoint-4/trainer_state.json").unlink()
    (tmp_path / "interrupted/checkpoint-4/model.safetensors").write_bytes(b"torn")
    resumed = tiny.trainer(tmp_path / "interrupted", "t5", data, **settings)
    train_resumable(resumed)
    assert resumed.state.global_step == 4
    assert tiny.distance(tiny.weights(resumed.model), tiny.weights(uninterrupted.model)) == 0


def test_training_without_its_optimizer_equals_the_uninterrupted_run(tmp_path: Path) -> None:
    data = tiny.pairs("t5", 8)
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    uninterrupted = tiny.trainer(tmp_path, "t5", data, **settings)
    uninterrupted.train()
    shutil.rmtree(tmp_path / "checkpoint-6")
    (tmp_path / "checkpoint-4" / "optimizer.pt").unlink()
    resumed = tiny.trainer(tmp_path, "t5", data, **settings)
    train_resumable(resumed)
    assert resumed.state.global_step == 6
    assert tiny.distance(tiny.weights(resumed.model), tiny.weights(uninterrupted.model)) == 0


def test_full_disk_leaves_complete_checkpoints_and_no_partial_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = tiny.pairs("t5", 8), {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "method": "erm"}
    full, save = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), torch.save

    def fails_at_the_second(value: Any, path: str, **others: Any) -> None:
        if "checkpoint-2" in str(path):
            raise full
        save(value, path, **others)

    monkeypatch.setattr(torch, "save", fails_at_the_second)
    with pytest.raises(DataError, match=f"{tmp_path}: cannot be written: the disk mounted at .* is full"):
        train_resumable(tiny.trainer(tmp_path, "t5", data, **settings))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
    monkeypatch.undo()
    trainer = tiny.trainer(tmp_path, "t5", data, **settings)
    train_resumable(trainer)
    before = set(tmp_path.iterdir())

    def fails(**card: Any) -> None:
        assert (tmp_path / "model.safetensors").exists()
        raise OSError(28, "No space left on device")

    trainer.create_model_card = fails
    with pytest.raises(
        DataError, match=r"is full, or .* \(No space left on device; [\d,]+ bytes are free\); free some"
    ):
        save_run(trainer)
    assert set(tmp_path.iterdir()) == before
