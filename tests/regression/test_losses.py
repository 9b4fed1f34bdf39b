"""Tilted loss against numpy float64: value, gradient, limits, sign and both regularizers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dair_hf.losses.objective import squared_root_consistency
from dair_hf.regression.linear import tilted_loss

LOSSES = np.random.default_rng(0).uniform(0, 6, 300)


def numpy_tilted(losses: np.ndarray, tilt: float) -> float:
    return float(np.log(np.mean(np.exp(tilt * losses))) / tilt)


@pytest.mark.parametrize("tilt", [-2.0, -0.1, 0.5, 3.0])
def test_value_and_gradient_match_numpy(tilt: float) -> None:
    losses = torch.tensor(LOSSES, requires_grad=True)
    found = tilted_loss(losses, tilt)
    found.backward()
    assert found.item() == pytest.approx(numpy_tilted(LOSSES, tilt), rel=1e-12)
    powers = np.exp(tilt * LOSSES)
    assert losses.grad is not None
    np.testing.assert_allclose(losses.grad.numpy(), powers / powers.sum(), rtol=1e-10)
    assert tilted_loss(torch.tensor(LOSSES).float(), tilt).item() == pytest.approx(found.item(), rel=1e-5)


def test_limits() -> None:
    losses = torch.tensor(LOSSES)
    assert tilted_loss(losses, 1e-6).item() == pytest.approx(LOSSES.mean(), rel=1e-5)
    assert tilted_loss(losses, -1e-6).item() == pytest.approx(LOSSES.mean(), rel=1e-5)
    # Within log(300) / |t| of the extreme loss.
    assert tilted_loss(losses, -1e4).item() == pytest.approx(LOSSES.min(), abs=6e-4)
    assert tilted_loss(losses, 1e4).item() == pytest.approx(LOSSES.max(), abs=6e-4)
    values = [tilted_loss(losses, tilt).item() for tilt in (-50.0, -2.0, -0.1, 0.1, 2.0, 50.0)]
    assert values == sorted(values)


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e-3, 7.0])
def test_the_result_is_at_least_the_smallest_loss(value: float) -> None:
    # QSAR has 3085 rows. If log(mean) of equal losses were rounded above 0, the root in R would be NaN.
    losses = torch.full((3085,), value)
    assert tilted_loss(losses, -2.0).item() == pytest.approx(value, rel=1e-6)
    mixed = torch.cat([losses, torch.rand(99, generator=torch.Generator().manual_seed(0)) + value])
    assert tilted_loss(mixed, -2.0) >= mixed.min()
    batch = squared_root_consistency(tilted_loss(losses, -2.0), tilted_loss(mixed, -2.0))
    assert batch.isfinite()
