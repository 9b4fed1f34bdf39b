"""Paired differences: against simulated models, the jackknife, and cases by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dair_hf.evaluation.paired import paired_difference

RNG = np.random.default_rng(0)


def accuracy(correct: Any) -> tuple[np.ndarray, np.ndarray]:
    correct = np.asarray(correct, dtype=float)
    return correct, np.ones_like(correct)


def test_one_seed_is_the_paired_t_test() -> None:
    first, second = RNG.random((2, 1, 60)) < np.array([[[0.7]], [[0.4]]])
    found = paired_difference(accuracy(first), accuracy(second))
    expected = stats.ttest_rel(first[0].astype(float), second[0].astype(float)).statistic
    assert found.difference / found.standard_error == pytest.approx(expected)


@pytest.mark.parametrize("clustered", [False, True])
def test_ratio_agrees_with_the_jackknife(clustered: bool) -> None:
    original = RNG.random((2, 400)) < 0.7
    both = original & (RNG.random((2, 400)) < np.array([[0.8], [0.6]]))
    # Clusters of 2 and of 12 rows: sums that are not centered would vary with the size.
    names = np.repeat(np.arange(400), np.tile([2, 12], 200))[:400] if clustered else np.arange(400)

    def cm(keep: np.ndarray) -> float:
        of = both[:, keep].sum(1) / original[:, keep].sum(1)
        return float(of[0] - of[1])

    units = np.unique(names)
    left_out = np.array([cm(names != unit) for unit in units])
    jackknife = math.sqrt((len(units) - 1) / len(units) * ((left_out - left_out.mean()) ** 2).sum())
    found = paired_difference(
        (both[:1], original[:1]), (both[1:], original[1:]), [str(name) for name in names] if clustered else None
    )
    assert found.difference == pytest.approx(cm(np.full(400, True)))
    assert found.standard_error == pytest.approx(jackknife, rel=0.05)


def test_copies_of_rows_in_a_cluster_add_nothing() -> None:
    first, second = RNG.random((2, 3, 30)) < 0.5
    once = paired_difference(accuracy(first), accuracy(second))
    names = [str(row // 4) for row in range(120)]
    copied = [accuracy(np.repeat(model, 4, axis=1)) for model in (first, second)]
    assert paired_difference(*copied, names)[:3] == pytest.approx(once[:3])
    one = [(right[:1], ones[:1]) for right, ones in copied]
    assert paired_difference(*one).standard_error < 0.6 * paired_difference(*one, names).standard_error


@pytest.mark.parametrize("seed", [0, 1])
def test_interval_is_that_of_each_source_of_variance_alone(seed: int) -> None:
    """Seeds that differ alone: the t interval of their means. Rows alone: the paired t interval."""
    rng = np.random.default_rng(seed)
    zeros = np.zeros((3, 20))
    effects = rng.normal(size=3)
    of_rows = rng.normal(size=20)
    for alone, cells in ((effects, np.tile(effects[:, None], 20)), (of_rows, np.tile(of_rows, (3, 1)))):
        found = paired_difference(accuracy(cells), accuracy(zeros))
        ends = found.difference - found.half_width, found.difference + found.half_width
        expected = stats.ttest_1samp(alone, 0.0)
        assert ends == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert found.p_value == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(
    ("row", "seed", "rest", "variance"),
    [
        (3, 2, 1, 9 + 4 - 1),  # the residuals are in the variance of the row means as well, and count once
        (1, 3, 2, 9),  # never below that of the seeds, though 1 + 9 - 4 is
        (3, 1, 2, 9),  # nor below that of the rows
        (1, 1, 2, 4),  # nor below that of the residuals
    ],
)
def test_sources_of_variance_are_added_by_hand(row: float, seed: float, rest: float, variance: float) -> None:
    """Two rows and two seeds: A is the square of the row effect, B of that of the seed, E of that of the residual."""
    signs = np.array([-1.0, 1.0])
    cells = 5 + row * signs + seed * signs[:, None] + rest * signs * signs[:, None]
    found = paired_difference(accuracy(cells), accuracy(np.zeros((2, 2))))
    assert (found.difference, found.standard_error) == pytest.approx((5, math.sqrt(variance)))
    # Every part has one degree of freedom, whose distribution is Cauchy's: its quantile is the tangent.
    assert found.half_width == pytest.approx(math.tan(math.pi * 0.475) * math.sqrt(variance))
    assert found.p_value == pytest.approx(1 - 2 / math.pi * math.atan(5 / math.sqrt(variance)))


def test_p_value_is_the_level_whose_interval_ends_at_zero() -> None:
    """Few seeds and many rows: at a smaller level the seeds weigh more."""
    rng = np.random.default_rng(0)
    cells = 0.4 + 0.05 * rng.normal(size=(3, 1)) + rng.normal(size=(3, 200)) + rng.normal(size=200)
    found = paired_difference(accuracy(cells), accuracy(np.zeros((3, 200))))
    rows, seeds = cells.mean(0).var(ddof=1) / 200, cells.mean(1).var(ddof=1) / 3
    rest = ((cells - cells.mean(0) - cells.mean(1, keepdims=True) + cells.mean()) ** 2).sum() / 398 / 600
    for_rows, for_seeds, for_rest = stats.t.ppf(1 - found.p_value / 2, [199, 2, 398]) ** 2
    expected = max(for_seeds * seeds + for_rows * max(rows - rest, 0), for_rows * rows, for_rest * rest)
    assert found.difference**2 == pytest.approx(expected) and 1e-6 < found.p_value < 0.05


def test_one_seed_makes_no_claim_about_seeds() -> None:
    first, second = accuracy([[1] * 19 + [0]]), accuracy([[0] * 20])
    found = paired_difference(first, second)
    assert found.difference / found.standard_error > 10
    assert (found.half_width, found.is_significant) == (None, False)
    twice = paired_difference(accuracy([[1] * 19 + [0]] * 2), accuracy([[0] * 20] * 2))
    assert twice.is_significant and twice.half_width is not None and twice.difference - twice.half_width > 0.5


@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("names", [None, list("aaaabbc")])
def test_a_difference_without_variance_has_no_interval(right: int, names: list[str] | None) -> None:
    first, second = accuracy(np.full((3, 7), right)), accuracy(np.zeros((3, 7)))
    found = paired_difference(first, second, names)
    assert found[:3] == (right, 0.0, None) and not found.is_significant and found.p_value == 1
    first[0][0, 0] = 1 - right
    found = paired_difference(first, second, names)
    assert found.half_width is not None and found.half_width > found.standard_error > 0


@pytest.mark.parametrize(
    ("row", "seed", "rest", "seeds"),
    [(1, 0, 0, 2), (1, 0, 1, 5), (0, 0, 1, 3), (1, 0.2, 1, 2), (0, 0.2, 1, 5), (0, 1, 1, 2), (0, 1, 1, 5)],
)
def test_interval_covers_an_absent_difference(row: float, seed: float, rest: float, seeds: int) -> None:
    """In 95 % of simulated experiments or more: with n = 3,000, 6.2 % of misses lie three standard errors off."""
    rng, zeros, misses, narrow = np.random.default_rng(0), accuracy(np.zeros((seeds, 60))), 0, 0
    for _ in range(3000):
        cells = rng.normal(size=60) * row + rng.normal(size=(seeds, 1)) * seed + rng.normal(size=(seeds, 60)) * rest
        found = paired_difference(accuracy(cells), zeros)
        misses += found.is_significant
        narrow += abs(found.difference) > 2 * found.standard_error
    assert misses / 3000 <= 0.062
    if (row, seed) == (0, 1):  # what the interval is for: seeds that matter, estimated from few
        assert narrow / 3000 > 0.10
