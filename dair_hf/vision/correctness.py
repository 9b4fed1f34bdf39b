"""Accuracy and CM of a classifier by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct


def accuracy_by_class(correct: Any, classes: Sequence[int]) -> dict[int, float]:
    """Compute the accuracy of each class, as in the paper's table on Rotated MNIST.

    Args:
        correct: `[N]` bool.
        classes: Class of each row.

    Returns:
        Class -> accuracy in [0, 1], for the classes that occur, in ascending order.

    Raises:
        DataError: The numbers of rows differ, or a value is not boolean.

    Example:
        >>> accuracy_by_class([True, False, True], [7, 7, 2])
        {2: 1.0, 7: 0.5}
    """
    values, labels = as_correct(correct, "accuracy_by_class"), np.asarray(classes, dtype=np.int64)
    if values.shape != labels.shape:
        raise DataError(f"accuracy_by_class: {values.shape} values, {labels.shape} classes; give one each per row")
    return {int(label): float(values[labels == label].mean()) for label in np.unique(labels)}


def consistency_by_class(original_correct: Any, augmented_correct: Any, classes: Sequence[int]) -> dict[int, float]:
    """Compute CM of each class, `P(H(z~) = 1 | H(z) = 1)`, as in the paper's table on Rotated MNIST.

    Args:
        original_correct: `[N]` bool, H(z).
        augmented_correct: `[N]` bool, H(z~).
        classes: Class of each row.

    Returns:
        Class -> CM in [0, 1], for the classes that occur, in ascending order; NaN if no original of a class is correct.

    Raises:
        DataError: The numbers of rows differ, or a value is not boolean.

    Example:
        >>> consistency_by_class([True, True, False], [True, False, True], [7, 7, 2])
        {2: nan, 7: 0.5}
    """
    original = as_correct(original_correct, "original_correct")
    augmented = as_correct(augmented_correct, "augmented_correct")
    labels = np.asarray(classes, dtype=np.int64)
    if not original.shape == augmented.shape == labels.shape:
        raise DataError(
            f"consistency_by_class: {original.shape} originals, {augmented.shape} partners, {labels.shape} classes; "
            "give one each per row"
        )
    by_class = accuracy_by_class(augmented[original], labels[original].tolist())
    return {int(label): by_class.get(int(label), float("nan")) for label in np.unique(labels)}
