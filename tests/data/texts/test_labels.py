"""Labels of texts: names and numbers of classes."""

from __future__ import annotations

import pytest

from dair_hf.data.texts.forms import label_of
from dair_hf.errors import DataError

STARS = {"1": 0, "2": 1, "3": 2}


@pytest.mark.parametrize(("value", "label2id", "expected"), [
    ("2", STARS, 1), (1, {"0": 0, "1": 1}, 1), (1.0, {"LABEL_0": 0, "LABEL_1": 1}, 1), (-100, STARS, -100),
])  # fmt: skip
def test_names_and_numbers_of_classes(value: object, label2id: dict[str, int], expected: int) -> None:
    assert label_of(value, "classification", label2id, len(label2id), "row '0'", "label") == expected


@pytest.mark.parametrize(
    ("value", "loss"),
    [
        (1, "classification"),  # the name of class 0, and the number of class 1
        (2.0, "classification"),
        (7, "classification"),
        ("4", "classification"),
        (1.5, "classification"),
        ([1, 0], "multi_label"),
        ([1, 0, 2], "multi_label"),
        ("1", "squared"),
        (float("inf"), "squared"),
        (True, "squared"),
    ],
)
def test_values_that_are_not_labels_of_the_model_are_refused(value: object, loss: str) -> None:
    with pytest.raises(DataError, match="^row '0', column 'label'"):
        label_of(value, loss, STARS, 3, "row '0'", "label")
