"""The linear toy against numpy: least squares on rows of exact moments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.errors import DataError
from reproduction import theory
from reproduction.linear_toy import (
    LinearToy,
    PairSample,
    consistency_and_bound,
    consistency_gap,
    da_findings,
    da_optimum,
    dair_findings,
    fit_da,
    fit_dair,
    sample_linear,
    squared_losses,
)
from reproduction.theory import TheoryConfig

WIDE = theory.TOYS["wide_"]
TOYS = [
    LinearToy(),
    LinearToy(x_std=2.0, noise_std=0.7, augmented_scale=0.2),
    LinearToy(shortcut=(3.0,), augmented_std=0.0),
    WIDE,
]


def least_squares(sample: PairSample) -> np.ndarray:
    stacked = np.vstack([sample.original.numpy(), sample.augmented.numpy()])
    return np.linalg.lstsq(stacked, np.tile(sample.targets.numpy(), 2), rcond=None)[0]


@pytest.mark.parametrize("toy", TOYS)
def test_fitted_weights_are_within_a_thousandth_of_the_closed_form(toy: LinearToy) -> None:
    sample = sample_linear(toy, seed=3)
    fitted = fit_da(sample)
    np.testing.assert_allclose(fitted.numpy(), least_squares(sample), rtol=1e-9, atol=1e-9)
    assert (fitted - da_optimum(toy)).abs().max() < 1e-9
    trained = fit_dair(sample, 0.0, [torch.zeros(len(fitted)).double()])
    assert (trained - da_optimum(toy)).abs().max() < 1e-5


def test_rows_have_the_stated_moments() -> None:
    sample = sample_linear(WIDE, count=50)
    x, y = sample.original[:, :3].numpy(), sample.targets.numpy()
    np.testing.assert_allclose(x.T @ x / 50, 4 * np.eye(3), atol=1e-12)
    np.testing.assert_allclose(x.T @ y / 50, 4 * np.array(WIDE.theta), atol=1e-12)
    np.testing.assert_allclose(sample.original[:, 3:].numpy(), np.outer(y, WIDE.shortcut), rtol=1e-14)
    assert torch.equal(sample.original[:, :3], sample.augmented[:, :3])
    jitter = sample.augmented[:, 3:].numpy() - 0.4 * np.outer(y, WIDE.shortcut)
    np.testing.assert_allclose(jitter.T @ jitter / 50, 0.1 * np.eye(2), atol=1e-12)
    plain = sample_linear(WIDE, count=50, exact_moments=False).targets
    assert abs(plain.square().mean().item() - (y**2).mean()) > 0.01


def numpy_dair(sample: PairSample, weights: np.ndarray, dair_lambda: float) -> float:
    left, right = ((sample.targets.numpy() - view.numpy() @ weights) ** 2 for view in sample[:2])
    consistency = (np.sqrt(left + 1e-7) - np.sqrt(right + 1e-7)) ** 2
    return float((left / 2 + right / 2 + dair_lambda * consistency).mean())


@pytest.mark.parametrize("dair_lambda", [0.3, 10.0, 1_000.0])
def test_dair_reaches_a_minimum_from_every_start(dair_lambda: float) -> None:
    sample = sample_linear(LinearToy(), count=2_000)
    fitted = [
        fit_dair(sample, dair_lambda, [torch.tensor(start).double()]) for start in ([0.0, 0.0], [1.0, 0.0], [0.3, -0.7])
    ]
    assert max((other - fitted[0]).abs().max().item() for other in fitted) < 1e-5
    at = fitted[0].numpy()
    lowest = numpy_dair(sample, at, dair_lambda)
    for step in np.random.default_rng(0).normal(0, 1e-3, (50, 2)):
        assert numpy_dair(sample, at + step, dair_lambda) > lowest


@pytest.mark.parametrize("toy", [LinearToy(), WIDE])
def test_dair_tends_to_the_invariant_model_and_da_does_not(toy: LinearToy) -> None:
    sample = sample_linear(toy, count=2_000)
    fitted = [fit_da(sample), *(fit_dair(sample, 10.0**power) for power in range(1, 5))]
    distances = [(weights - toy.invariant).norm().item() for weights in fitted]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-3
    assert distances[0] > 0.3
    # Each tenfold lambda brings it ten times closer.
    assert distances[-2] / distances[-1] == pytest.approx(10, rel=0.1)


def test_the_best_of_the_starts_is_not_the_mirrored_model() -> None:
    sample = sample_linear(WIDE, count=2_000)
    da, zero = fit_da(sample), torch.zeros(5).double()
    mirrored, invariant = (fit_dair(sample, 100.0, [start]) for start in (da, zero))
    left, right = ((sample.targets - view @ mirrored).numpy() for view in sample[:2])
    assert np.corrcoef(left, right)[0, 1] < -0.9
    assert (mirrored - WIDE.invariant).norm() > 1
    assert (invariant - WIDE.invariant).norm() < 0.02
    assert numpy_dair(sample, mirrored.numpy(), 100.0) > 2 * numpy_dair(sample, invariant.numpy(), 100.0)
    assert torch.equal(fit_dair(sample, 100.0), invariant)


def test_findings_by_hand() -> None:
    toy = LinearToy(theta=(1.0, 0.0), shortcut=(2.0,))
    sample = sample_linear(toy, count=200)
    findings, weights = da_findings(toy, sample), least_squares(sample)
    assert (findings["w1"], findings["w2"]) == pytest.approx((weights[0], weights[2]), rel=1e-9)
    assert findings["distance"] == pytest.approx(np.linalg.norm(weights - [1, 0, 0]), rel=1e-9)
    assert findings["rmse"] == pytest.approx(math.sqrt((weights[0] - 1) ** 2 + weights[1] ** 2 + 0.25), rel=1e-9)
    assert findings["error"] < 1e-9
    assert findings["rmse_best_decay"] == pytest.approx(findings["rmse"], rel=0.01)  # weight decay does not help here
    at_dair = dair_findings(toy, sample, 10.0)
    fitted = fit_dair(sample, 10.0).tolist()
    assert (at_dair["w1"], at_dair["w2"]) == (fitted[0], fitted[2])
    assert 0 < at_dair["consistency"] < at_dair["bound"] == pytest.approx(0.25 / 10, rel=1e-9)


def test_consistency_stays_within_the_bound_along_lambda() -> None:
    sample, invariant = sample_linear(LinearToy()), LinearToy().invariant
    da = fit_da(sample)
    for dair_lambda in (0.1, 1.0, 10.0, 100.0, 1_000.0):
        weights = fit_dair(sample, dair_lambda)
        consistency, bound = consistency_and_bound(sample, weights, invariant, dair_lambda)
        # The losses of the invariant model are e^2 in both views, 0.25 on average.
        assert bound == pytest.approx(2 * 0.25 / (2 * dair_lambda), rel=1e-9)
        assert consistency <= bound
        original, augmented = (losses.sqrt().numpy() for losses in squared_losses(sample, weights))
        assert consistency == pytest.approx(((original - augmented) ** 2).mean(), rel=1e-3)
    # Negative case: the optimum of DA-ERM exceeds the bound.
    consistency, bound = consistency_and_bound(sample, da, invariant, 10.0)
    assert consistency > bound


def test_gap_is_twice_the_smaller_root_times_the_distance() -> None:
    losses = np.linspace(0, 9, 19)
    roots = np.sqrt(losses)
    expected = 2 * np.minimum.outer(roots, roots) * np.abs(np.subtract.outer(roots, roots))
    gap = consistency_gap(torch.from_numpy(losses)).numpy()
    np.testing.assert_allclose(gap, expected, atol=1e-12)
    assert (gap >= -1e-12).all()
    zero = np.abs(gap) < 1e-12
    assert np.array_equal(zero, np.eye(19, dtype=bool) | (losses[:, None] == 0) | (losses[None, :] == 0))


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 99},
        {"logistic_rows": 999},
        {"seeds": []},
        {"lambdas": [1.0, 1.0]},
        {"lambdas": [0.0]},
        {"dair_lambda": -1.0},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(settings))):
        TheoryConfig(output_dir="out", **settings)
