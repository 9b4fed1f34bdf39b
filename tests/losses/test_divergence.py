"""Divergences of output distributions, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dair_hf.losses.divergence import feature_consistency


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def divergence(first: np.ndarray, second: np.ndarray, regularizer: str) -> float:
    p, q = softmax(first), softmax(second)
    if regularizer == "kl":
        return float((p * np.log(p / q)).sum())
    m = (p + q) / 2
    return float((p * np.log(p / m)).sum() / 2 + (q * np.log(q / m)).sum() / 2)


@pytest.mark.parametrize("regularizer", ["kl", "js"])
def test_classes(regularizer: str) -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 6, 4))
    found = feature_consistency(torch.tensor(first), torch.tensor(second), regularizer)
    expected = [divergence(p, q, regularizer) for p, q in zip(first, second, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_half_precision_features_are_compared_in_float32() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = feature_consistency(logits, logits.flip(0), "kl")
    assert found.dtype == torch.float32
    expected = divergence(logits[0].double().numpy(), logits[2].double().numpy(), "kl")
    assert found[0].item() == pytest.approx(expected, rel=1e-5)


def test_a_regularizer_of_losses_is_refused() -> None:
    with pytest.raises(ValueError, match=r"regularizer='sq' compares no features; use one of \['js', 'kl'\]"):
        feature_consistency(torch.ones(1, 2), torch.ones(1, 2), "sq")


@pytest.mark.parametrize("regularizer", ["kl", "js"])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_logit_is_a_binary_classifier(regularizer: str, shape: tuple[int, ...]) -> None:
    original = torch.tensor([2.0, -1.0, 0.3, 0.0], dtype=torch.float64)
    augmented = torch.tensor([-0.5, -1.0, 3.0, 1.0], dtype=torch.float64)
    p, q = (1 / (1 + np.exp(-values.numpy())) for values in (original, augmented))

    def kl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b))

    middle = (p + q) / 2
    expected = kl(p, q) if regularizer == "kl" else 0.5 * kl(p, middle) + 0.5 * kl(q, middle)
    found = feature_consistency(original.reshape(shape), augmented.reshape(shape), regularizer)
    assert found.numpy() == pytest.approx(expected, abs=1e-12)
    assert found[0] > 0.1 and found[1].abs() < 1e-12
