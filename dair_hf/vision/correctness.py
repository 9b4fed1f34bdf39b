"""Accuracy and CM of a classifier by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct


def accuracy_by_class(correct: Any, classes: Sequence[int]) -> dict[int, float]:
    """Compute the accuracy of each class, as in the paper's table on Rotated MNIST."""
    values, labels = as_correct(correct, "accuracy_by_class"), np.asarray(classes, dtype=np.int64)
    if values.shape != labels.shape:
        raise DataError(f"accuracy_by_class: {values.shape} values, {labels.shape} classes; give one each per row")
    return {int(label): float(values[labels == label].mean()) for label in np.unique(labels)}


def consistency_by_class(original_correct: Any, augmented_correct: Any, classes: Sequence[int]) -> dict[int, float]:
    """Compute CM of each class, `P(H(z~) = 1 | H(z) = 1)`, as in the paper's table on Rotated MNIST."""
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
