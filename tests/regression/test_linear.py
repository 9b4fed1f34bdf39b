"""Linear regression: initialization, predictions, checkpoints and per-row losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from dair_hf.regression.linear import LinearRegression, LinearRegressionConfig


def model(features: int = 411) -> LinearRegression:
    torch.manual_seed(0)
    return LinearRegression(LinearRegressionConfig(num_features=features))


def test_size_and_initialization() -> None:
    found = model(20_000)
    assert found.num_parameters() == 20_001
    weights = found.linear.weight.detach().numpy()
    assert weights.std() == pytest.approx(0.01, rel=0.03)
    assert abs(weights.mean()) < 3e-4
    biases = torch.stack([LinearRegression(LinearRegressionConfig()).linear.bias.detach() for _ in range(300)])
    assert biases.std().item() == pytest.approx(0.01, rel=0.15)
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
    # A checkpoint of another width is an error.
    with pytest.raises(RuntimeError, match="size mismatch|mismatched"):
        LinearRegression.from_pretrained(tmp_path, config=LinearRegressionConfig(num_features=6))
