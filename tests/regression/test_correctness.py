"""RMSE by hand and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dair_hf.regression.linear import rmse


def test_rmse_by_hand() -> None:
    # Errors 0 and 3: sqrt(9 / 2).
    assert rmse([[1.0], [5.0]], [1.0, 2.0]) == pytest.approx((9 / 2) ** 0.5)
    assert rmse([2.0], [2.0]) == 0.0


@pytest.mark.parametrize("layout", ["rows", "vector", "arrays", "tensor"])
def test_rmse_takes_every_layout_of_predictions(layout: str) -> None:
    random = np.random.default_rng(0)
    predictions, references = random.normal(size=(2, 50)).astype(np.float32)
    layouts = {
        "rows": predictions[:, None],
        "vector": predictions,
        "arrays": [np.array([value]) for value in predictions],
        "tensor": torch.from_numpy(predictions),
    }
    expected = np.sqrt(((predictions.astype(float) - references) ** 2).mean())
    assert rmse(layouts[layout], references.tolist()) == pytest.approx(expected, rel=1e-12)
