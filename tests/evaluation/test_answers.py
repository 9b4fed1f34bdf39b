"""Comparison of generated answers with references."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation.answers import MATCHES, absolute_errors, matches, same_classes, same_numbers


@pytest.mark.parametrize(
    ("rule", "answer", "reference", "right"),
    [
        ("exact", " Paris\n is ", "Paris is", True),
        ("exact", "paris", "Paris", False),
        ("exact", "Paris.", "Paris", False),
        ("exact", "", "", True),
        ("ignore-case", "PARIS ", "Paris", True),
        ("ignore-case", "Paris!", "Paris", False),
        ("first-line", "\n\n Paris \nQuestion: Rome?", "Paris", True),
        ("first-line", "It is Paris\nParis", "Paris", False),
        ("last-number", "3 + 4 = 7.", "#### 7", True),
        ("last-number", "so 1,000.00", "1000", True),
        ("last-number", "7-3", "3", True),
        ("last-number", "x = -3", "3", False),
        ("last-number", "(-3)", "-3", True),
        ("last-number", ".5", "0.5", True),
        ("last-number", "1,2", "2", True),
        ("last-number", "no idea", "2", False),
    ],
)
def test_rules(rule: str, answer: str, reference: str, right: bool) -> None:
    assert matches(rule, [answer], [reference]) == [right]


def test_numbers_are_exact() -> None:
    assert MATCHES["last-number"].key("12345678901234567890.1") == Decimal("12345678901234567890.1")
    assert MATCHES["last-number"].key("") is None


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match=r"match last-number: .*'none'"):
        matches("last-number", ["1", "2"], ["1", "none"])
    with pytest.raises(DataError, match="NaN"):
        same_classes([[float("nan"), 1.0]], [1])


def test_a_class_is_right_for_every_kind_of_classifier() -> None:
    tokens = [np.array([3, 4, 9]), np.array([3, 5])]
    assert same_classes(tokens, [[3, 4], [3, -100]]).tolist() == [True, True]
    assert same_classes(tokens, [[3, 5], [-100, 4]]).tolist() == [False, False]
    several = [np.array([2.0, -1.0, 0.1]), np.array([2.0, -1.0, -0.1])]
    assert same_classes(several, [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]).tolist() == [True, False]
    scores = [[0.0, 0.3, 1.0], [0.0, 0.0, 0.0]]
    assert same_classes([2, 0], scores).tolist() == [True, False]
    assert same_classes([1, 1], scores).tolist() == [False, False]


def test_a_number_is_right_within_the_tolerance() -> None:
    predictions = [[1.0], [1.5], [1.75], [-9.0]]
    assert same_numbers(predictions, [1.0] * 4, 0.5).tolist() == [True, True, False, False]
    assert absolute_errors(predictions, [1.0] * 4).tolist() == [0.0, 0.5, 0.75, 10.0]
    # A tenth of the standard deviation of -1 and 1 is 0.1.
    assert same_numbers([-1.09, 1.11], [-1.0, 1.0]).tolist() == [True, False]
    assert absolute_errors([[1.0, 2.0]], [[2.0, 4.0]]).tolist() == [1.5]
    assert not same_numbers([float("nan")], [1.0], 9.0).any()
