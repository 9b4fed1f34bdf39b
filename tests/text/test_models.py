"""Small text classifiers against plain arithmetic: logits, gradients, padding, and saved weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from dair_hf.text.models import (
    BagOfWordsConfig,
    BagOfWordsForSequenceClassification,
    BiLSTMConfig,
    BiLSTMForSequenceClassification,
    EmbeddingsConfig,
    EmbeddingsForSequenceClassification,
)
from dair_hf.training.sample_loss import derived_sample_loss

VOCAB = 11
KINDS = {
    "bag_of_words": (BagOfWordsForSequenceClassification, BagOfWordsConfig),
    "embeddings": (EmbeddingsForSequenceClassification, EmbeddingsConfig),
    "bilstm": (BiLSTMForSequenceClassification, BiLSTMConfig),
}
TEXTS = [[[2, 3, 3, 9]], [[4]], [[5, 6, 7, 8, 9, 10, 2]]]
PAIRS = [[[2, 3, 3], [3, 9]], [[4], [5]], [[5, 6, 7, 8], [9, 10, 2, 6, 6]]]

every_kind = pytest.mark.parametrize("kind", KINDS)
one_or_two_texts = pytest.mark.parametrize("rows", [TEXTS, PAIRS], ids=["one text", "two texts"])


def make(kind: str, segments: int = 1, **settings: Any) -> Any:
    """A model in float64 whose weights are all random."""
    torch.manual_seed(0)
    model_class, config_class = KINDS[kind]
    model = model_class(config_class(vocab_size=VOCAB, num_labels=3, segments=segments, **settings)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def batch(rows: list[list[list[int]]], pad: int = 0, filler: int = 0) -> dict[str, torch.Tensor]:
    """Stack rows, padded at the end by `pad` more columns than needed, with the id `filler`."""
    flat = [(sum(row, []), [part for part, text in enumerate(row) for _ in text]) for row in rows]
    length = max(len(ids) for ids, _ in flat) + pad
    return {
        "input_ids": torch.tensor([ids + [filler] * (length - len(ids)) for ids, _ in flat]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids, _ in flat]),
        "token_type_ids": torch.tensor([types + [0] * (length - len(types)) for _, types in flat]),
    }


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@every_kind
@one_or_two_texts
def test_padding_changes_neither_logits_nor_gradients(kind: str, rows: list[list[list[int]]]) -> None:
    model = make(kind, segments=len(rows[0]))
    alone = torch.cat([model(**batch([row])).logits for row in rows])
    (alone * torch.arange(9.0).view(3, 3)).sum().backward()
    expected = gradients(model)
    for pad, filler in ((0, 0), (3, 0), (3, 9)):
        model.zero_grad()
        padded = model(**batch(rows, pad, filler)).logits
        assert (padded - alone).abs().max() < 1e-12
        (padded * torch.arange(9.0).view(3, 3)).sum().backward()
        found = gradients(model)
        assert all((found[name] - expected[name]).abs().max() < 1e-12 for name in expected)
    with_fillers = batch(rows, 3, 9) | {"attention_mask": None}
    assert (model(**with_fillers).logits - alone).abs().max() > 1e-3  # so the mask is what keeps them out


@every_kind
def test_two_texts_are_read_apart(kind: str) -> None:
    model = make(kind, segments=2)
    logits = model(**batch([[[2, 3], [4]], [[2], [3, 4]], [[4], [2, 3]]])).logits
    assert min((logits[0] - logits[1]).abs().max(), (logits[0] - logits[2]).abs().max()) > 1e-3


@one_or_two_texts
def test_bag_of_words_is_a_linear_classifier(rows: list[list[list[int]]]) -> None:
    model = make("bag_of_words", segments=len(rows[0]))
    weight, bias = (value.detach().numpy() for value in (model.classifier.weight, model.classifier.bias))
    for row, logits in zip(rows, model(**batch(rows)).logits.detach().numpy(), strict=True):
        features = [np.array([word in text for word in range(VOCAB)], dtype=np.float64) for text in row]
        if len(row) == 2:
            features.append(features[0] * features[1])
        assert np.abs(weight @ np.concatenate(features) + bias - logits).max() < 1e-12


def test_bag_of_words_starts_at_zero() -> None:
    model = BagOfWordsForSequenceClassification(BagOfWordsConfig(vocab_size=VOCAB))
    assert model.num_parameters() == 2 * VOCAB + 2
    assert all(not parameter.any() for parameter in model.parameters())


@one_or_two_texts
def test_embeddings_are_averaged(rows: list[list[list[int]]]) -> None:
    model = make("embeddings", segments=len(rows[0]), embedding_size=4, hidden_size=5)
    values = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for row, logits in zip(rows, model(**batch(rows)).logits.detach().numpy(), strict=True):
        means = [np.mean([values["embeddings.weight"][word] for word in text], axis=0) for text in row]
        features = means[0]
        if len(row) == 2:
            features = np.concatenate([*means, np.abs(means[0] - means[1]), means[0] * means[1]])
        hidden = np.maximum(values["hidden.weight"] @ features + values["hidden.bias"], 0)
        assert np.abs(values["classifier.weight"] @ hidden + values["classifier.bias"] - logits).max() < 1e-12


def test_bilstm_reads_in_both_directions() -> None:
    model = make("bilstm", segments=1, embedding_size=4, hidden_size=3)

    def states(weights: dict[str, np.ndarray], ids: list[int], end: str) -> list[np.ndarray]:
        hidden, cell, found = np.zeros(3), np.zeros(3), []
        for word in ids:
            gates = weights[f"lstm.weight_ih_l0{end}"] @ weights["embeddings.weight"][word]
            gates += weights[f"lstm.bias_ih_l0{end}"] + weights[f"lstm.bias_hh_l0{end}"]
            gates += weights[f"lstm.weight_hh_l0{end}"] @ hidden
            i, f, o = (1 / (1 + np.exp(-gates[k : k + 3])) for k in (0, 3, 9))
            cell = f * cell + i * np.tanh(gates[6:9])
            hidden = o * np.tanh(cell)
            found.append(hidden)
        return found

    values = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for (ids,), logits in zip(TEXTS, model(**batch(TEXTS)).logits.detach().numpy(), strict=True):
        forward, backward = states(values, ids, ""), states(values, ids[::-1], "_reverse")[::-1]
        mean = np.mean([np.concatenate(both) for both in zip(forward, backward, strict=True)], axis=0)
        assert np.abs(values["classifier.weight"] @ mean + values["classifier.bias"] - logits).max() < 1e-12


@pytest.mark.parametrize("kind", ["embeddings", "bilstm"])
def test_dropout_is_for_training_only_and_embeddings_start_small(kind: str) -> None:
    model, inputs = make(kind, dropout=0.5), batch(TEXTS)
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)
    model.eval()
    assert torch.equal(model(**inputs).logits, model(**inputs).logits)
    model_class, config_class = KINDS[kind]
    weight = model_class(config_class(vocab_size=1000, initializer_range=0.02)).embeddings.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.05)


@every_kind
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    model = make(kind, segments=2).eval()
    assert derived_sample_loss(model) == "classification"
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded) is KINDS[kind][0] and type(AutoConfig.from_pretrained(tmp_path)) is KINDS[kind][1]
    assert all(torch.equal(values, loaded.state_dict()[name]) for name, values in model.state_dict().items())
    assert (loaded(**batch(PAIRS)).logits - model(**batch(PAIRS)).logits).abs().max() < 1e-12
    other = type(model).from_pretrained(tmp_path, num_labels=2, ignore_mismatched_sizes=True)
    assert other(**batch(PAIRS)).logits.shape == (3, 2)


@every_kind
def test_loss_is_the_mean_cross_entropy(kind: str) -> None:
    model, labels = make(kind), torch.tensor([0, 2, 1])
    outputs = model(**batch(TEXTS), labels=labels)
    logits = outputs.logits.detach().numpy()
    log_sums = np.log(np.exp(logits).sum(1))
    assert outputs.loss.item() == pytest.approx(np.mean(log_sums - logits[[0, 1, 2], labels.numpy()]), abs=1e-12)
    assert model(**batch(TEXTS)).loss is None


@pytest.mark.parametrize("kind", ["embeddings", "bilstm"])
def test_a_text_without_tokens_counts_as_zero(kind: str) -> None:
    model, seen = make(kind, segments=2), []
    model.dropout.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    inputs = batch([[[2, 3], []]])
    logits = model(**inputs).logits
    features = next(values for values in seen if values.ndim == 2 and values.shape[1] % 4 == 0)
    u, v, difference, product = features.chunk(4, dim=1)
    assert u.abs().max() > 0.1 and not v.any() and torch.equal(difference, u.abs()) and not product.any()
    none = model(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2)).logits
    assert torch.isfinite(logits).all() and torch.isfinite(none).all()
