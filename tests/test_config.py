"""DAIRConfig: defaults, help of every new field, and refused settings."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import HfArgumentParser

from dair_hf import DAIRConfig, DataError


def made(folder: Path, **settings: Any) -> DAIRConfig:
    return DAIRConfig(output_dir=str(folder), use_cpu=True, **settings)


def test_defaults_are_those_of_the_paper(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert (found.method, found.regularizer, found.normalization, found.loss_epsilon) == ("dair", "sq", "pair", 1e-7)
    assert (found.forward_mode, found.pair_group_by_length, found.logging_nan_inf_filter) == ("joint", False, False)
    assert found.dair_lambda == 0.5


def test_the_command_line_sets_the_fields(tmp_path: Path) -> None:
    words = [
        "--output_dir", str(tmp_path), "--use_cpu", "--regularizer", "l1", "--dair_lambda", "2.5",
        "--view_weights", "1", "2", "--max_steps", "-1", "--data_seed", "3", "--max_length", "4",
    ]  # fmt: skip
    (found,) = HfArgumentParser(DAIRConfig).parse_args_into_dataclasses(words)  # type: ignore[arg-type]
    assert (found.regularizer, found.dair_lambda) == ("l1", 2.5)
    assert (found.view_weights, found.max_steps, found.data_seed, found.max_length) == ([1.0, 2.0], -1, 3, 4)
    found.max_length = 1
    with pytest.raises(DataError, match="max_length"):  # HfArgumentParser changes the types of `dataclasses.fields`
        found.validate()


@pytest.mark.parametrize(
    ("settings", "uses_partners", "uses_features"),
    [
        ({"method": "erm"}, False, False),
        ({"method": "erm", "regularizer": "kl"}, False, False),
        ({"method": "da", "regularizer": "js"}, True, False),
        ({"method": "dair"}, True, False),
        ({"method": "dair", "regularizer": "js"}, True, True),
        ({"method": "augmented", "regularizer": "kl"}, True, False),
        ({"method": "trades", "regularizer": "kl"}, True, True),
        ({"method": "trades"}, True, False),
        ({"method": "mart", "regularizer": "kl"}, True, True),
    ],
)
def test_what_a_method_uses(tmp_path: Path, settings: dict[str, Any], uses_partners: bool, uses_features: bool) -> None:
    found = made(tmp_path, **settings)
    assert (found.uses_partners, found.uses_features) == (uses_partners, uses_features)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": "mart"}, "regularizer"),
        ({"method": "trades", "normalization": "token"}, "normalization"),
        # Fields of transformers.
        ({"bf16": "no"}, "bf16"),
        ({"seed": -1}, "seed"),
        ({"data_seed": 2**32}, "data_seed"),
        ({"max_steps": 0}, "max_steps"),
        ({"num_train_epochs": -1.0}, "num_train_epochs"),
        ({"logging_nan_inf_filter": True}, "logging_nan_inf_filter"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        # Combinations.
        ({"forward_mode": "separate", "pair_dropout": "shared"}, "pair_dropout"),
        ({"pair_dropout": "shared", "ddp_broadcast_buffers": True}, "ddp_broadcast_buffers"),
        ({"forward_mode": "separate", "deepspeed": {"zero_optimization": {"stage": 3}}}, "deepspeed"),
        ({"pair_group_by_length": True, "train_sampling_strategy": "sequential"}, "train_sampling_strategy"),
        ({"pair_group_by_length": True, "max_tokens_per_batch": 100}, "pair_group_by_length"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        made(tmp_path, **settings)


def test_separate_forwards_set_broadcasts_of_buffers_and_joint_ones_restore_them(tmp_path: Path) -> None:
    for value in (None, False):
        found = made(tmp_path, ddp_broadcast_buffers=value)
        for name, separate, joint in (
            ("forward_mode", "separate", "joint"),
            ("pair_dropout", "shared", "independent"),
        ):
            setattr(found, name, separate)
            for _ in range(2):
                found.validate()
                assert found.ddp_broadcast_buffers is False
            setattr(found, name, joint)
            found.validate()
            assert found.ddp_broadcast_buffers is value
    assert made(tmp_path, forward_mode="separate").ddp_broadcast_buffers is False


def test_a_world_size_without_a_launcher_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers may set it for a single process; a rank also has a number and an address to meet the others."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert not DAIRConfig(str(tmp_path)).use_cpu


def test_bf16_without_a_gpu_trains_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert DAIRConfig(str(tmp_path), bf16=True).use_cpu and DAIRConfig(str(tmp_path), bf16_full_eval=True).use_cpu
    assert not DAIRConfig(str(tmp_path)).use_cpu


def test_numbers_of_numpy_and_ranges_are_accepted() -> None:
    given: dict[str, Any] = {"chunked_loss": np.bool_(False), "max_steps": np.int64(3), "dair_lambda": np.float32(1)}
    args = DAIRConfig("out", use_cpu=True, lr_drop_epochs=range(30, 90, 30), lr_scheduler_type="constant", **given)
    assert list(args.lr_drop_epochs or ()) == [30, 60] and args.dair_lambda == 1
    assert json.loads(json.dumps(args.max_steps)) == 3  # as in the state of the trainer
    DAIRConfig("out", use_cpu=True, lr_drop_epochs=[np.float32(3)], lr_scheduler_type="constant", num_train_epochs=0)


def test_the_token_of_the_hub_is_copied_and_not_saved(tmp_path: Path) -> None:
    args = DAIRConfig(str(tmp_path), hub_token="hf_SECRET")
    torch.save(args, tmp_path / "training_args.bin")  # as the Trainer does in every checkpoint
    assert b"hf_SECRET" not in (tmp_path / "training_args.bin").read_bytes()
    loaded = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert (loaded.hub_token, loaded.output_dir) == (None, str(tmp_path))
    assert args.hub_token == copy.deepcopy(args).hub_token == "hf_SECRET"
