"""Correctness of a classifier (the paper's H), and accuracy and CM by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct


def is_correct(predictions: Sequence[ArrayLike], references: Sequence[int]) -> NDArray[np.bool_]:
    """Compute `H(z) = [argmax_c f_c(x) = y]`, or `H(z) = [(f(x) > 0) = y]` for a single logit.

    Args:
        predictions: Class of each row, or its logits, `[C]` floats; C = 1 for a binary classifier.
        references: Class of each row.

    Returns:
        `[N]` bool.

    Raises:
        DataError: The numbers of rows or of logits differ, or a logit is NaN.

    Example:
        >>> is_correct([1, 0], [1, 1])
        array([ True, False])
        >>> is_correct([[0.1, 0.9], [0.8, 0.2]], [1, 1])
        array([ True, False])
        >>> is_correct([[2.0], [-3.0]], [1, 0])
        array([ True,  True])
    """
    if len(predictions) != len(references):
        raise DataError(
            f"is_correct: {len(predictions)} predictions, {len(references)} references; give one each per row"
        )
    if not len(predictions):
        return np.zeros(0, dtype=np.bool_)
    rows = [np.asarray(row) for row in predictions]
    shapes = sorted({row.shape for row in rows})
    if shapes == [()] and all(row.dtype.kind in "iu" for row in rows):
        return np.asarray(np.stack(rows) == np.asarray(references))
    if len(shapes) > 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        raise DataError(
            f"is_correct: predictions have shapes {shapes[:3]}; each must be a class or the logits [C] of one row"
        )
    logits = np.stack(rows).astype(np.float64)
    if np.isnan(logits).any():
        raise DataError(f"is_correct: row {np.isnan(logits).any(axis=1).argmax()} has a logit that is NaN")
    predicted = logits[:, 0] > 0 if logits.shape[1] == 1 else logits.argmax(axis=1)
    return np.asarray(predicted == np.asarray(references))


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
