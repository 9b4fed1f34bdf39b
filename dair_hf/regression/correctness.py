"""Root mean squared error of a regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dair_hf.evaluation.answers import absolute_errors


def rmse(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Compute `sqrt(mean_i (f(x_i) - y_i)^2)`, the metric of the paper.

    Args:
        predictions: N predictions, each a number or `[1]`.
        references: N targets.

    Returns:
        The root mean squared error, in units of the target.

    Example:
        >>> rmse([[1.0], [5.0]], [1.0, 2.0])
        2.1213203435596424
    """
    return float(np.sqrt(np.mean(np.square(absolute_errors(predictions, references)))))
