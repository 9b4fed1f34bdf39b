"""Metrics of a regression: root mean squared error, and correctness within a tolerance (the paper's H)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError


def rmse(predictions: ArrayLike | Sequence[ArrayLike], references: ArrayLike) -> float:
    """Compute `sqrt(mean_i (f(x_i) - y_i)^2)`, the metric of the paper.

    Args:
        predictions: N predictions, each a number or `[1]`.
        references: N targets.

    Returns:
        The root mean squared error, in units of the target.

    Raises:
        DataError: The numbers of rows differ, there are none, or a value is NaN.

    Example:
        >>> rmse([[1.0], [5.0]], [1.0, 2.0])
        2.1213203435596424
    """
    return float(np.sqrt(np.mean(np.square(_errors(predictions, references, "rmse")))))


def is_correct(
    predictions: ArrayLike | Sequence[ArrayLike], references: ArrayLike, tolerance: float = 1.0
) -> NDArray[np.bool_]:
    """Compute `H(z) = [|f(x) - y| <= tolerance]`.

    Args:
        predictions: N predictions, each a number or `[1]`.
        references: N targets.
        tolerance: Largest error of a correct prediction, in units of the target, >= 0.

    Returns:
        `[N]` bool.

    Raises:
        DataError: The numbers of rows differ, there are none, a value is NaN, or the tolerance is negative.

    Example:
        >>> is_correct([[1.0], [5.0]], [1.5, 2.0], tolerance=0.5)
        array([ True, False])
    """
    if not tolerance >= 0:
        raise DataError(f"tolerance={tolerance} must be 0 or more, in units of the target")
    return np.asarray(np.abs(_errors(predictions, references, "is_correct")) <= tolerance)


def _errors(predictions: ArrayLike | Sequence[ArrayLike], references: ArrayLike, caller: str) -> NDArray[np.float64]:
    predicted, targets = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if targets.ndim != 1 or predicted.shape not in (targets.shape, (len(targets), 1)):
        raise DataError(
            f"{caller}: predictions have shape {list(predicted.shape)}, references {list(targets.shape)}; give one "
            "number per row"
        )
    if not len(targets):
        raise DataError(f"{caller}: there are no rows; check the split")
    errors = predicted.reshape(targets.shape) - targets
    if np.isnan(errors).any():
        raise DataError(f"{caller}: row {np.isnan(errors).argmax()} has a prediction or target that is NaN")
    return errors
