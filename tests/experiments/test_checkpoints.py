"""Base models that are trained once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from dair_hf import DAIRConfig
from dair_hf.experiments.checkpoints import base_fingerprint, train_base_once
from dair_hf.io.files import read_json, write_json
from dair_hf.modeling import ModelConfig
from tests.fixtures import points, tiny


def test_base_is_trained_once_and_saved_completely(tmp_path: Path) -> None:
    made = []

    def make_trainer() -> Any:
        made.append(1)
        return points.trainer(tmp_path / "training", points.pairs(4), max_steps=1, method="erm")

    folder = train_base_once(tmp_path / "base", make_trainer)
    assert folder == tmp_path / "base"
    assert (folder / "model.safetensors").exists()
    state = read_json(folder / "trainer_state.json")
    assert state["global_step"] == 1 and any("train_runtime" in entry for entry in state["log_history"])
    train_base_once(tmp_path / "base", make_trainer)
    assert len(made) == 1

    def make_failing_trainer() -> Any:
        trainer = make_trainer()
        trainer.save_model = lambda path: 1 / 0
        return trainer

    with pytest.raises(ZeroDivisionError):
        train_base_once(tmp_path / "other", make_failing_trainer)
    assert not (tmp_path / "other").exists()


def name_of_base(folder: Path, tokenizer: Any = None, data: str = "f00d", model: Any = None, **changes: Any) -> str:
    args = DAIRConfig(str(folder), use_cpu=True, **{"method": "da", "max_steps": 10, **changes})
    return base_fingerprint(args, model or ModelConfig(), tokenizer or tiny.tokenizer(), {"rows": data})


@pytest.mark.parametrize(
    "changes",
    [
        {"max_steps": -1},
        {"weight_decay": 0.5},
        {"method": "erm"},
        {"seed": 1},
        {"data": "beef"},
        {"model": ModelConfig(model_name_or_path="some/model")},
        {"model": ModelConfig(model_settings={"model_type": "t5"})},
        {"model": ModelConfig(attn_implementation="eager")},
    ],
)
def test_bases_with_other_weights_have_other_names(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert name_of_base(tmp_path, **changes) != name_of_base(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_train_epochs": 9},
        {"model": ModelConfig(use_peft=True, lora_r=4, lora_alpha=3, lora_target_modules=["q"])},
        {"dair_lambda": 7.0},
        {"regularizer": "kl"},
        {"dair_lambda": "auto", "lambda_target": 3.0, "lambda_warmup_steps": 0.5},
    ],
)
def test_equal_bases_have_one_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Methods of a comparison differ in lambda and regularizer, which a base by ERM or DA-ERM does not use."""
    assert name_of_base(tmp_path / "elsewhere", **changes) == name_of_base(tmp_path)


@pytest.mark.parametrize("changes", [{"dair_lambda": 7.0}, {"regularizer": "kl"}, {"lambda_warmup_steps": 3}])
def test_lambda_counts_for_a_base_that_uses_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert name_of_base(tmp_path, method="dair", **changes) != name_of_base(tmp_path, method="dair")


def test_bases_with_other_tokenizers_have_other_names(tmp_path: Path) -> None:
    other = tiny.tokenizer()
    other.add_tokens(["käse"])
    assert name_of_base(tmp_path, other) != name_of_base(tmp_path)
    left = tiny.tokenizer()
    left.padding_side = {"left": "right", "right": "left"}[left.padding_side]
    assert name_of_base(tmp_path, left) != name_of_base(tmp_path)
    lower = tiny.tokenizer()
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()  # with the same vocabulary
    assert name_of_base(tmp_path, lower) != name_of_base(tmp_path)
    padded = tiny.tokenizer()
    padded(["w1", "w2 w3"], padding=True, truncation=True, max_length=2)
    assert name_of_base(tmp_path, padded) == name_of_base(tmp_path)


def test_a_model_in_a_folder_counts_by_its_weights(tmp_path: Path) -> None:
    tiny.model("t5").save_pretrained(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("A copy.")
    one, copy = (ModelConfig(model_name_or_path=str(tmp_path / name)) for name in ("one", "copy"))
    before = name_of_base(tmp_path, model=one)
    assert name_of_base(tmp_path, model=copy) == before
    assert name_of_base(tmp_path, model=replace(one, trust_remote_code=True)) == before
    (tmp_path / "copy" / "modeling.py").write_text("scale = 2")
    assert name_of_base(tmp_path, model=copy) != before
    (tmp_path / "copy" / "modeling.py").unlink()
    settings = read_json(tmp_path / "copy" / "config.json")
    write_json(tmp_path / "copy" / "config.json", {**settings, "dropout_rate": 0.5})
    assert name_of_base(tmp_path, model=copy) != before
    write_json(tmp_path / "copy" / "config.json", settings)
    changed = tiny.model("t5")
    changed.shared.weight.data[0] += 1
    changed.save_pretrained(tmp_path / "copy")
    assert name_of_base(tmp_path, model=copy) != before
