"""Weights that a run takes over from its checkpoints: a resumed run and the best model equal the uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import (
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TrainerCallback,
)

from dair_hf import DAIRTrainer
from tests.fixtures import saved_models, tiny, vision_language

SIZES = {
    "vocab_size": tiny.VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": tiny.PAD,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
MARIAN = {
    "vocab_size": tiny.VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": tiny.PAD, "eos_token_id": tiny.EOS, "decoder_start_token_id": tiny.PAD, "dropout": 0.0,
}  # fmt: skip


def bert(head: nn.Module | None = None) -> PreTrainedModel:
    model = BertForSequenceClassification(saved_models.bert_config())
    model.classifier = head or model.classifier
    return model


def lora(model: PreTrainedModel) -> peft.PeftModel:
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


def lora_on_experts() -> peft.PeftModel:
    experts = ["experts.gate_up_proj", "experts.down_proj"]
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=experts, modules_to_save=["lm_head"])
    return peft.get_peft_model(MODELS["mixtral"](), config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "qwen2_vl": lambda: vision_language.qwen2_vl()[0],
    "llava": lambda: vision_language.llava()[0],
    "paligemma": lambda: vision_language.paligemma()[0],
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=2)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "marian": lambda: MarianMTModel(MarianConfig(**MARIAN)),  # does not save its sinusoidal positions
    "t5": lambda: tiny.model("t5", dtype=torch.float32),
    "bert with another head": lambda: bert(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))),
    "llava, lora": lambda: lora(vision_language.llava()[0]),
    "mixtral, lora": lora_on_experts,
}


class Snapshots(TrainerCallback):
    """Keeps a copy of the weights after every step."""

    def __init__(self) -> None:
        self.after: dict[int, dict[str, Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.after[state.global_step] = copies(kwargs["model"])


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(found: nn.Module, expected: dict[str, Tensor]) -> None:
    assert [name for name, value in copies(found).items() if not torch.equal(value, expected[name])] == []


class Scored(DAIRTrainer):
    """Its second evaluation is the best."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return {"eval_loss": abs(self.state.global_step - 2)}


def rows(kind: str) -> datasets.Dataset:
    if "bert" in kind:
        return datasets.Dataset.from_list([{"input_ids": [9, 10, 11 + row], "labels": row % 2} for row in range(6)])
    data = tiny.pairs("t5" if kind in ("t5", "marian") else "llama", 6, partner=lambda row: False)
    return data.select_columns(["input_ids", "attention_mask", "labels"])


def trainer(folder: Path, kind: str, seed: int = 1, **settings: Any) -> Scored:
    torch.manual_seed(seed)
    model, data = MODELS[kind](), rows(kind)
    args = tiny.config(
        folder, method="erm", max_steps=3, per_device_train_batch_size=2, save_strategy="steps", save_steps=1,
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, **settings,
    )  # fmt: skip
    return Scored(model, args, train_dataset=data, eval_dataset=data, processing_class=tiny.tokenizer())


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "llama"])
def test_a_resumed_run_and_its_best_model_equal_the_uninterrupted_run(tmp_path: Path, kind: str) -> None:
    whole, snapshots = trainer(tmp_path, kind), Snapshots()
    whole.add_callback(snapshots)
    whole.train()
    assert_equal(whole.model, snapshots.after[2])
    base = {name: value for name, value in snapshots.after[2].items() if "lora_" not in name}
    resumed, again = trainer(tmp_path, kind, seed=2), Snapshots()
    if "lora" in kind:  # the frozen weights are those of the base model
        resumed.model.load_state_dict(base, strict=False)
    resumed.add_callback(again)
    held = {id(weight) for weight in resumed.model.parameters()}
    resumed.create_optimizer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert list(again.after) == [3]
    assert [name for name, value in again.after[3].items() if not torch.equal(value, snapshots.after[3][name])] == []
    assert_equal(resumed.model, snapshots.after[2])
    assert {id(weight) for weight in resumed.model.parameters()} == held
    assert any(not torch.equal(snapshots.after[3][name], value) for name, value in snapshots.after[2].items())


def test_weights_in_several_files_are_loaded(tmp_path: Path) -> None:
    whole, snapshots = trainer(tmp_path, "qwen3_moe"), Snapshots()
    whole.add_callback(snapshots)
    whole.train()
    checkpoint = tmp_path / "checkpoint-2"
    (checkpoint / "model.safetensors").unlink()
    whole.model.save_pretrained(checkpoint, max_shard_size="4KB")  # the best model is that of this checkpoint
    assert len(list(checkpoint.glob("model-*.safetensors"))) > 2
    resumed = trainer(tmp_path, "qwen3_moe", seed=2)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert_equal(resumed.model, snapshots.after[2])


@pytest.mark.parametrize("kind", ["llama", "mixtral, lora"])
def test_a_checkpoint_without_one_of_the_weights_is_refused(tmp_path: Path, kind: str) -> None:
    made = trainer(tmp_path, kind)
    made.train()
    (file,) = (tmp_path / "checkpoint-2").glob("*model.safetensors")
    weights = safetensors.torch.load_file(file)
    last = sorted(weights)[-1]
    safetensors.torch.save_file({n: v for n, v in weights.items() if n != last}, file, metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=last):
        trainer(tmp_path, kind).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    with pytest.raises(RuntimeError, match=last):
        made._load_best_model()
