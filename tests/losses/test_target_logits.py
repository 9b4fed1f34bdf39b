"""Logits at targets alone against all logits: losses, gradients, and what the projection sees."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    BertConfig,
    BertLMHeadModel,
    DataCollatorForSeq2Seq,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    RoFormerConfig,
    RoFormerForCausalLM,
)

from dair_hf import PairCollator
from dair_hf.data.batch_layout import LayoutCollator, TargetRule
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import causal_nll
from dair_hf.losses.target_logits import needs_no_padding_mask, output_projection
from dair_hf.training.forward.pair_loss import PairLoss
from dair_hf.training.sample_loss import base_model_of
from tests.fixtures import tiny


def gemma() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma2Config(
        vocab_size=tiny.VOCAB, num_key_value_heads=1, head_dim=8, initializer_range=0.5,
        final_logit_softcapping=1.5, **sizes, **tiny.TOKENS,
    )  # fmt: skip
    return Gemma2ForCausalLM(config).double()


def with_lora() -> nn.Module:
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    torch.manual_seed(5)
    return get_peft_model(tiny.model("llama"), config).double()


SETTINGS: list[dict[str, Any]] = [
    {},
    {"forward_mode": "separate"},
    {"gradient_cache": 2},
    {"regularizer": "kl"},
    {"regularizer": "js", "forward_mode": "separate"},
]
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: tiny.model("gpt2"),
    "llama": lambda: tiny.model("llama"),
    "gemma2": gemma,
    "lora": with_lora,
}


def batch_of(padding_side: str = "right") -> dict[str, Any]:
    """Rows with and without partners, of several lengths, one of them without a target, with a layout."""
    rows = tiny.pairs("gpt2", 7).to_list()
    rows[2]["labels"] = [-100] * len(rows[2]["labels"])
    tokenizer = tiny.tokenizer()
    tokenizer.padding_side = padding_side
    collator = PairCollator(DataCollatorForSeq2Seq(tokenizer, model=None))
    made: dict[str, Any] = LayoutCollator(collator, TargetRule(shifts_labels=True, aligns=True))(rows)
    return made


def found(
    folder: Path, kind: str, selects: bool, scale: float = 1.0, **settings: Any
) -> tuple[torch.Tensor, torch.Tensor, list[Any], int]:
    """The objective's losses and R, all gradients, and how many positions the projection got."""
    model = MODELS[kind]()
    projection = output_projection(base_model_of(model))
    assert projection is not None
    seen: list[int] = []
    projection.register_forward_hook(lambda module, args, output: seen.append(output.shape[:-1].numel()))
    loss = PairLoss(tiny.config(folder, **settings), causal_nll, projection=projection if selects else None)
    outputs = loss(model, batch_of(), with_partners=True)
    losses = outputs.losses_at_scale(torch.tensor(scale).double()) if scale != 1.0 else outputs.losses
    (losses.square().sum() + outputs.terms.consistency.sum()).backward()
    gradients = [copy.copy(weights.grad) for weights in model.parameters()]
    return losses.detach(), outputs.terms.consistency.detach(), gradients, sum(seen)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_losses_and_gradients_are_those_of_all_logits(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    *expected, of_all = found(tmp_path, kind, selects=False, **settings)
    *values, of_targets = found(tmp_path, kind, selects=True, **settings)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-12)
    assert values[1].any() and values[0].shape == (7, 2)
    batch, times = batch_of(), 2 if "gradient_cache" in settings else 1
    assert of_targets == times * int(batch["layout"].targets.sum())
    assert of_all == times * int(batch["view_mask"].sum()) * batch["labels"].shape[-1] > 2 * of_targets


def test_losses_at_another_scale_of_the_logits(tmp_path: Path) -> None:
    *expected, _ = found(tmp_path, "llama", selects=False, scale=0.3)
    *values, _ = found(tmp_path, "llama", selects=True, scale=0.3)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-12)
    assert (values[0] != found(tmp_path, "llama", selects=True)[0]).any()


def test_a_batch_without_a_target_has_gradients_of_zero(tmp_path: Path) -> None:
    model, batch = tiny.model("llama"), batch_of()
    batch["labels"].fill_(-100)
    batch["layout"] = TargetRule(shifts_labels=True).layout(batch)
    loss = PairLoss(tiny.config(tmp_path), causal_nll, projection=output_projection(model))
    outputs = loss(model, batch, with_partners=True)
    outputs.losses.sum().backward()
    assert not outputs.losses.any()
    assert all(weights.grad is not None and not weights.grad.any() for weights in model.parameters())


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_padding_at_the_end_needs_no_mask(tmp_path: Path, padding_side: str) -> None:
    results, masks = [], []
    for drops_masks in (False, True):
        model = tiny.model("llama")
        model.register_forward_pre_hook(
            lambda module, args, inputs: masks.append("attention_mask" in inputs), with_kwargs=True
        )
        projection = output_projection(model)
        loss = PairLoss(tiny.config(tmp_path), causal_nll, projection=projection, drops_masks=drops_masks)
        losses = loss(model, batch_of(padding_side), with_partners=True).losses
        losses.square().sum().backward()
        results.append([losses.detach(), *(weights.grad for weights in model.parameters())])
    assert masks == [True, padding_side == "left"]
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)


def test_embeddings_in_place_of_ids(tmp_path: Path) -> None:
    model, batch = tiny.model("llama"), batch_of()
    batch["inputs_embeds"] = model.get_input_embeddings()(batch["input_ids"]).detach()
    expected = PairLoss(tiny.config(tmp_path), causal_nll)(model, batch_of(), with_partners=True).losses
    del batch["input_ids"]
    loss = PairLoss(tiny.config(tmp_path), causal_nll, projection=output_projection(model))
    torch.testing.assert_close(loss(model, batch, with_partners=True).losses, expected, rtol=1e-9, atol=1e-12)


def test_a_mask_of_another_shape_is_kept() -> None:
    batch = batch_of()
    rows, views, length = batch["labels"].shape
    batch["attention_mask"] = torch.ones(rows, views, 1, length, length).tril()
    assert not TargetRule(shifts_labels=True).layout(batch).ends_in_padding


def test_models_that_see_padding_keep_their_mask() -> None:
    assert needs_no_padding_mask(tiny.model("llama")) and needs_no_padding_mask(gemma())
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert not needs_no_padding_mask(BertLMHeadModel(BertConfig(**sizes, is_decoder=False)))
    assert not needs_no_padding_mask(RoFormerForCausalLM(RoFormerConfig(**sizes, is_decoder=False)))
    assert not needs_no_padding_mask(tiny.model("gpt2"))  # it warns without a mask


def test_learned_prompts_compute_all_logits(tmp_path: Path) -> None:
    peft = get_peft_model(tiny.model("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).double()
    assert output_projection(peft) is None
    loss = PairLoss(tiny.config(tmp_path), causal_nll, projection=output_projection(peft.get_base_model()))
    with pytest.raises(DataError, match="hidden states"):
        loss(peft, batch_of(), with_partners=True)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_only_models_that_select_positions_have_such_a_projection(kind: str) -> None:
    assert output_projection(tiny.model(kind)) is None
    assert output_projection(nn.Linear(2, 2)) is None


class LiveLogits(TorchDispatchMode):
    """Bytes of live tensors of at least half the size of the logits, and the most there were at once."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.live, self.peak = size, dict[int, int](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() >= self.size / 2:
                storage = tensor.untyped_storage()
                if storage._cdata not in self.live:
                    self.live[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, storage._cdata)
        self.peak = max(self.peak, sum(self.live.values()))
        return made


@pytest.mark.parametrize("bf16", [False, True])
def test_at_most_three_copies_of_the_logits_of_targets_are_alive(tmp_path: Path, bf16: bool) -> None:
    vocabulary, data = 2048, tiny.pairs("llama", 16, target_lengths=(8, 12))
    settings = {**tiny.KINDS["llama"][2], "initializer_range": 0.02}
    built = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **settings))
    made = tiny.trainer(tmp_path, "llama", data, built=built, bf16=bf16, per_device_train_batch_size=16, max_steps=2)
    targets = sum(label >= 0 for row in [*data["labels"], *filter(None, data["augmented_labels"])] for label in row)
    with LiveLogits(targets * vocabulary * 4) as found:
        made.train()
    assert found.size < found.peak <= 3 * found.size
