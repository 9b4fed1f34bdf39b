"""Divergences of output distributions, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dair_hf.losses.divergence import FEATURE_REGULARIZERS, align_targets, feature_consistency, mart_terms
from tests.losses.test_objective import gradients, leaf

kl_consistency, js_consistency = FEATURE_REGULARIZERS["kl"], FEATURE_REGULARIZERS["js"]


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def divergence(first: np.ndarray, second: np.ndarray, regularizer: str) -> float:
    p, q = softmax(first), softmax(second)
    if regularizer == "kl":
        return float((p * np.log(p / q)).sum())
    m = (p + q) / 2
    return float((p * np.log(p / m)).sum() / 2 + (q * np.log(q / m)).sum() / 2)


def test_half_precision_features_are_compared_in_float32() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = feature_consistency(logits, logits.flip(0), "kl")
    assert found.dtype == torch.float32
    expected = divergence(logits[0].double().numpy(), logits[2].double().numpy(), "kl")
    assert found[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("regularizer", ["kl", "js"])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_single_logit_is_that_of_a_binary_classifier(regularizer: str, shape: tuple[int, ...]) -> None:
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


def log_ratio(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return log(p / q), 0 where p is 0."""
    ratios = np.zeros_like(p)
    ratios[p > 0] = np.log(p[p > 0] / q[p > 0])
    return ratios


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("regularizer", ["kl", "js"])
def test_values_and_gradients_also_with_impossible_classes(regularizer: str, dtype: torch.dtype) -> None:
    first, second = np.random.default_rng(3).normal(size=(2, 20, 6))
    # The last rows have no such class. Class 1 is impossible in both views, class 4 in the original.
    first[:10, [1, 4]] = second[:10, 1] = -np.inf
    p, q = softmax(first), softmax(second)
    m = (p + q) / 2
    logits = [torch.tensor(values, dtype=dtype, requires_grad=True) for values in (first, second)]
    value = feature_consistency(*logits, regularizer)
    value.sum().backward()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    to_first, to_second = (logit.grad.numpy() for logit in logits)  # type: ignore[union-attr]
    if regularizer == "kl":
        expected = (p * log_ratio(p, q)).sum(-1)
        # d KL(p||q) / d z_i = p_i (log(p_i / q_i) - KL) and d / d w_i = q_i - p_i, z and w being the logits.
        slopes = p * (log_ratio(p, q) - expected[:, None]), q - p
    else:
        halves = (p * log_ratio(p, m)).sum(-1) / 2, (q * log_ratio(q, m)).sum(-1) / 2
        expected = halves[0] + halves[1]
        # d JS / d p_i = log(p_i / m_i) / 2; through the softmax that is p_i (g_i - sum_j p_j g_j).
        slopes = p * (log_ratio(p, m) / 2 - halves[0][:, None]), q * (log_ratio(q, m) / 2 - halves[1][:, None])
    np.testing.assert_allclose(value.detach().numpy(), expected, atol=tolerance)
    np.testing.assert_allclose(to_first, slopes[0], atol=tolerance)
    np.testing.assert_allclose(to_second, slopes[1], atol=tolerance)
    assert (to_first[:10, [1, 4]] == 0).all() and (to_second[:10, 1] == 0).all()


def test_kl_is_infinite_if_only_the_augmented_view_excludes_a_class() -> None:
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]).log()
    assert kl_consistency(p, q).item() == math.inf
    assert kl_consistency(q, p).item() == pytest.approx(math.log(2))
    # The mean of both is (0.75, 0.25).
    halves = 0.5 * math.log(2 / 3) + 0.5 * math.log(2), math.log(4 / 3)
    assert js_consistency(p, q).item() == pytest.approx(sum(halves) / 2)


@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_mart_terms_and_gradients_match_the_authors_code(scale: float) -> None:
    draws = np.random.default_rng(8)
    left, right = scale * draws.normal(size=(2, 6, 4))
    labels = draws.integers(4, size=6)

    def expected(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Authors' code: softmax probabilities, the two most probable classes, constants inside the logarithms."""
        p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (left, right))
        rows, order = np.arange(len(labels)), q.argsort(1)
        rival = np.where(order[:, -1] == labels, order[:, -2], order[:, -1])
        boosted = -np.log(q[rows, labels]) - np.log(1.0001 - q[rows, rival] + 1e-12)
        return boosted, (p * (np.log(p) - np.log(q + 1e-12))).sum(1) * (1.0000001 - p[rows, labels])

    original, augmented = leaf(left), leaf(right)
    found = mart_terms(original.log_softmax(-1), augmented.log_softmax(-1), torch.tensor(labels))
    for value, wanted in zip(found, expected(left, right), strict=True):
        np.testing.assert_allclose(value.detach().numpy(), wanted, rtol=1e-9)
    slopes = gradients(found[0] + 2.0 * found[1], original, augmented)
    step = 1e-6
    for place in np.ndindex(left.shape):
        shift = np.zeros_like(left)
        shift[place] = step
        for slope, (a, b), (c, d) in (
            (slopes[0], (left + shift, right), (left - shift, right)),
            (slopes[1], (left, right + shift), (left, right - shift)),
        ):
            up, down = expected(a, b), expected(c, d)
            change = (up[0] + 2.0 * up[1] - down[0] - 2.0 * down[1])[place[0]] / (2 * step)
            assert slope[place] == pytest.approx(change, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mart_is_bounded_if_a_wrong_class_is_certain(dtype: torch.dtype) -> None:
    sure = torch.tensor([[60.0, 0.0, -60.0]], dtype=dtype, requires_grad=True)
    wrong = torch.tensor([[0.0, 60.0, -60.0]], dtype=dtype, requires_grad=True)
    boosted, consistency = mart_terms(sure.log_softmax(-1), wrong.log_softmax(-1), torch.tensor([0]))
    assert boosted.item() == pytest.approx(60.0 - math.log(1e-4), rel=1e-4)  # -log p~_0 = 60
    # KL is -log 1e-12 instead of 60; 1 + 1e-7 - p_0 is 1e-7, which float32 rounds to 1.2e-7.
    assert consistency.item() == pytest.approx(-1e-7 * math.log(1e-12), rel=0.2)
    assert all(np.isfinite(slope).all() for slope in gradients(boosted + consistency, sure, wrong))


@pytest.mark.parametrize(
    ("original", "augmented", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], ([0, 1, 2], [0, 1, 2])),
        # "name = <7 8> ; area" against "name = <9> ; area": the replaced block aligns from the left, up to the shorter.
        ([1, 7, 8, 2, 3], [1, 9, 2, 3], ([0, 1, 3, 4], [0, 1, 2, 3])),
        # The new name is longer: its second token has no counterpart.
        ([1, 7, 2], [1, 8, 9, 2], ([0, 1, 2], [0, 1, 3])),
        # Inserted tokens align with nothing.
        ([1, 2], [1, 5, 2], ([0, 1], [0, 2])),
        # Deleted tokens align with nothing.
        ([1, 5, 2], [1, 2], ([0, 2], [0, 1])),
        # Two names, each replaced by a name of another length.
        ([1, 7, 2, 8, 8, 3], [1, 5, 5, 2, 6, 3], ([0, 1, 2, 3, 5], [0, 1, 3, 4, 5])),
        # Nothing in common: position by position.
        ([4, 5, 6], [7, 8], ([0, 1], [0, 1])),
        ([], [1], ([], [])),
        ([], [], ([], [])),
    ],
)
def test_align_targets_on_hand_made_alignments(
    original: list[int], augmented: list[int], expected: tuple[list[int], list[int]]
) -> None:
    assert align_targets(original, augmented) == expected


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_alignment_is_increasing_and_within_bounds(original: list[int], augmented: list[int]) -> None:
    left, right = align_targets(original, augmented)
    assert len(left) == len(right)
    for positions, tokens in ((left, original), (right, augmented)):
        assert positions == sorted(set(positions))
        assert all(0 <= position < len(tokens) for position in positions)


@pytest.mark.parametrize("consistency", [kl_consistency, js_consistency])
def test_divergences_are_finite_if_a_class_has_no_probability(consistency: object) -> None:
    logits = leaf([[0.0, -2000.0, 1.0]])
    value = consistency(logits.log_softmax(-1), logits.log_softmax(-1))  # type: ignore[operator]
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    assert np.isfinite(gradients(value, logits)).all()
