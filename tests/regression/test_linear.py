"""Linear regression: initialization, predictions, checkpoints, RMSE, and tilted losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from dair_hf.losses.objective import squared_root_consistency
from dair_hf.regression.linear import LinearRegression, LinearRegressionConfig, _tilted_loss, rmse


def model(features: int = 411) -> LinearRegression:
    torch.manual_seed(0)
    return LinearRegression(LinearRegressionConfig(num_features=features))


def test_size_and_initialization() -> None:
    found = model(20_000)
    assert found.num_parameters() == 20_001
    weights = found.linear.weight.detach().numpy()
    assert weights.std() == pytest.approx(0.01, rel=0.03)
    assert abs(weights.mean()) < 3e-4
    biases = torch.stack([LinearRegression(LinearRegressionConfig()).linear.bias.detach() for _ in range(100)])
    assert biases.std().item() == pytest.approx(0.01, rel=0.25)
    torch.manual_seed(1)
    wide = LinearRegression(LinearRegressionConfig(num_features=5_000, initializer_range=2.0))
    assert wide.linear.weight.std().item() == pytest.approx(2.0, rel=0.05)


def test_predictions_and_gradients_match_numpy() -> None:
    found = model(4)
    random = np.random.default_rng(0)
    features, targets = random.normal(size=(7, 4)).astype(np.float32), random.normal(size=7).astype(np.float32)
    outputs = found(torch.from_numpy(features), labels=torch.from_numpy(targets))
    weights, bias = (parameter.detach().numpy() for parameter in found.parameters())
    expected = features.astype(np.float64) @ weights[0] + bias
    assert outputs.logits.shape == (7, 1)
    np.testing.assert_allclose(outputs.logits[:, 0].detach().numpy(), expected, atol=1e-6)
    residuals = expected - targets
    assert outputs.loss.item() == pytest.approx((residuals**2).mean(), rel=1e-5)
    outputs.loss.backward()
    np.testing.assert_allclose(found.linear.weight.grad[0].numpy(), 2 * residuals @ features / 7, atol=1e-5)
    np.testing.assert_allclose(found.linear.bias.grad.numpy(), [2 * residuals.mean()], atol=1e-5)
    assert found(torch.from_numpy(features)).loss is None


def test_save_and_load(tmp_path: Path) -> None:
    found = model(5)
    found.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    loaded = LinearRegression.from_pretrained(tmp_path)
    by_name = AutoModel.from_pretrained(tmp_path)
    assert type(by_name) is LinearRegression
    assert AutoConfig.from_pretrained(tmp_path).num_features == 5
    for other in (loaded, by_name):
        assert all(torch.equal(a, b) for a, b in zip(found.parameters(), other.parameters(), strict=True))


def test_rmse_takes_every_layout_of_predictions() -> None:
    # Errors 0 and 3: sqrt(9 / 2).
    predictions = np.array([1.0, 5.0], dtype=np.float32)
    for layout in (predictions[:, None], predictions, [*predictions[:, None]], torch.from_numpy(predictions)):
        assert rmse(layout, [1.0, 2.0]) == pytest.approx((9 / 2) ** 0.5)
    assert rmse([2.0], [2.0]) == 0.0


LOSSES = np.random.default_rng(0).uniform(0, 6, 300)


def numpy_tilted(losses: np.ndarray, tilt: float) -> float:
    return float(np.log(np.mean(np.exp(tilt * losses))) / tilt)


@pytest.mark.parametrize("tilt", [-2.0, -0.1, 0.5, 3.0])
def test_value_and_gradient_match_numpy(tilt: float) -> None:
    losses = torch.tensor(LOSSES, requires_grad=True)
    found = _tilted_loss(losses, tilt)
    found.backward()
    assert found.item() == pytest.approx(numpy_tilted(LOSSES, tilt), rel=1e-12)
    powers = np.exp(tilt * LOSSES)
    assert losses.grad is not None
    np.testing.assert_allclose(losses.grad.numpy(), powers / powers.sum(), rtol=1e-10)
    assert _tilted_loss(torch.tensor(LOSSES).float(), tilt).item() == pytest.approx(found.item(), rel=1e-5)


def test_limits() -> None:
    losses = torch.tensor(LOSSES)
    assert _tilted_loss(losses, 1e-6).item() == pytest.approx(LOSSES.mean(), rel=1e-5)
    assert _tilted_loss(losses, -1e-6).item() == pytest.approx(LOSSES.mean(), rel=1e-5)
    # Within log(300) / |t| of the extreme loss.
    assert _tilted_loss(losses, -1e4).item() == pytest.approx(LOSSES.min(), abs=6e-4)
    assert _tilted_loss(losses, 1e4).item() == pytest.approx(LOSSES.max(), abs=6e-4)
    values = [_tilted_loss(losses, tilt).item() for tilt in (-50.0, -2.0, -0.1, 0.1, 2.0, 50.0)]
    assert values == sorted(values)


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e-3, 7.0])
def test_the_result_is_at_least_the_smallest_loss(value: float) -> None:
    # QSAR has 3085 rows. If log(mean) of equal losses were rounded above 0, the root in R would be NaN.
    losses = torch.full((3085,), value)
    assert _tilted_loss(losses, -2.0).item() == pytest.approx(value, rel=1e-6)
    mixed = torch.cat([losses, torch.rand(99, generator=torch.Generator().manual_seed(0)) + value])
    assert _tilted_loss(mixed, -2.0) >= mixed.min()
    batch = squared_root_consistency(_tilted_loss(losses, -2.0), _tilted_loss(mixed, -2.0))
    assert batch.isfinite()
