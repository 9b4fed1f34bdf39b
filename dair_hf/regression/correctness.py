"""How far predictions are from their targets, and when one counts as right (the paper's H)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError


def rmse(predictions: ArrayLike | Sequence[ArrayLike], references: ArrayLike) -> float:
    """`sqrt(mean_i (f(x_i) - y_i)^2)`, the paper's measure.

    Args:
        predictions: N predictions, each a number or `[1]`.
        references: N targets.

    Returns:
        The root mean squared error, units of the target.

    Raises:
        DataError: Numbers of rows differ, there are none, or a value is NaN.

    Example:
        >>> rmse([[1.0], [5.0]], [1.0, 2.0])
        2.1213203435596424
    """
    return float(np.sqrt(np.mean(np.square(_errors(predictions, references, "rmse")))))


def is_correct(
    predictions: ArrayLike | Sequence[ArrayLike], references: ArrayLike, tolerance: float = 1.0
) -> NDArray[np.bool_]:
    """`H(z) = [|f(x) - y| <= tolerance]`.

    Args:
        predictions: N predictions, each a number or `[1]`.
        references: N targets.
        tolerance: Largest distance that counts as right, units of the target, >= 0.

    Returns:
        `[N]` bool.

    Raises:
        DataError: Numbers of rows differ, there are none, a value is NaN, or the tolerance is negative.

    Example:
        >>> is_correct([[1.0], [5.0]], [1.5, 2.0], tolerance=0.5)
        array([ True, False])
    """
    if not tolerance >= 0:
        raise DataError(f"tolerance={tolerance} must be 0 or more, in units of the target")
    return np.asarray(np.abs(_errors(predictions, references, "is_correct")) <= tolerance)


def _errors(predictions: ArrayLike | Sequence[ArrayLike], references: ArrayLike, caller: str) -> NDArray[np.float64]:
    found, wanted = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if wanted.ndim != 1 or found.shape not in (wanted.shape, (len(wanted), 1)):
        raise DataError(
            f"{caller}: predictions have shape {list(found.shape)}, references {list(wanted.shape)}; give one number "
            "each a row"
        )
    if not len(wanted):
        raise DataError(f"{caller}: there are no rows; check the split")
    errors = found.reshape(wanted.shape) - wanted
    if np.isnan(errors).any():
        raise DataError(f"{caller}: row {np.isnan(errors).argmax()} has a prediction or target that is NaN")
    return errors
