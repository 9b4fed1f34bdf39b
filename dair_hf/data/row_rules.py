"""Requirements of a model on rows, and the refusal of rows that do not meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

LABEL_COLUMNS = ("labels", "label_ids", "label")  # collators of transformers rename each to `labels`
TARGET_PREFIXES = ("label", "decoder_")  # of the columns of the output, including their masks
NOT_TEXT = {
    "input_ids": "tokenize it: tokenizer(text).input_ids",
    **dict.fromkeys(LABEL_COLUMNS, "give the number of its class, or the ids of its tokens"),
}


@dataclass(frozen=True)
class RowRules:
    """Requirements of a model on rows.

    Attributes:
        labels_per_token: Whether there is one label per token of `input_ids`, as for decoder-only models and token
            classifiers. Partners then need their own labels.
        labels_as_long_as_inputs: Whether a collator of transformers, which pads them apart, would otherwise move labels
            to other tokens.
        id_limits: Column -> exclusive upper limit of its ids: the size of the vocabulary, or the number of classes.
        label_range: Smallest and largest label of a loss of probabilities, such as (0, 1); None: any label.
    """

    labels_per_token: bool = False
    labels_as_long_as_inputs: bool = False
    id_limits: Mapping[str, int] = field(default_factory=dict)
    label_range: tuple[float, float] | None = None


NO_RULES = RowRules()


def with_one_label(where: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with one column of labels; collators of transformers would silently take one of several."""
    present = [name for name in LABEL_COLUMNS if name in row]
    found = [name for name in present if row[name] is not None]
    if len(found) > 1:
        raise DataError(
            f"{where}: has the columns {' and '.join(map(repr, found))}, each of which collators take for the labels; "
            f"keep that of the targets and drop the other: dataset.remove_columns({found[-1]!r})"
        )
    if not found or len(present) == 1:
        return row
    return {name: value for name, value in row.items() if name not in present or name in found}


def is_inherited(name: str, original: Mapping[str, Any], present: Mapping[str, Any], rules: RowRules) -> bool:
    """Return whether a partner without a column takes it from its original, see `collator.split_views`.

    Args:
        name: The column.
        original: Columns of the original.
        present: Columns of the partner.
        rules: Requirements of the model.

    Example:
        >>> is_inherited("labels", {"input_ids": [5], "labels": 3}, {"input_ids": [6]}, NO_RULES)
        True
    """
    if name in LABEL_COLUMNS:
        return not rules.labels_per_token
    if not name.endswith("_mask"):
        return False
    covered = [other for other in present if other.startswith(TARGET_PREFIXES) == name.startswith(TARGET_PREFIXES)]
    try:
        ones = bool((np.asarray(original[name]) == 1).all())
        pairs = [(np.asarray(original[other]), np.asarray(present[other])) for other in covered]
    except (TypeError, ValueError):  # lists of different lengths in one column, types that numpy does not have
        return False
    # Zeros mark the padding of the original; the partner may be padded elsewhere.
    return all(left.shape == right.shape and (ones or np.array_equal(left, right)) for left, right in pairs)


def reason_not_inherited(name: str, prefix: str, rules: RowRules) -> str:
    """Return why `is_inherited` is False for a column, to be added to a message; empty if there is no such rule."""
    if name in LABEL_COLUMNS and rules.labels_per_token:
        return "; this model has one label per token, so the labels of the original do not fit other inputs"
    if not name.endswith("_mask"):
        return ""
    return (
        "; the mask of the original does not fit inputs of another shape, nor different inputs if it has zeros: "
        f"give {prefix}{name}"
    )


def check_view(where: str, prefix: str, view: Mapping[str, Any], rules: RowRules) -> None:
    """Refuse values of a view on which a collator or a model would fail without naming the row."""
    for name, remedy in NOT_TEXT.items():
        if isinstance(view.get(name), str):
            raise DataError(f"{where}: {prefix}{name} is the text {view[name][:40]!r}; {remedy}")
    ids, mask = view.get("input_ids"), view.get("attention_mask")
    if rules.labels_per_token and isinstance(ids, Sized) and len(ids) == 0:
        raise DataError(
            f"{where}: {prefix}input_ids is empty, so that there is nothing to train or predict; remove such rows, or "
            "give them a token: dataset.filter(lambda row: len(row['input_ids']) > 0)"
        )
    if isinstance(ids, Sized) and isinstance(mask, Sized) and len(ids) != len(mask):
        raise DataError(
            f"{where}: {prefix}attention_mask has {len(mask)} entries for {len(ids)} tokens of {prefix}input_ids; give "
            "one per token"
        )
    for name, limit in rules.id_limits.items():
        is_label = name in LABEL_COLUMNS
        wrong = _out_of_range(view.get(name, 0), limit, IGNORE_INDEX if is_label else 0)
        for value in wrong or ([] if is_label else _fractions(view.get(name))):
            remedy = "check the labels, and num_labels of the model" if is_label else "use the model's own tokenizer"
            raise DataError(
                f"{where}: {prefix}{name} holds {value}, but valid ids are 0 to {limit - 1}"
                f"{f', and {IGNORE_INDEX} for no target' if is_label else ''}; {remedy}"
            )
    if rules.label_range is not None:
        low, high = rules.label_range
        for name in LABEL_COLUMNS:
            for value in _out_of_interval(view.get(name, IGNORE_INDEX), low, high):
                raise DataError(
                    f"{where}: {prefix}{name} holds {value:g}, but labels of this sample loss are {low:g} to {high:g}; "
                    "check the labels, or set another sample_loss"
                )


def _out_of_interval(values: Any, low: float, high: float) -> list[float]:
    """Return the first invalid label in a list, or an empty list; NaN and None are invalid."""
    try:
        labels = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        return []  # no numbers, or lists of different lengths, which the collator refuses
    is_ignored = (labels == IGNORE_INDEX) & (np.asarray(values).dtype.kind == "i")
    is_valid = ((labels >= low) & (labels <= high)) | is_ignored
    return labels[~is_valid][:1].tolist()


def _out_of_range(values: Any, limit: int, allowed: int) -> list[Any]:
    """Return the first invalid id in a list, or an empty list.

    Invalid is None, and an id that is neither in [0, limit) nor `allowed`. Values that are no ids are not checked.
    """
    if hasattr(values, "tolist"):
        values = values.reshape(-1).tolist()
    ids = values if isinstance(values, (list, tuple)) else [values]
    if ids and hasattr(ids[0], "tolist"):  # numbers or arrays of numpy
        return next((wrong for part in ids if (wrong := _out_of_range(part, limit, allowed))), [])
    if None in ids:
        return [None]
    if not ids or type(ids[0]) is not int or (min(ids) >= 0 and max(ids) < limit):
        return []
    return [value for value in ids if not 0 <= value < limit and value != allowed][:1]


def _fractions(values: Any) -> list[float]:
    """Return the first number of a list that is no integer, or an empty list; columns hold numbers of one type."""
    ids = values.reshape(-1)[:1].tolist() if hasattr(values, "tolist") else values
    first = ids[0] if isinstance(ids, (list, tuple)) and ids else None
    return [float(first)] if isinstance(first, (float, np.floating)) else []


def require_equal_lengths(where: str, prefix: str, view: Mapping[str, Any]) -> None:
    """Refuse a view whose labels are not as many as its tokens."""
    ids = view.get("input_ids")
    for name in LABEL_COLUMNS:
        labels = view.get(name)
        if isinstance(ids, Sized) and isinstance(labels, Sized) and len(labels) != len(ids):
            raise DataError(
                f"{where}: {prefix}{name} has {len(labels)} entries for {len(ids)} tokens of {prefix}input_ids, and "
                f"this model has one label per token; give {IGNORE_INDEX} for each token without a target, such as "
                "those of a prompt"
            )


def not_a_number(view: Mapping[str, Any], skips_text: bool = False) -> tuple[str, Any] | None:
    """Return name and value of the first column that holds something else than numbers, or None."""
    for name, value in view.items():
        if not _holds_numbers(value) and not (skips_text and (value is None or isinstance(value, str))):
            return name, value
    return None


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_holds_numbers, value))
    return hasattr(value, "shape") or isinstance(value, (int, float))
