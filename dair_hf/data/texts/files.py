"""Files of paired rows: `pairs_from_jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from dair_hf.data.collator import ROW_ID
from dair_hf.data.texts.forms import (
    COMPLETION,
    COMPLETIONS,
    FORMS,
    INPUT_IDS,
    LABEL,
    MESSAGES,
    PROMPT,
    TextForm,
    is_missing,
    messages_of,
    require_partner_columns,
    text_of,
    view_of,
)
from dair_hf.data.texts.readers import CSV, JSON_LINES, read_file
from dair_hf.data.view_columns import AUGMENTED_PREFIX, is_augmented, parse_column, partner_numbers, view_prefix
from dair_hf.errors import DataError, explained
from dair_hf.io.records import require_pairs_file


def pairs_from_jsonl(paths: str | Path | Sequence[str | Path]) -> datasets.Dataset:
    """Read paired texts from JSON lines, JSON, CSV or Parquet, and check their columns and cells.

    A row has the columns of one form; its partner has the same with the prefix `augmented_`, its second partner with
    `augmented_2_` and so on:

    - `text`, optionally `text_pair`, and `label`: the name or number of a class, or a number;
    - `prompt` and `completion`: texts, or lists of messages;
    - `messages`: a chat, whose assistant's turns are learned;
    - `source` and `target`: texts.

    A row whose partner's columns are absent or null has no such partner. If a file has no column for a partner's target
    at all, it is that of the original, and likewise one of two input columns (`text_pair` without
    `augmented_text_pair`). A partner that equals its original is a pair like any other; null is cheaper. `DAIRTrainer`
    takes the result as it is, and tokenizes it.

    Args:
        paths: File or files, whose rows follow one another; also folders of `Dataset.save_to_disk`.

    Returns:
        The rows. Those of files without `row_id` get one: their number, from 0, in all files together.

    Raises:
        DataError: A file is missing, of another kind, empty or damaged; there are no columns of a form, or none of
            partners; a cell holds something else than its form needs, with the line and the field; or files have
            different columns.

    Example:
        >>> pairs = pairs_from_jsonl(["train_1.jsonl", "train_2.jsonl"])  # doctest: +SKIP
        >>> pairs[0]  # doctest: +SKIP
        {'prompt': '2 + 3 =', 'completion': '5', 'augmented_prompt': '7 + 1 =', 'augmented_completion': '8', ...}
    """
    files = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    if not files:
        raise DataError("paths: names no file; give at least one")
    parts = [read_rows(path) for path in files]
    for path, rows in zip(files, parts, strict=True):
        if set(rows.column_names) != set(parts[0].column_names):
            gap = sorted(set(rows.column_names) ^ set(parts[0].column_names))
            raise DataError(f"{path}: only one of it and {files[0]} has {gap}; give all files the same columns")
        _require_texts(path, rows)
    with explained(", ".join(map(str, files)), ValueError, TypeError):
        pairs = datasets.concatenate_datasets(_with_equal_numbers(parts)) if len(parts) > 1 else parts[0]
    return with_row_ids(pairs)


def _with_equal_numbers(parts: list[datasets.Dataset]) -> list[datasets.Dataset]:
    """Return files with fractions in a column if one of them has fractions there and another whole numbers."""
    whole, fraction = datasets.Value("int64"), datasets.Value("float64")
    for name in parts[0].column_names:
        types = [part.features[name] for part in parts]
        if whole in types and fraction in types:
            parts = [part.cast_column(name, fraction) if part.features[name] == whole else part for part in parts]
    return parts


def read_pairs(path: Path) -> datasets.Dataset:
    """Read paired rows of any columns; rows without a `row_id` get their number.

    Args:
        path: As in `pairs_from_jsonl`.

    Raises:
        DataError: The file is missing, of another kind, empty, damaged, or has no columns of partners.
    """
    return with_row_ids(read_rows(path))


def with_row_ids(rows: datasets.Dataset) -> datasets.Dataset:
    """Return rows with a column `row_id`: as given, or their numbers."""
    if ROW_ID in rows.column_names:
        return rows
    return rows.add_column(ROW_ID, [str(number) for number in range(len(rows))])


def read_rows(path: Path, needs_partners: bool = True) -> datasets.Dataset:
    """Read the rows of a file.

    Args:
        path: As in `pairs_from_jsonl`.
        needs_partners: Whether there must be columns of partners.

    Raises:
        DataError: As `read_pairs`.
    """
    require_pairs_file(path)
    rows = read_file(path)
    if isinstance(rows, datasets.DatasetDict):
        splits = list(rows)
        raise DataError(f"{path}: holds the splits {splits}; name the folder of one of them")
    if path.suffix.lower() == CSV and len(rows.column_names) == 1 and AUGMENTED_PREFIX in rows.column_names[0]:
        raise DataError(
            f"{path}: its columns are not separated by commas (found one, {rows.column_names[0]!r:.80}); write it "
            "anew, with commas"
        )
    if not len(rows) or (needs_partners and not any(map(is_augmented, rows.column_names))):
        raise DataError(
            f"{path}: found {len(rows)} rows with the columns {rows.column_names}; partners have the columns of their "
            f"originals with the prefix {AUGMENTED_PREFIX!r}"
        )
    return rows


def _require_texts(path: Path, rows: datasets.Dataset) -> None:
    """Refuse rows of no form, and cells that no model can read; of labels, only the model can tell."""
    columns = rows.column_names
    forms = [form for form in FORMS if set(form.needed) <= set(columns)]
    if not forms and INPUT_IDS not in columns:
        raise DataError(
            f"{path}: has the columns {columns}; give {', or '.join(map(str, FORMS))}, each also with the prefix "
            f"{AUGMENTED_PREFIX!r}"
        )
    for form in forms:
        if not any(parse_column(name)[1] in form.columns for name in columns if is_augmented(name)):
            continue
        try:
            require_partner_columns(form, columns)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        for number, row in enumerate(rows):
            check_row(row, form, _Place(path, number))


class _Place:
    """Place of a row in a file, whose text is made only if it is shown."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number

    def __str__(self) -> str:
        if self.path.suffix.lower() != JSON_LINES:
            return f"{self.path}: row {self.number}"
        lines = self.path.read_text(encoding="utf-8").split("\n")
        filled = [number for number, line in enumerate(lines, 1) if line.strip()]
        return f"{self.path}: line {filled[self.number]}"


def check_row(row: Mapping[str, Any], form: TextForm, place: Any) -> None:
    """Refuse a row whose cells are no texts or messages, or that has half a partner."""
    for view in (0, *partner_numbers(row)):
        content, prefix = view_of(row, form, view, place), view_prefix(view)
        for column, value in (content or {}).items():
            if column == MESSAGES or (column in (PROMPT, COMPLETION) and isinstance(value, list)):
                messages_of(value, place, prefix + column)
            elif column == LABEL:
                if is_missing(value):
                    raise DataError(f"{place}, column {prefix + column!r}: is empty; give a label")
            else:
                text_of(value, place, prefix + column)
        if (
            content
            and form is COMPLETIONS
            and isinstance(content[PROMPT], list) != isinstance(content[COMPLETION], list)
        ):
            raise DataError(
                f"{place}, column {prefix + COMPLETION!r}: of prompt and completion one is a text and the other a list "
                "of messages; give both alike"
            )
