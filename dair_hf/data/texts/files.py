"""Files of paired rows: `pairs_from_jsonl`."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from dair_hf.data.checks import require_named_partners
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
from dair_hf.data.view_columns import AUGMENTED_PREFIX, is_augmented, parse_column, partner_numbers, view_prefix
from dair_hf.errors import DataError, explained, is_out_of_memory
from dair_hf.io.files import decode_json, decode_utf8, parse_json, read_bytes
from dair_hf.io.pair_files import require_pairs_file

JSON_LINES = ".jsonl"
READERS: dict[str, Callable[..., datasets.Dataset]] = {  # of the kinds in `PAIR_KINDS`
    JSON_LINES: datasets.Dataset.from_json,
    ".json": datasets.Dataset.from_json,
    # Only empty cells are missing, not texts such as "None" and "NA".
    ".csv": functools.partial(datasets.Dataset.from_csv, keep_default_na=False, na_values=[""]),
    ".parquet": datasets.Dataset.from_parquet,
}


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
        pairs = datasets.concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    return with_row_ids(pairs)


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
    rows = _read(path)
    if isinstance(rows, datasets.DatasetDict):
        splits = list(rows)
        raise DataError(f"{path}: holds the splits {splits}; name the folder of one of them")
    if path.suffix.lower() == ".csv" and len(rows.column_names) == 1 and AUGMENTED_PREFIX in rows.column_names[0]:
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
        require_named_partners(columns, {*form.columns, *filter(is_augmented, columns)}, str(path))
        if not any(parse_column(name)[1] in form.columns for name in columns if is_augmented(name)):
            continue
        try:
            require_partner_columns(form, columns)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        for number, row in enumerate(rows):
            check_row(row, form, _Place(path, number))


class _Place:
    """Place of a row in a file, whose text is made only if it is shown.

    Args:
        path: The file.
        number: Number of the row.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number

    def __str__(self) -> str:
        if self.path.suffix.lower() != JSON_LINES:
            return f"{self.path}: row {self.number}"
        lines = self.path.read_text(encoding="utf-8").split("\n")
        filled = [number for number, line in enumerate(lines, 1) if line.strip()]
        return f"{self.path}: line {filled[self.number]}"


def check_row(row: Mapping[str, Any], form: TextForm, place: Any) -> None:
    """Refuse a row whose cells are no texts or messages, or that has half a partner.

    Args:
        row: The row.
        form: Its form.
        place: Where it is, for messages.

    Raises:
        DataError: With the place and the field.

    Example:
        >>> check_row({"source": "a", "target": "b"}, TextForm(("source",), "target"), "line 1")
    """
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


def _read(path: Path) -> datasets.Dataset | datasets.DatasetDict:
    is_text = path.is_file() and path.suffix.lower() != ".parquet"
    if is_text:
        _text_of(path)  # pyarrow may notice other encodings only when a cell is read
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs the errors that it raises
    try:
        if path.is_dir():
            return datasets.load_from_disk(path)
        with tempfile.TemporaryDirectory() as cache:
            return READERS[path.suffix.lower()](str(path), cache_dir=cache, keep_in_memory=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if is_text and path.suffix.lower() != ".csv":
            _check_json(path, _text_of(path))
            _check_cells(path, _text_of(path))
        cause: BaseException = error
        while isinstance(cause, datasets.exceptions.DatasetGenerationError) and cause.__cause__ is not None:
            cause = cause.__cause__
        text = " ".join(str(cause).split())
        raise DataError(f"{path}: cannot be read ({text[:400] or type(cause).__name__}); check the file") from error
    finally:
        datasets.logging.set_verbosity(verbosity)


def _text_of(path: Path) -> str:
    """Return the content of a file; raise a `DataError` if it is empty or not UTF-8."""
    text = decode_utf8(read_bytes(path), str(path))
    if not text.strip():
        raise DataError(f"{path}: is empty; give paired rows")
    return text


def _check_json(path: Path, text: str) -> None:
    """Raise a `DataError` that names the first line that is no JSON object, if there is one."""
    if text.lstrip().startswith("["):
        parse_json(text, str(path), "write it anew")
        return
    for number, line in enumerate(text.split("\n"), 1):
        try:
            row = decode_json(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}: line {number}, column {error.colno}: not valid JSON ({error.msg}); give one object in each "
                "line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number}: found {row!r:.80}; give one object in each line")


def _check_cells(path: Path, text: str) -> None:
    """Raise a `DataError` that names the first line with a cell that its form does not have, if there is one."""
    if text.lstrip().startswith("["):
        return
    lines = [(number, decode_json(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    columns = {name: None for _, row in lines for name in row}
    forms = [form for form in FORMS if set(form.needed) <= set(columns)]
    for number, row in lines:
        for form in forms:
            check_row({**columns, **row}, form, f"{path}: line {number}")
