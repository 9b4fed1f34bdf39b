"""Correctness of logits and classes, and accuracy by class."""

from __future__ import annotations

import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_classes
from dair_hf.vision.mnist.rotated import accuracy_by_class


def test_accuracy_of_each_class() -> None:
    correct = [True, True, False, True, False, False, True]
    assert accuracy_by_class(correct, [4, 0, 4, 4, 9, 9, 0]) == {0: 1.0, 4: 2 / 3, 9: 0.0}
    assert list(accuracy_by_class(correct, [4, 0, 4, 4, 9, 9, 0])) == [0, 4, 9]


def test_invalid_inputs_are_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        same_classes([[0.0, 1.0], [0.0, float("nan")]], [1, 1])
    with pytest.raises(DataError, match=r"accuracy_by_class: \(2,\) values, \(3,\) classes"):
        accuracy_by_class([True, False], [1, 2, 3])
