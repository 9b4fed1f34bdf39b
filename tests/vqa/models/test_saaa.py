"""SAAA compared with numpy and finite differences; freezing, saving, initialization and errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForVisualQuestionAnswering

from dair_hf.vqa.models.saaa import SAAA, SAAAConfig
from tests.fixtures.tiny_saaa import ANSWERS, backed, batch, config, image_batch, resnet, saaa


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def answers_by_hand(weights: dict[str, NDArray[np.float64]], words: list[int], features: NDArray[np.float64]) -> Any:
    """Compute logits and attention of one question, word by word and position by position, in numpy float64."""
    size = weights["lstm.weight_hh_l0"].shape[1]
    cell = output = np.zeros(size)
    for word in words:
        gates = weights["lstm.weight_ih_l0"] @ np.tanh(weights["embed_tokens.weight"][word])
        gates += weights["lstm.bias_ih_l0"] + weights["lstm.weight_hh_l0"] @ output + weights["lstm.bias_hh_l0"]
        into, forget, new, out = gates.reshape(4, size)
        cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(new)
        output = sigmoid(out) * np.tanh(cell)
    positions = [features[:, i, j] for i in range(features.shape[1]) for j in range(features.shape[2])]
    positions = [vector / math.sqrt((vector**2).sum()) for vector in positions]
    asked = weights["question_projection.weight"] @ cell + weights["question_projection.bias"]
    met = [np.maximum(weights["image_projection.weight"] @ vector + asked, 0) for vector in positions]
    scores = np.stack([weights["glimpses.weight"] @ vector + weights["glimpses.bias"] for vector in met])
    attention = np.exp(scores) / np.exp(scores).sum(0)
    seen = [sum(a * vector for a, vector in zip(column, positions, strict=True)) for column in attention.T]
    hidden = weights["hidden.weight"] @ np.concatenate([*seen, cell]) + weights["hidden.bias"]
    logits = weights["classifier.weight"] @ np.maximum(hidden, 0) + weights["classifier.bias"]
    return logits, attention.T.reshape(-1, *features.shape[1:])


def test_outputs_match_numpy() -> None:
    model, inputs = saaa().eval(), batch()
    outputs = model(**inputs, output_attentions=True)
    weights = {name: values.detach().double().numpy() for name, values in model.named_parameters()}
    losses = []
    for row in range(3):
        words = inputs["input_ids"][row, : row + 1].tolist()
        logits, attention = answers_by_hand(weights, words, inputs["image_features"][row].double().numpy())
        assert np.abs(outputs.logits[row].detach().numpy() - logits).max() < 1e-5
        assert np.abs(outputs.attentions[row].detach().numpy() - attention).max() < 1e-5
        log_probabilities = logits - np.log(np.exp(logits).sum())
        losses.append(-(inputs["labels"][row].numpy() * log_probabilities).sum())
    assert outputs.loss.item() == pytest.approx(np.mean(losses), abs=1e-5)


def test_gradients_match_finite_differences() -> None:
    """Including those of the features, which are normalized only after their use."""
    inputs = {name: v.double() if v.is_floating_point() else v for name, v in batch(4).items()}
    model = saaa(dropout=0.0).double()
    names = [name for name, _ in model.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]

    def loss(features: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, named, (), {**inputs, "image_features": features}).loss

    features = inputs.pop("image_features").requires_grad_()
    assert torch.autograd.gradcheck(loss, (features, *values), fast_mode=True)
    gradients = dict(zip(names, torch.autograd.grad(loss(features, *values), values), strict=True))
    del gradients["glimpses.bias"]  # the softmax does not depend on it
    assert all(gradient.abs().max() > 0 for gradient in gradients.values())


def test_number_of_parameters_with_the_sizes_of_the_paper() -> None:
    embedding, lstm = 15000 * 300, 4 * (1024 * 300 + 1024 * 1024 + 2 * 1024)  # four gates, two biases each
    attention = 512 * 2048 + (512 * 1024 + 512) + (2 * 512 + 2)  # the convolution of the image has no bias
    classifier = 1024 * (2 * 2048 + 1024) + 1024 + 3000 * 1024 + 3000
    with torch.device("meta"):
        model = SAAA(SAAAConfig())
    assert model.num_parameters() == embedding + lstm + attention + classifier == 19_824_602


@pytest.mark.parametrize("more", [1, 7])
def test_padding_does_not_matter(more: int) -> None:
    model, inputs = saaa().eval(), batch()
    expected = model.encode_questions(inputs["input_ids"], inputs["attention_mask"])
    padded = functional.pad(inputs["input_ids"], (0, more))
    mask = functional.pad(inputs["attention_mask"], (0, more))
    assert torch.equal(model.encode_questions(padded, mask), expected)
    assert torch.equal(model.encode_questions(padded), expected)
    for row in range(3):  # alone, without any padding
        alone = model.encode_questions(inputs["input_ids"][row : row + 1, : row + 1])
        assert (alone - expected[row]).abs().max() < 1e-6
    # Additional words and another mask change the result.
    assert not torch.allclose(model.encode_questions(padded + (padded == 0)), expected)
    assert not torch.allclose(model.encode_questions(padded, torch.ones_like(padded)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zero_features_give_finite_values_and_gradients(dtype: torch.dtype) -> None:
    """A backbone ends in ReLU, so features can be 0; the inverse of their norm must be finite in half precision."""
    model, inputs = saaa().to(dtype), batch()
    features = inputs["image_features"].to(dtype)
    features[0] = 0
    features[1, :, 0] = 0
    features = features.requires_grad_()
    model(**{**inputs, "image_features": features, "labels": inputs["labels"].to(dtype)}).loss.backward()
    assert features.grad is not None
    assert all(values.isfinite().all() for values in [features.grad, *(p.grad for p in model.parameters())])


def test_dropout_precedes_every_layer() -> None:
    """The LSTM, the two convolutions, the question's part of the attention and the two layers of the classifier."""
    model, inputs, seen = saaa(), batch(), []
    model.dropout.register_forward_hook(lambda module, args, result: seen.append(tuple(result.shape)))
    model(**inputs)
    words, features, question, met, joined, hidden = (3, 3, 5), (3, 6, 6), (3, 4), (3, 6, 9), (3, 22), (3, 8)
    assert sorted(seen) == sorted([words, features, question, met, joined, hidden])
    assert model.dropout.p == 0.5
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)
    assert torch.equal(model.eval()(**inputs).logits, model(**inputs).logits)
    still = saaa(dropout=0.0)
    assert torch.equal(still(**inputs).logits, still(**inputs).logits)


def test_glorot_initialization() -> None:
    torch.manual_seed(0)
    model = SAAA(config(embedding_size=40, question_size=50, attention_size=60, hidden_size=70))
    for name, values in model.named_parameters():
        if "bias" in name:
            assert values.abs().max() == 0, name
            continue
        parts = values.chunk(4) if "lstm" in name else [values]
        for part in parts:  # each gate has the bound of its own shape
            bound = math.sqrt(6 / sum(part.shape))
            assert 0.85 * bound < part.abs().max().item() <= bound, name
    assert model.embed_tokens.weight[0].abs().max() == 0
    assert model.embed_tokens.weight[1:].abs().min() > 0


def test_saved_and_loaded(tmp_path: Path) -> None:
    texts = {index: f"answer {index}" for index in range(ANSWERS)}
    model = backed(resnet(), id2label=texts, freeze_backbone=False)
    model(**image_batch())  # moves the batch-norm statistics
    model.eval().save_pretrained(tmp_path)
    inputs = image_batch()
    for loaded in (SAAA.from_pretrained(tmp_path), AutoModelForVisualQuestionAnswering.from_pretrained(tmp_path)):
        assert isinstance(loaded, SAAA)
        assert not loaded.training
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
        assert loaded.config.id2label == texts
        assert loaded.config.freeze_backbone is False
        assert loaded.config.image_feature_size == 16
    assert isinstance(AutoConfig.from_pretrained(tmp_path), SAAAConfig)
    assert not list(tmp_path.glob("*.bin"))


def test_frozen_backbone_is_unchanged(tmp_path: Path) -> None:
    model = backed(resnet())
    before = {name: values.clone() for name, values in model.backbone.state_dict().items()}
    assert model.training
    model(**image_batch()).loss.backward()
    torch.optim.SGD([p for p in model.parameters() if p.grad is not None], lr=1.0, weight_decay=0.1).step()
    assert all(torch.equal(values, before[name]) for name, values in model.backbone.state_dict().items())
    assert all(values.grad is None for values in model.backbone.parameters())
    assert all(v.grad is not None for name, v in model.named_parameters() if "backbone" not in name)
    model.save_pretrained(tmp_path)
    loaded = SAAA.from_pretrained(tmp_path).train()
    assert not any(values.requires_grad for values in loaded.backbone.parameters())
    assert loaded.training
    assert not any(module.training for module in loaded.backbone.modules())
