"""Correctness of logits and classes, and accuracy by class."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_classes
from dair_hf.vision.mnist.rotated import accuracy_by_class


def test_the_largest_logit_decides() -> None:
    logits = [np.array([-1.0, 2.0, 0.5], np.float32), np.array([3.0, 2.0, 2.9], np.float32), [0.0, -1.0, -0.5]]
    found = same_classes(logits, [1, 0, 2])
    assert found.dtype == np.bool_
    assert found.tolist() == [True, True, False]


def test_a_single_logit_decides_by_its_sign() -> None:
    assert same_classes([[0.1], [-0.1], [5.0], [-5.0], [0.0]], [1, 0, 0, 1, 0]).tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_random_logits_against_a_loop() -> None:
    generator = np.random.default_rng(0)
    logits, references = generator.normal(size=(200, 10)), generator.integers(0, 10, 200).tolist()
    expected = [max(range(10), key=lambda c, row=row: row[c]) == y for row, y in zip(logits, references, strict=True)]
    assert same_classes(list(logits), references).tolist() == expected
    assert same_classes(logits.argmax(1).tolist(), references).tolist() == expected  # classes instead of logits
    assert 0 < sum(expected) < 200


def test_no_rows() -> None:
    assert same_classes([], []).tolist() == []
    assert accuracy_by_class([], []) == {}


def test_accuracy_of_each_class() -> None:
    correct = [True, True, False, True, False, False, True]
    assert accuracy_by_class(correct, [4, 0, 4, 4, 9, 9, 0]) == {0: 1.0, 4: 2 / 3, 9: 0.0}
    assert list(accuracy_by_class(correct, [4, 0, 4, 4, 9, 9, 0])) == [0, 4, 9]


def test_invalid_inputs_are_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        same_classes([[0.0, 1.0], [0.0, float("nan")]], [1, 1])
    with pytest.raises(DataError, match=r"accuracy_by_class: \(2,\) values, \(3,\) classes"):
        accuracy_by_class([True, False], [1, 2, 3])
