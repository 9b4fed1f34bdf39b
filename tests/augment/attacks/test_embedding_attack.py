"""Adversarial embeddings of a linear classifier, by hand, and of three kinds of transformers models."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from dair_hf.augment.attacks.embedding_attack import perturb_embeddings
from dair_hf.augment.attacks.pgd import Attack
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import causal_nll, cross_entropy, seq2seq_nll

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0], [11, 12, 13, 0]])
MASK = (IDS != 0).long()
FREE: dict[str, Any] = {"lower": None, "upper": None}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class LinearText(nn.Module):
    """Two classes, linear in the sum of the unmasked embeddings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 4, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(4, 2, dtype=torch.float64))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        shown = inputs_embeds if attention_mask is None else inputs_embeds * attention_mask[..., None]
        return SimpleNamespace(logits=shown.sum(1) @ self.weight)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_model_is_attacked_along_its_weights(norm: str) -> None:
    model, labels = LinearText(), torch.tensor([0, 1, 1])
    attack = Attack(norm, 0.5, 0.2, 5, random_start=False, **FREE)
    found = perturb_embeddings(model, {"input_ids": IDS, "attention_mask": MASK, "labels": labels}, attack)
    weight = model.weight.detach().numpy()
    words = model.words.weight.detach().numpy()[IDS.numpy()]
    # Each unmasked token moves by epsilon along the weight of the other class minus that of the label.
    away = (weight[:, 1 - labels.numpy()] - weight[:, labels.numpy()]).T[:, None]
    step = np.sign(away) if norm == "linf" else away / np.linalg.norm(away, axis=2, keepdims=True)
    expected = words + 0.5 * step * MASK.numpy()[..., None]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert np.abs(expected - words).max() > 0.2


def test_without_a_mask_every_token_moves() -> None:
    model = LinearText()
    attack = Attack("l2", 0.5, 0.2, 5, random_start=False, **FREE)
    found = perturb_embeddings(model, {"input_ids": IDS, "labels": torch.tensor([0, 1, 1])}, attack)
    np.testing.assert_allclose((found - model.words(IDS)).norm(dim=2).detach(), np.full((3, 4), 0.5), atol=1e-9)


# --- transformers models --------------------------------------------------------------------------------------------


def bert() -> tuple[PreTrainedModel, dict[str, torch.Tensor], str]:
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    inputs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": torch.zeros_like(IDS)}
    return BertForSequenceClassification(config), inputs | {"labels": torch.tensor([0, 2, 1])}, "cross_entropy"


def t5() -> tuple[PreTrainedModel, dict[str, torch.Tensor], str]:
    config = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    labels = torch.tensor([[3, 4, 1], [7, 1, -100], [8, 1, -100]])
    return T5ForConditionalGeneration(config), {"input_ids": IDS, "attention_mask": MASK, "labels": labels}, "seq2seq"


def gpt2() -> tuple[PreTrainedModel, dict[str, torch.Tensor], str]:
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=1)
    labels = torch.where(MASK.bool(), IDS, -100)
    return GPT2LMHeadModel(config), {"input_ids": IDS, "attention_mask": MASK, "labels": labels}, "causal"


KINDS = {"bert": bert, "t5": t5, "gpt2": gpt2}
SAMPLE_LOSSES = {"cross_entropy": cross_entropy, "seq2seq": seq2seq_nll, "causal": causal_nll}


def model_and_inputs(kind: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor], str]:
    torch.manual_seed(0)
    return KINDS[kind]()


@torch.no_grad()
def losses(model: PreTrainedModel, inputs: dict[str, torch.Tensor], loss: str, embeddings: Any) -> torch.Tensor:
    """Losses as in training: an encoder-decoder derives its decoder inputs from the labels."""
    frozen = copy.deepcopy(model).eval()
    given = {name: values for name, values in inputs.items() if name != "input_ids"}
    if loss == "cross_entropy":
        given.pop("labels")
    return SAMPLE_LOSSES[loss](frozen(inputs_embeds=embeddings, **given), inputs["labels"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_results_raise_the_loss_within_the_ball_and_keep_padding(kind: str, norm: str) -> None:
    model, inputs, loss = model_and_inputs(kind)
    attack = Attack(norm, 0.1, 0.04, 4, loss=loss, restarts=2, **FREE)
    clean = model.get_input_embeddings()(IDS).detach()
    found = perturb_embeddings(model, inputs, attack, generator())
    assert found.shape == (3, 4, 16) and not found.requires_grad
    offset = found.double() - clean.double()
    sizes = offset.abs().amax(2) if norm == "linf" else offset.norm(dim=2)
    visible = MASK.bool()
    assert sizes[visible].max().item() <= 0.1 and sizes[visible].max().item() > 0.099
    assert sizes[visible].min().item() > 0
    hidden = found[~visible].view(torch.int32)
    assert torch.equal(hidden, clean[~visible].view(torch.int32))
    assert bool((losses(model, inputs, loss, found) > losses(model, inputs, loss, clean)).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_unchanged(kind: str) -> None:
    model, inputs, loss = model_and_inputs(kind)
    model.train()
    before, random = copy.deepcopy(model), torch.get_rng_state()
    attack = Attack("l2", 0.1, 0.04, 2, loss=loss, **FREE)
    with torch.no_grad():
        one = perturb_embeddings(model, inputs, attack, generator())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    for parameter, other in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter, other) and parameter.requires_grad and parameter.grad is None
    assert torch.equal(one, perturb_embeddings(model, inputs, attack, generator()))
    assert not torch.equal(one, perturb_embeddings(model, inputs, attack, generator(1)))


def test_epsilon_zero_returns_the_embeddings() -> None:
    model, inputs, _ = model_and_inputs("bert")
    found = perturb_embeddings(model, inputs, Attack(epsilon=0.0, **FREE), generator())
    assert torch.equal(found, model.get_input_embeddings()(IDS))


def test_kl_needs_no_labels() -> None:
    model, inputs, loss = model_and_inputs("bert")
    inputs.pop("labels")
    found = perturb_embeddings(model, inputs, Attack("l2", 0.1, 0.04, 3, loss="kl", **FREE), generator())
    assert (found - model.get_input_embeddings()(IDS)).norm(dim=2).max().item() > 0.09
    with pytest.raises(DataError, match="needs labels, found none"):
        perturb_embeddings(model, inputs, Attack("l2", 0.1, 0.04, 3, **FREE), generator())


def test_bfloat16() -> None:
    model, inputs, _ = model_and_inputs("bert")
    model.to(torch.bfloat16)
    found = perturb_embeddings(model, inputs, Attack("l2", 0.1, 0.04, 3, **FREE), generator())
    assert found.dtype == torch.bfloat16
    sizes = (found.double() - model.get_input_embeddings()(IDS).double()).norm(dim=2)[MASK.bool()]
    assert 0.05 < sizes.max().item() <= 0.1


def test_decoder_inputs_of_the_batch_are_kept() -> None:
    model, inputs, loss = model_and_inputs("t5")
    attack = Attack("l2", 0.1, 0.04, 2, loss=loss, random_start=False, **FREE)
    derived = perturb_embeddings(model, inputs, attack)
    given = inputs | {"decoder_input_ids": torch.tensor([[0, 3, 4], [0, 7, 1], [0, 8, 1]])}
    assert (derived - perturb_embeddings(model, given, attack)).abs().max().item() < 1e-6
    other = inputs | {"decoder_input_ids": torch.tensor([[0, 9, 9], [0, 9, 9], [0, 9, 9]])}
    assert (derived - perturb_embeddings(model, other, attack)).abs().max().item() > 1e-3


# --- errors ---------------------------------------------------------------------------------------------------------


def test_invalid_batches_models_and_attacks_are_refused() -> None:
    model, inputs, _ = model_and_inputs("bert")
    attack = Attack("l2", 0.1, 0.04, 2, **FREE)
    with pytest.raises(DataError, match=r"the batch needs 'input_ids' \[N, T\]; found only \['labels'\]"):
        perturb_embeddings(model, {"labels": inputs["labels"]}, attack, generator())
    with pytest.raises(DataError, match=r"the batch needs 'input_ids' \[N, T\]; found \[3\]"):
        perturb_embeddings(model, {"input_ids": IDS[:, 0]}, attack, generator())
    with pytest.raises(DataError, match=r"attention_mask has shape \[3, 1, 4\], input_ids \[3, 4\]"):
        perturb_embeddings(model, inputs | {"attention_mask": MASK[:, None]}, attack, generator())
    with pytest.raises(DataError, match="embeddings have no range"):
        perturb_embeddings(model, inputs, Attack(), generator())
    with pytest.raises(DataError, match="Linear has no get_input_embeddings"):
        perturb_embeddings(nn.Linear(2, 2), inputs, attack, generator())
    with pytest.raises(DataError, match="random_start needs a generator"):
        perturb_embeddings(model, inputs, attack)
    gpt, sequences, _ = model_and_inputs("gpt2")
    with pytest.raises(DataError, match=r"needs integer class labels \[N\].* such as loss='causal'"):
        perturb_embeddings(gpt, sequences, attack, generator())


def test_a_model_that_ignores_its_embeddings_is_refused() -> None:
    class Ignores(LinearText):
        def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
            return SimpleNamespace(logits=self.weight.sum(0).expand(len(inputs_embeds), 2))

    with pytest.raises(DataError, match="no gradient with respect to inputs_embeds: the graph does not connect them"):
        batch = {"input_ids": IDS, "labels": torch.tensor([0, 1, 1])}
        perturb_embeddings(Ignores(), batch, Attack(random_start=False, **FREE))
