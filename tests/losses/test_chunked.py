"""Chunked losses against losses of the full logits: values, gradients and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    CohereConfig,
    CohereForCausalLM,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    PreTrainedModel,
)

from dair_hf import DataError
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.per_sample import causal_nll, seq2seq_nll
from tests.fixtures import tiny

LABELS = torch.tensor([[-100, 5, 6, 7, -100], [8, 9, 10, 11, 12], [-100] * 5, [-100, -100, 4, -100, 13]])
SMALL: dict[str, Any] = {
    "vocab_size": tiny.VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 3,
    "eos_token_id": 1, "initializer_range": 0.5,
}  # fmt: skip


def gemma() -> PreTrainedModel:
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=1.5)).double()


def cohere() -> PreTrainedModel:
    """Return a model that multiplies its logits."""
    torch.manual_seed(0)
    settings = {name: value for name, value in SMALL.items() if name != "head_dim"}
    return CohereForCausalLM(CohereConfig(**settings, logit_scale=0.3)).double()


def bert_to_bert() -> PreTrainedModel:
    """Return a model whose projection lies three modules deep, after layers of the decoder's head."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=tiny.VOCAB, **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(config, config)).double()


def with_bias() -> PreTrainedModel:
    made = tiny.model("bart")
    made.final_logits_bias.copy_(torch.linspace(-1, 1, tiny.VOCAB))
    return made


def with_lora(dropout: float = 0.0) -> nn.Module:
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], lora_dropout=dropout, init_lora_weights=False)
    torch.manual_seed(5)
    return get_peft_model(tiny.model("llama"), config).double()


MODELS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "t5": (lambda: tiny.model("t5"), False),
    "bart": (with_bias, False),
    "gpt2": (lambda: tiny.model("gpt2"), True),
    "llama": (lambda: tiny.model("llama"), True),
    "gemma2": (gemma, True),
    "cohere": (cohere, True),
    "bert2bert": (bert_to_bert, False),
    "lora": (with_lora, True),
}


def inputs_of(causal: bool) -> dict[str, Tensor]:
    ids = torch.randint(4, tiny.VOCAB, (4, 5), generator=torch.Generator().manual_seed(2))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs if causal else {**inputs, "decoder_input_ids": ids.flip(1)}


def gradients(model: nn.Module, losses: Tensor) -> dict[str, Tensor]:
    """Return gradients of a sum with different weights per row, so that errors of single rows show."""
    model.zero_grad()
    (losses * torch.tensor([1.0, -0.5, 3.0, 2.0], dtype=losses.dtype)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tokens", [1, 3, 100])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_the_full_logits(name: str, tokens: int) -> None:
    make, causal = MODELS[name]
    model, inputs = make(), inputs_of(causal)
    full = (causal_nll if causal else seq2seq_nll)(model(**inputs), LABELS)
    expected = gradients(model, full)
    _, losses = ChunkedLoss(model, causal, tokens)(model, inputs, LABELS)
    torch.testing.assert_close(losses, full, rtol=1e-12, atol=1e-12)
    assert losses[2].item() == 0.0
    found = gradients(model, losses)
    assert found.keys() == expected.keys() and len(found) > 3
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-10, atol=1e-12)
    assert max(values.abs().max() for values in found.values()) > 1e-3


@pytest.mark.parametrize("name", ["bart", "lora"])
def test_the_model_is_unchanged_afterwards(name: str) -> None:
    make, causal = MODELS[name]
    model, inputs = make(), inputs_of(causal)
    before, state = model(**inputs).logits, {key: values.clone() for key, values in model.state_dict().items()}
    ChunkedLoss(model, causal, 2)(model, inputs, LABELS)
    assert torch.equal(model(**inputs).logits, before)
    assert all(torch.equal(values, state[key]) for key, values in model.state_dict().items())
    with pytest.raises(IndexError):
        ChunkedLoss(model, causal, 2)(model, {**inputs, "input_ids": inputs["input_ids"] + 1000}, LABELS)
    assert torch.equal(model(**inputs).logits, before)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ["t5", "lora"])
def test_the_projection_gets_one_chunk_at_a_time(name: str, grad: bool) -> None:
    make, causal = MODELS[name]
    model, sizes = make(), list[int]()
    chunked = ChunkedLoss(model, causal, 4)
    chunked.head.register_forward_hook(lambda head, args, logits: sizes.append(logits.shape[:-1].numel()))
    with torch.set_grad_enabled(grad):
        _, losses = chunked(model, inputs_of(causal), LABELS)
    expected = [4, 4, 1] if causal else [4, 4, 2]  # targets only
    assert sizes == [1, *expected]
    if grad:
        losses.sum().backward()
        assert sorted(sizes[1:]) == sorted(2 * expected)


class Nested(nn.Module):
    """A model that keeps its layers in containers, as nanoGPT does, and puts tokens before its inputs."""

    def __init__(self, before: int) -> None:
        super().__init__()
        layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.parts, self.head = nn.ModuleDict({"words": nn.Embedding(9, 4), "layers": layers}), nn.Linear(4, 9)
        self.before, self.get_output_embeddings = before, lambda: self.head

    def forward(self, input_ids: Tensor) -> Any:
        states = self.parts["words"](functional.pad(input_ids, (self.before, 0)))
        for layer in self.parts["layers"]:
            states = layer(states)
        return SimpleNamespace(logits=self.head(states))


def test_layers_in_containers_run_once_and_positions_are_those_of_the_labels() -> None:
    model, calls, ids = Nested(0), list[nn.Module](), torch.tensor([[4, 5, 6], [7, 8, 3]])
    for layer in model.parts["layers"]:
        inner = layer.forward
        layer.forward = lambda states, inner=inner: calls.append(inner) or inner(states)
    losses = ChunkedLoss(model, True, 1)(model, {"input_ids": ids}, ids)[1]
    torch.testing.assert_close(losses, causal_nll(model(ids), ids))
    assert len(calls) == 4
    with pytest.raises(DataError, match="chunked_loss"):
        ChunkedLoss(longer := Nested(4), True)(longer, {"input_ids": ids}, ids)


def test_recomputed_chunks_have_the_same_dropout() -> None:
    model = with_lora(dropout=0.5)
    model.train()
    chunked, inputs = ChunkedLoss(model, True, 3), inputs_of(True)
    parameter = next(p for name, p in model.named_parameters() if "lm_head.lora_A" in name)

    def losses_at(step: float) -> Tensor:
        torch.manual_seed(4)
        with torch.no_grad():
            parameter[0, 0] += step
        found = chunked(model, inputs, LABELS)[1].sum()
        with torch.no_grad():
            parameter[0, 0] -= step
        return found

    model.zero_grad()
    losses_at(0.0).backward()
    slope = (losses_at(1e-5) - losses_at(-1e-5)).item() / 2e-5
    assert parameter.grad[0, 0].item() == pytest.approx(slope, rel=1e-6)
    assert abs(slope) > 1e-4


def test_a_batch_without_targets_is_zero_and_connected() -> None:
    model = tiny.model("gpt2")
    _, losses = ChunkedLoss(model, True)(model, inputs_of(True), torch.full((4, 5), -100))
    assert losses.tolist() == [0.0] * 4
    losses.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_default_chunk_has_a_limited_number_of_logits() -> None:
    assert ChunkedLoss(tiny.model("gpt2"), True).tokens == 2**24 // tiny.VOCAB


def test_models_without_a_projection_are_refused() -> None:
    with pytest.raises(DataError, match="chunked_loss"):
        ChunkedLoss(nn.Linear(2, 2), False)


# --- in the trainer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bart", {"normalization": "token"}),
        ("gpt2", {"regularizer": "l1", "gradient_accumulation_steps": 2, tiny.CHECKPOINTING: True}),
    ],
)
def test_training_and_evaluation_are_the_same_with_chunks(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    data, found = tiny.pairs(kind, 11), {}
    for chunked in (False, True):
        run = {"chunked_loss": chunked, "num_train_epochs": 1, **settings}
        made = tiny.trainer(tmp_path, kind, data, eval_dataset=data, **run)
        if chunked:
            made.pair_loss.chunked.tokens = 5
        made.train()
        found[chunked] = tiny.weights(made.model), made.evaluate()["eval_loss"]
    assert tiny.distance(found[True][0], found[False][0]) < 1e-9
    assert found[True][1] == pytest.approx(found[False][1], rel=1e-9)
    assert tiny.distance(found[True][0], tiny.weights(tiny.model(kind))) > 1e-4


def test_each_run_uses_the_model_of_model_init(tmp_path: Path) -> None:
    kind = "bart"
    data, weights = tiny.pairs(kind, 7), []
    for settings in ({"chunked_loss": True}, {}):
        made = tiny.trainer(
            tmp_path, kind, data, model=None, model_init=lambda: tiny.model(kind, seed=4), max_steps=1, **settings
        )
        for _ in range(2):  # each run starts from a new model
            made.train()
        weights.append(tiny.weights(made.model))
    assert tiny.distance(*weights) < 1e-9
    assert tiny.distance(weights[0], tiny.weights(tiny.model(kind, seed=4))) > 1e-4
