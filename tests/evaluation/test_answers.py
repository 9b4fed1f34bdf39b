"""Comparison of generated answers with references."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation.answers import MATCHES, last_number, matches


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
    assert last_number("12345678901234567890.1") == Decimal("12345678901234567890.1")
    assert last_number("") is None


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match=r"match last-number: the reference 'none' has no number; use exact"):
        matches("last-number", ["1", "2"], ["1", "none"])
    with pytest.raises(DataError, match=f"use one of {', '.join(MATCHES)}"):
        matches("fuzzy", ["1"], ["1"])
