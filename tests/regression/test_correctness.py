"""RMSE and correctness within a tolerance, by hand and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.regression.correctness import is_correct, rmse


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


def test_correct_is_within_the_tolerance() -> None:
    predictions = [[1.0], [1.5], [1.75], [0.5], [-9.0]]
    found = is_correct(predictions, [1.0] * 5, tolerance=0.5)
    assert found.dtype == np.bool_
    assert found.tolist() == [True, True, False, True, False]
    assert is_correct(predictions, [1.0] * 5, tolerance=0.0).tolist() == [True, False, False, False, False]
    assert is_correct(predictions, [1.0] * 5).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([[1.0, 2.0]], [1.0], r"predictions have shape \[1, 2\], references \[1\]"),
        ([1.0, 2.0], [1.0], r"predictions have shape \[2\], references \[1\]"),
        ([[1.0], [2.0]], [[1.0], [2.0]], r"references \[2, 1\]; give one number per row"),
        ([], [], "there are no rows; check the split"),
        ([1.0, float("nan")], [1.0, 1.0], "row 1 has a prediction or target that is NaN"),
    ],
)
def test_bad_rows_are_refused(predictions: list, references: list, message: str) -> None:
    with pytest.raises(DataError, match=f"rmse: .*{message}"):
        rmse(predictions, references)
    with pytest.raises(DataError, match=f"is_correct: .*{message}"):
        is_correct(predictions, references)


@pytest.mark.parametrize("tolerance", [-0.1, float("nan")])
def test_negative_tolerances_are_refused(tolerance: float) -> None:
    with pytest.raises(DataError, match=f"tolerance={tolerance} must be 0 or more"):
        is_correct([1.0], [1.0], tolerance)
