"""Checks of a data set before it is read: type, number of rows, labels of partners, and at least one pair."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import datasets
import torch
from transformers.utils import logging

from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.texts.forms import COMPLETION, TARGET
from dair_hf.data.view_columns import (
    AUGMENTED_PREFIX,
    is_augmented,
    parse_column,
    view_prefix,
)
from dair_hf.errors import DataError

logger = logging.get_logger(__name__)


def require_rows(data: Any, name: str) -> None:
    """Refuse an argument that is no data set of rows, or an empty one.

    Args:
        data: The argument; None and streams are accepted.
        name: Name of the argument.

    Raises:
        DataError: It is a dictionary of splits, a text, a table of pandas or polars, an iterable without random access,
            or empty.

    Example:
        >>> require_rows(datasets.Dataset.from_dict({"x": [1]}), "train_dataset")
    """
    if isinstance(data, Mapping):
        splits = list(data)
        raise DataError(
            f"{name} is a {type(data).__name__} with the splits {splits}; pass one of them"
            + (f", such as data[{splits[0]!r}]" if splits else "")
        )
    library = type(data).__module__.partition(".")[0]
    if library in ("pandas", "polars"):
        raise DataError(f"{name} is a {type(data).__name__}; pass datasets.Dataset.from_{library}(data)")
    if data is None or isinstance(data, torch.utils.data.IterableDataset | datasets.IterableDataset):
        return
    if isinstance(data, str) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(
            f"{name} is a {type(data).__name__}; pass a datasets.Dataset, or for rows from a generator "
            "datasets.IterableDataset.from_generator(...)"
        )
    if len(data) == 0:
        raise DataError(f"{name} is empty; check the split and the filters before it")


def warn_of_inherited_labels(columns: Sequence[str], known: Collection[str], name: str) -> None:
    """Warn if partners have the label of their originals, and a column that may hold another one."""
    labels = [column for column in (*LABEL_COLUMNS, COMPLETION, TARGET) if column in columns and column in known]
    for column in columns:
        view, original = parse_column(column)
        if not view or column in known or original in columns:
            continue
        for label in labels:
            wanted = view_prefix(view) + label
            if wanted not in columns:
                logger.warning_once(
                    f"{name} has the column {column!r}, which belongs to none of the originals, and no {wanted!r}: "
                    f"partners have the {label!r} of their originals; if {column!r} is theirs, rename it {wanted!r}"
                )


def require_pairs(data: Any, known: Collection[str], method: str, name: str) -> bool:
    """Refuse data without a single pair, if that can be known without reading it.

    Data sets of `datasets`, tensors and lists are searched.
    """
    columns = columns_of(data)
    if columns is not None:
        warn_of_inherited_labels(columns, known, name)
    has_pair = _has_pair(data, known)
    if has_pair is False:
        raise DataError(no_pairs(name, columns, known, method))
    return bool(has_pair)


def require_equal_classes(data: Any, label2id: Mapping[str, int], name: str) -> None:
    """Refuse columns of labels that number their classes otherwise than the originals or the model.

    Only columns of type `ClassLabel` name their classes. Names are compared without case; a name that the other side
    lacks says nothing.
    """
    if isinstance(data, Mapping):
        for key, part in data.items():
            require_equal_classes(part, label2id, f"{name}[{key!r}]")
        return
    numbers: dict[str, dict[str, int]] = {}
    for column, feature in (getattr(data, "features", None) or {}).items():
        of_token = getattr(feature, "feature", feature)
        if parse_column(column)[1] in LABEL_COLUMNS and isinstance(of_token, datasets.ClassLabel):
            numbers[column] = {text.casefold(): number for number, text in enumerate(of_token.names)}
    of_model = {text.casefold(): number for text, number in label2id.items()}
    for column, found in numbers.items():
        original = parse_column(column)[1]
        of_model_name = "model.config.label2id"
        for other, expected in ((repr(original), numbers.get(original, {})), (of_model_name, of_model)):
            for text in found:
                if expected.get(text, found[text]) != found[text]:
                    raise DataError(
                        f"{name}, column {column!r}: the class {text!r} is number {found[text]}, but {expected[text]} "
                        f"in {other}; renumber the column: dataset.align_labels_with_mapping("
                        f"{other if other == of_model_name else expected}, {column!r})"
                    )


def no_pairs(name: str, columns: Sequence[str] | None, known: Collection[str], method: str) -> str:
    """Return the error message for data without pairs."""
    partners = [column for column in columns or () if is_augmented(column)]
    if columns is None:
        reason = ""
    elif read := [column for column in partners if column in known]:
        reason = f": {', '.join(read)} are None"
    elif partners:
        reason = (
            f": neither the model nor the collator reads {', '.join(partners)} (list the columns of a collator in its "
            "attribute `columns`)"
        )
    else:
        reason = f": no column begins with {AUGMENTED_PREFIX!r}, it has {', '.join(sorted(columns))}"
    return (
        f"method={method!r} trains on pairs, but no row of {name} has a partner{reason}. A partner has the columns of "
        f"its original with the prefix {AUGMENTED_PREFIX!r}; without partners use method='erm'"
    )


def columns_of(data: Any) -> list[str] | None:
    """Return the columns of a data set; None if they are unknown."""
    if isinstance(data, (list, tuple)):
        return list(dict.fromkeys(name for row in data for name in row)) if _holds_rows(data) else None
    columns = getattr(data, "column_names", None)
    return list(columns) if columns else None


def _has_pair(data: Any, known: Collection[str]) -> bool | None:
    """Return whether a row has a partner; None if that is unknown until the rows are read."""
    if isinstance(data, TensorPairs):
        return bool(data.partner_mask.any())
    if isinstance(data, (list, tuple)):
        if not _holds_rows(data):
            return None
        return any(
            is_augmented(name) and name in known and value is not None for row in data for name, value in row.items()
        )
    if isinstance(data, EpochPairs):
        # Another epoch may have partners in the same columns.
        return None if any(map(is_augmented, data.column_names)) else False
    if not isinstance(data, datasets.Dataset) or data.format["type"] == "custom":
        return None
    names = [name for name in data.column_names if is_augmented(name) and name in known]
    tables = data.select_columns(names).with_format("arrow").iter(batch_size=1000) if names else ()
    return any(table[name].null_count < len(table) for table in tables for name in names)


def _holds_rows(data: Sequence[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in data)
