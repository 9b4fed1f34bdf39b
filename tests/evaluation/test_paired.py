"""Paired differences: against simulated models, the jackknife, and cases by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dair_hf.errors import DataError
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


@pytest.mark.parametrize(("row", "seed", "rest"), [(1.0, 0.0, 1.0), (0.0, 1.0, 1.0), (0.5, 0.3, 2.0)])
def test_variance_is_that_of_the_mean_over_simulated_experiments(row: float, seed: float, rest: float) -> None:
    """The difference of a row in a seed is drawn as a random effect of each, and one of both."""
    rows, seeds, zeros = 40, 6, np.zeros((6, 40))
    means, variances = [], []
    for _ in range(3000):
        cells = RNG.normal(size=rows) * row + RNG.normal(size=(seeds, 1)) * seed + RNG.normal(size=(seeds, rows)) * rest
        found = paired_difference(accuracy(cells), accuracy(zeros))
        means.append(found.difference)
        variances.append(found.standard_error**2)
    truth = row**2 / rows + seed**2 / seeds + rest**2 / rows / seeds
    assert np.var(means) == pytest.approx(truth, rel=0.15)
    # Not below it; the lower bound makes it larger if one of the effects is absent.
    assert truth * 0.95 < np.mean(variances) < truth * 1.3


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
    assert paired_difference(*copied, names) == pytest.approx(once)
    one = [(right[:1], ones[:1]) for right, ones in copied]
    assert paired_difference(*one).standard_error < 0.6 * paired_difference(*one, names).standard_error


def test_variance_below_that_of_the_means_is_not_taken() -> None:
    """Rows and seeds that only interact: the unbiased estimate is negative."""
    found = paired_difference(accuracy([[1, 0], [0, 1]]), accuracy([[0, 1], [1, 0]]))
    assert found == (0.0, 0.0)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (accuracy([[1, 0]]), accuracy([[1, 0, 1]]), "shapes"),
        (accuracy([[1]]), accuracy([[1]]), "needs two"),
        (([[1, 0], [0, 0]], [[1, 1], [0, 0]]), accuracy([[1, 0], [1, 0]]), "seed number 1.*no rows"),
    ],
)
def test_undefined_differences_are_refused(first: Any, second: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        paired_difference(first, second)
