"""Labels of texts: names and numbers of classes."""

from __future__ import annotations

import pytest

from dair_hf.data.texts.labels import label_of
from dair_hf.errors import DataError

STARS = {"1": 0, "2": 1, "3": 2}


@pytest.mark.parametrize(("value", "label2id", "expected"), [
    ("2", STARS, 1), (1, {"0": 0, "1": 1}, 1), (1.0, {"LABEL_0": 0, "LABEL_1": 1}, 1), (-100, STARS, -100),
])  # fmt: skip
def test_names_and_numbers_of_classes(value: object, label2id: dict[str, int], expected: int) -> None:
    assert label_of(value, "classification", label2id, len(label2id), "row '0'", "label") == expected


@pytest.mark.parametrize("value", [1, 2.0])
def test_a_number_that_is_the_name_of_another_class_is_refused(value: float) -> None:
    with pytest.raises(
        DataError, match=rf"^row '0', column 'label': {int(value)} is the name of class {int(value) - 1}"
    ):
        label_of(value, "classification", STARS, 3, "row '0'", "label")
