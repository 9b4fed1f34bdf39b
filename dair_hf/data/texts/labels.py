"""Labels of texts, as a classifier or a regression needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dair_hf.data.texts.forms import is_missing
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX


def label_of(
    value: Any, loss: str | None, label2id: Mapping[str, int], num_labels: int, where: str, column: str
) -> Any:
    """Return the label of a view as the model needs it: the number of a class, a number, or a list of them in [0, 1].

    Args:
        value: Content of the cell. Whole numbers may be floats, as in a column of a CSV file with empty cells.
        loss: Name of the sample loss: "classification", "multi_label", or one of numbers.
        label2id: Name of a class -> its number, of the model.
        num_labels: Number of classes; 0: unknown.
        where: Name of the row, for messages.
        column: Column, for messages.

    Raises:
        DataError: The cell is empty or holds no label of this model.

    Example:
        >>> label_of("yes", "classification", {"no": 0, "yes": 1}, 2, "row '0'", "label")
        1
    """
    place = f"{where}, column {column!r}"
    if is_missing(value):
        raise DataError(f"{place}: is empty; give a label")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if loss == "classification":
        if isinstance(value, str) and value in label2id:
            return label2id[value]
        if is_number and float(value).is_integer():
            if label2id.get(str(int(value)), value) != value:
                raise DataError(
                    f"{place}: {int(value)} is the name of class {label2id[str(int(value))]} of the model, and the "
                    "number of another; give names as texts (in quotes, in JSON), or load the model with other names"
                )
            if num_labels and not 0 <= value < num_labels and value != IGNORE_INDEX:
                raise DataError(
                    f"{place}: the label {int(value)} is no class of the model, which has {num_labels} (0 to "
                    f"{num_labels - 1}); renumber the labels, or load the model with as many classes: "
                    "from_pretrained(..., num_labels=...)"
                )
            return int(value)
        raise DataError(
            f"{place}: {value!r:.80} is no class of the model: {', '.join(label2id)}; give the name of one, or its "
            "number as an integer, or load the model with your names: from_pretrained(..., label2id={...}, "
            "id2label={...})"
        )
    if loss == "multi_label":
        if not isinstance(value, list) or len(value) != num_labels or not all(_is_number(item) for item in value):
            raise DataError(f"{place}: found {value!r:.80}; give a list of {num_labels} numbers, one for each class")
        for number, item in enumerate(value):
            if not 0 <= item <= 1:  # nor NaN
                raise DataError(
                    f"{place}: found {item!r:.80} for class {number} in {value!r:.80}; give 1 for a class that applies "
                    "and 0 for one that does not, or a probability between"
                )
        return [float(item) for item in value]
    if not is_number or not math.isfinite(value):
        raise DataError(f"{place}: found {value!r:.80}; give a number, since the model is a regression")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
