"""Checks of a data set before it is read: whether it is one, holds rows, and holds pairs where a method uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import datasets
import torch

from dair_hf.data.collator import AUGMENTED_PREFIX, PADDING_ROW, ROW_ID
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError

SIMILAR = 0.8  # share of characters that a misspelt "augmented" has in common with the right one
CLOSE = 0.7  # and a misspelt word of the original's name, which may be short


def require_rows(data: Any, name: str) -> None:
    """Refuse what is no data set of rows, or an empty one; None passes.

    Args:
        data: What was given.
        name: Name of the argument.

    Raises:
        DataError: It is a dictionary of splits, a text, something that can be read only once, or empty.

    Example:
        >>> require_rows(datasets.Dataset.from_dict({"x": [1]}), "train_dataset")
    """
    if isinstance(data, Mapping):
        splits = list(data)
        raise DataError(
            f"{name} is a {type(data).__name__} with the splits {splits}; pass one of them"
            + (f", such as data[{splits[0]!r}]" if splits else "")
        )
    stream = isinstance(data, torch.utils.data.IterableDataset | datasets.IterableDataset)
    if data is None or stream:
        return
    if isinstance(data, str) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(
            f"{name} is a {type(data).__name__}; pass a datasets.Dataset, or for rows made one after the other "
            "datasets.IterableDataset.from_generator(...)"
        )
    if len(data) == 0:
        raise DataError(f"{name} is empty; check the split and the filters before it")


def require_named_partners(columns: Sequence[str], known: Collection[str], name: str) -> None:
    """Refuse a column that looks like the partner of another but is not named so; labels would be inherited instead.

    Args:
        columns: Columns of the data.
        known: Columns that are read, both of the original and of the augmented view.
        name: Name of the data.

    Raises:
        DataError: There is such a column.

    Example:
        >>> require_named_partners(["labels", "augmented_labels"], ["labels", "augmented_labels"], "train_dataset")
    """
    for column in columns:
        wanted = AUGMENTED_PREFIX + column
        if column.startswith(AUGMENTED_PREFIX) or column not in known or column in (ROW_ID, PADDING_ROW):
            continue
        if wanted not in columns and (found := _misspelt(wanted, columns, known)):
            raise DataError(
                f"{name} has the column {found!r} but no {wanted!r}, the column of the augmented view that belongs to "
                f"{column!r}; rename it, or drop it if it is something else"
            )


def require_pairs(data: Any, known: Collection[str], method: str, name: str) -> bool:
    """Refuse data without a single pair where a method trains on pairs.

    Rows are looked at where that costs little and changes nothing: of data sets held by `datasets`, of tensors and of
    lists. Streams and data sets of other kinds are watched while they are read.

    Args:
        data: Rows.
        known: Columns that are read, both of the original and of the augmented view.
        method: The method, for the message.
        name: Name of the data.

    Returns:
        Whether a pair was found; else the data is to be watched while it is read.

    Raises:
        DataError: No row has a partner.
    """
    columns = columns_of(data)
    if columns is not None:
        require_named_partners(columns, known, name)
    found = _has_pair(data, known)
    if found is False:
        raise DataError(no_pairs(name, columns, known, method))
    return bool(found)


def no_pairs(name: str, columns: Sequence[str] | None, known: Collection[str], method: str) -> str:
    """The message of data without pairs."""
    partners = [column for column in columns or () if column.startswith(AUGMENTED_PREFIX)]
    if columns is None:
        found = ""
    elif read := [column for column in partners if column in known]:
        found = f": {', '.join(read)} are None"
    elif partners:
        found = (
            f": neither the model nor the collator reads {', '.join(partners)} (name what a collator reads in its "
            "attribute `columns`)"
        )
    else:
        found = f": no column begins with {AUGMENTED_PREFIX!r}, it has {', '.join(sorted(columns))}"
    return (
        f"method={method!r} trains on pairs, but no row of {name} has a partner{found}. A partner has the columns of "
        f"its original with the prefix {AUGMENTED_PREFIX!r}; without partners use method='erm'"
    )


def columns_of(data: Any) -> list[str] | None:
    """Columns of a data set; None where it does not tell."""
    if isinstance(data, (list, tuple)):
        return list(dict.fromkeys(name for row in data for name in row)) if _holds_rows(data) else None
    found = getattr(data, "column_names", None)
    return list(found) if found else None


def _has_pair(data: Any, known: Collection[str]) -> bool | None:
    """Whether a row has a partner; None where that is seen only while the rows are read."""
    if isinstance(data, TensorPairs):
        return bool(data.partner_mask.any())
    if isinstance(data, (list, tuple)):
        return any(_is_paired(row.items(), known) for row in data) if _holds_rows(data) else None
    if isinstance(data, EpochPairs):
        names = [name for name in data.column_names if name.startswith(AUGMENTED_PREFIX)]
        return None if names else False  # another epoch may have partners
    if not isinstance(data, datasets.Dataset) or data.format["type"] == "custom":
        return None
    names = [name for name in data.column_names if name.startswith(AUGMENTED_PREFIX) and name in known]
    tables = data.select_columns(names).with_format("arrow").iter(batch_size=1000) if names else ()
    return any(table[name].null_count < len(table) for table in tables for name in names)


def _holds_rows(data: Sequence[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in data)


def _is_paired(row: Iterable[tuple[str, Any]], known: Collection[str]) -> bool:
    return any(name.startswith(AUGMENTED_PREFIX) and name in known and value is not None for name, value in row)


def _misspelt(wanted: str, columns: Sequence[str], known: Collection[str]) -> str | None:
    """A column of no known meaning whose whole name reads like `wanted`."""
    original = wanted.removeprefix(AUGMENTED_PREFIX)
    for column in columns:
        is_partner = column.startswith(AUGMENTED_PREFIX) and column.removeprefix(AUGMENTED_PREFIX) in columns
        if column == original or column in known or is_partner:
            continue
        if _reads_as_partner(column.lower(), original.lower()):
            return column
    return None


def _reads_as_partner(column: str, original: str) -> bool:
    """Whether a name is "augmented", or short for it, before or after the original's, word by word with a typo or so.

    A name of more words is that of something else, such as `is_augmented_label` or `augmented_labels_text`.
    """
    words, wanted = column.split("_"), original.split("_")
    for mark, rest in ((words[0], words[1:]), (words[-1], words[:-1])):
        is_mark = _likeness(mark, "augmented") >= SIMILAR or (len(mark) > 2 and "augmented".startswith(mark))
        similar = len(rest) == len(wanted) and all(map(_is_close, rest, wanted))
        if is_mark and (similar or "".join(rest) == "".join(wanted)):
            return True
    return "".join(words) == "augmented" + "".join(wanted)


def _is_close(word: str, wanted: str) -> bool:
    return _likeness(word, wanted) >= CLOSE


def _likeness(left: str, right: str) -> float:
    return SequenceMatcher(None, left, right).ratio()
