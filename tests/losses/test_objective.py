"""Values and gradients of the objective against numpy float64 and hand arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dair_hf.losses.objective import (
    LOSS_REGULARIZERS,
    Counts,
    PairTerms,
    dair_loss,
    mean_over_partners,
    normalized_objective,
    pair_objective,
    pair_slopes,
    squared_root_consistency,
)

EPSILON = 1e-7
LOSSES = st.floats(0.0, 1e4, allow_nan=False)


def leaf(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def numpy_sq(left: np.ndarray, right: np.ndarray, epsilon: float = EPSILON) -> tuple[np.ndarray, ...]:
    """Return the value and both partial derivatives by formula."""
    root_left, root_right = np.sqrt(left + epsilon), np.sqrt(right + epsilon)
    gap = root_left - root_right
    return gap**2, gap / root_left, -gap / root_right


def gradients(value: Tensor, *inputs: Tensor) -> list[np.ndarray]:
    return [found.numpy() for found in torch.autograd.grad(value.sum(), inputs)]


def test_squared_root_consistency_and_gradient_match_numpy_at_random_points() -> None:
    left, right = np.random.default_rng(0).uniform(0, 50, (2, 200))
    original, augmented = leaf(left), leaf(right)
    value = squared_root_consistency(original, augmented)
    expected = numpy_sq(left, right)
    np.testing.assert_allclose(value.detach().numpy(), expected[0], rtol=1e-12, atol=1e-12)
    for found, wanted in zip(gradients(value, original, augmented), expected[1:], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("left", "right", "value", "slopes"),
    [
        (0.0, 0.0, 0.0, (0.0, 0.0)),
        # (sqrt(1e-7) - sqrt(4 + 1e-7))^2; the slope at 0 is 1 - sqrt(4 / 1e-7) = -6323.6, large and finite.
        (0.0, 4.0, 3.998735, (1 - math.sqrt((4 + 1e-7) / 1e-7), 1 - math.sqrt(1e-7 / (4 + 1e-7)))),
        (9.0, 9.0, 0.0, (0.0, 0.0)),
        (4.0, 1.0, 1.0, (0.5, -1.0)),
    ],
)
def test_squared_root_consistency_at_the_corners(
    left: float, right: float, value: float, slopes: tuple[float, float]
) -> None:
    original, augmented = leaf([left]), leaf([right])
    found = squared_root_consistency(original, augmented)
    assert found.item() == pytest.approx(value, rel=1e-6, abs=1e-12)
    for slope, wanted in zip(gradients(found, original, augmented), slopes, strict=True):
        assert slope[0] == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_without_epsilon_the_gradient_at_zero_is_not_finite() -> None:
    original, augmented = leaf([0.0]), leaf([0.0])
    slopes = gradients(squared_root_consistency(original, augmented, epsilon=0.0), original, augmented)
    assert not np.isfinite(slopes).all()


@pytest.mark.parametrize(("left", "right", "slope"), [(3.0, 1.0, 1.0), (1.0, 3.0, -1.0), (2.0, 2.0, 0.0), (0, 0, 0)])
def test_absolute_consistency_value_and_gradient(left: float, right: float, slope: float) -> None:
    original, augmented = leaf([left]), leaf([right])
    value = LOSS_REGULARIZERS["l1"].value(original, augmented, 0.0)
    assert value.item() == abs(left - right)
    assert [found[0] for found in gradients(value, original, augmented)] == [slope, -slope]


@given(LOSSES, LOSSES)
def test_loss_consistencies_are_symmetric_and_vanish_on_equal_losses(left: float, right: float) -> None:
    for regularizer in LOSS_REGULARIZERS.values():
        one, other = leaf([left]), leaf([right])
        assert regularizer.value(one, other, 1e-7).item() == regularizer.value(other, one, 1e-7).item()
        assert regularizer.value(one, one, 1e-7).item() == 0.0


@pytest.mark.parametrize("regularizer", ["sq", "l1"])
@pytest.mark.parametrize("dair_lambda", [0.0, 0.5, 30.0])
def test_gradient_weights_match_autograd(regularizer: str, dair_lambda: float) -> None:
    left, right = np.random.default_rng(3).uniform(0.01, 20, (2, 50))
    original, augmented = leaf(left), leaf(right)
    consistency = LOSS_REGULARIZERS[regularizer].value(original, augmented, 1e-7)
    terms = PairTerms(original, augmented, consistency, torch.ones(50, dtype=torch.bool))
    found = gradients(pair_objective(terms, "dair", dair_lambda), original, augmented)
    slopes = LOSS_REGULARIZERS[regularizer].slopes(original.detach(), augmented.detach(), EPSILON)
    weights = [0.5 + dair_lambda * slope for slope in slopes]
    for slope, weight in zip(found, weights, strict=True):
        np.testing.assert_allclose(slope, weight.numpy(), rtol=1e-8, atol=1e-10)


# ---- f and its normalization ----


def test_loss_of_a_loop_and_its_gradient_match_numpy() -> None:
    left, right = np.random.default_rng(1).uniform(0, 9, (2, 20))
    has_partner = np.arange(20) % 3 > 0
    original, augmented = leaf(left), leaf(np.where(has_partner, right, np.nan))  # what is not there is not read
    found = dair_loss(original, augmented, 0.7, torch.tensor(has_partner))
    value, slope, augmented_slope = numpy_sq(left, right)
    expected = np.where(has_partner, (left + right) / 2 + 0.7 * value, left)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
    slopes = np.where(has_partner, 0.5 + 0.7 * slope, 1.0), np.where(has_partner, 0.5 + 0.7 * augmented_slope, 0.0)
    for gradient, wanted in zip(gradients(found, original, augmented), slopes, strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-10, atol=1e-12)


def test_loss_of_a_loop_is_the_mean_over_partners() -> None:
    original, partners = leaf([4.0, 4.0, 2.0]), leaf([[1.0, 9.0], [1.0, 5.0], [3.0, 3.0]])
    found = dair_loss(original, partners, 2.0, torch.tensor([[True, True], [True, False], [False, False]]))
    torch.testing.assert_close(found, leaf([2 + 2.5 + 2 * (1 + 1) / 2, 2.5 + 2, 2.0]), rtol=0, atol=1e-6)
    assert dair_loss(original, partners[:, :0], 2.0).tolist() == original.tolist()


@pytest.mark.parametrize("shapes", [((), ()), ((3,), ()), ((3, 1), (3, 1)), ((3,), (2,)), ((3,), (3, 1, 1))])
def test_loss_of_a_loop_refuses_means_and_tables(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="expected losses"):
        dair_loss(*map(torch.ones, shapes), 1.0)


def hand_terms() -> PairTerms:
    """Return losses (4, 1), (9, 9) and 2 without a partner; R is 1 and 0."""
    return PairTerms(
        leaf([4.0, 9.0, 2.0]), leaf([1.0, 9.0, 0.0]), leaf([1.0, 0.0, 0.0]), torch.tensor([True, True, False])
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("erm", [4.0, 9.0, 2.0]),
        ("da", [2.5, 9.0, 2.0]),
        ("dair", [2.5 + 3.0, 9.0, 2.0]),
        ("augmented", [1.0, 9.0, 2.0]),
        ("trades", [4.0 + 3.0, 9.0, 2.0]),
        ("mart", [1.0 + 3.0, 9.0, 2.0]),
    ],
)
def test_pair_objective_by_hand(method: str, expected: list[float]) -> None:
    assert pair_objective(hand_terms(), method, dair_lambda=3.0).tolist() == expected


@pytest.mark.parametrize(
    ("method", "normalization", "expected"),
    [
        ("erm", "pair", 15 / 3),
        ("da", "pair", (2.5 + 9 + 2) / 3),
        ("dair", "pair", (5.5 + 9 + 2) / 3),
        ("erm", "token", 15 / 10),
        ("da", "token", 25 / 10),
        ("dair", "token", 25 / 10 + 3.0 * 1.0 / 2),
    ],
)
def test_normalized_objective_by_hand(method: str, normalization: str, expected: float) -> None:
    counts = Counts(*torch.tensor([3, 2, 10]))
    assert normalized_objective(hand_terms(), counts, method, 3.0, normalization).item() == pytest.approx(expected)


@pytest.mark.parametrize("weights", [None, (0.5, 0.5), (0.25, 1.0)])
def test_only_partners_that_exist_count(weights: tuple[float, float] | None) -> None:
    """Rows with both, one and none of two partners, by hand."""
    losses, exists = leaf([[4.0, 1.0, 16.0], [9.0, 7.0, 4.0], [2.0, 5.0, 5.0]]), torch.tensor([[1, 1], [0, 1], [0, 0]])
    original, partners = losses[:, 0], exists.bool()
    augmented = mean_over_partners(losses[:, 1:], partners)
    assert augmented.tolist() == [8.5, 4.0, 0.0]
    slopes = pair_slopes(losses, partners, LOSS_REGULARIZERS["sq"], epsilon=0.0)
    assert slopes.original.tolist() == pytest.approx([(1 - 0.5 + 1 - 2) / 2, 1 - 2 / 3, 0])
    assert slopes.partners.flatten().tolist() == pytest.approx([1 - 2, 1 - 0.5, 0, 1 - 1.5, 0, 0])
    terms = PairTerms(original, augmented, torch.tensor([2.5, 1.0, 0.0]), exists.sum(1))
    counts = Counts(*torch.tensor([3, 2, 20]))
    w, v = weights or (0.5, 0.5)
    by_token = (2 * w * 4 + 2 * v * (1 + 16) + 2 * w * 9 + 2 * v * 4 + 2) / 20 + 3.0 * (2.5 + 1) / 2
    by_pair = (w * 4 + v * 8.5 + 3 * 2.5 + w * 9 + v * 4 + 3 * 1 + 2) / 3
    for normalization, expected in (("token", by_token), ("pair", by_pair)):
        found = normalized_objective(terms, counts, "dair", 3.0, normalization, weights)
        assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("normalization", ["pair", "token"])
def test_contributions_of_micro_batches_add_up(normalization: str) -> None:
    terms, counts = hand_terms(), Counts(*torch.tensor([3, 2, 10]))
    whole = normalized_objective(terms, counts, "dair", 3.0, normalization)
    shares = [
        normalized_objective(PairTerms(*(column[part] for column in terms)), counts, "dair", 3.0, normalization)
        for part in (slice(0, 1), slice(1, 3))
    ]
    assert sum(shares).item() == pytest.approx(whole.item(), rel=1e-14)  # type: ignore[union-attr]


def test_rows_without_a_partner_have_gradient_one_and_none_for_the_absent_view() -> None:
    terms = hand_terms()
    slopes = gradients(pair_objective(terms, "dair", 3.0), terms.original, terms.augmented, terms.consistency)
    assert [slope.tolist() for slope in slopes] == [[0.5, 0.5, 1.0], [0.5, 0.5, 0.0], [3.0, 3.0, 0.0]]


def test_no_division_by_zero_without_pairs_or_tokens() -> None:
    nothing = PairTerms(leaf([0.0]), leaf([0.0]), leaf([0.0]), torch.tensor([False]))
    value = normalized_objective(nothing, Counts(*torch.tensor([1, 0, 0])), "dair", 1.0, "token")
    assert value.item() == 0.0
    assert np.isfinite(gradients(value, nothing.original)).all()


def test_a_normalization_that_is_not_defined_is_refused() -> None:
    counts = Counts(*torch.tensor([3, 2, 10]))
    for method, normalization in (("irm", "token"), ("trades", "token"), ("dair", "mean")):
        with pytest.raises(ValueError, match="normalization"):
            normalized_objective(hand_terms(), counts, method, normalization=normalization)


@pytest.mark.parametrize("name", LOSS_REGULARIZERS)
def test_slopes_of_a_regularizer_are_its_derivatives(name: str) -> None:
    regularizer = LOSS_REGULARIZERS[name]
    left, right = np.random.default_rng(3).uniform(0.1, 9, (2, 50))
    original, augmented = leaf(left), leaf(right)
    expected = gradients(regularizer.value(original, augmented, EPSILON), original, augmented)
    for slope, derivative in zip(regularizer.slopes(original, augmented, EPSILON), expected, strict=True):
        np.testing.assert_allclose(slope.detach().numpy(), derivative, rtol=1e-10)


@pytest.mark.parametrize("name", LOSS_REGULARIZERS)
def test_a_regularizer_that_takes_roots_says_so(name: str) -> None:
    """Only then are negative losses refused with a remedy."""
    regularizer = LOSS_REGULARIZERS[name]
    found = regularizer.value(torch.tensor([-1.0, 2.0]), torch.tensor([2.0, -1.0]), EPSILON)
    assert found.isnan().tolist() == [regularizer.takes_root] * 2
