"""Files of paired rows: JSON lines, JSON, CSV, Parquet, and folders of `datasets`.

The readers of `datasets` guess types from the first chunk of JSON and CSV: texts such as "2024-05-02" or "007" become
dates and numbers, and a column that begins with empty cells cannot hold a text later. Here a text stays a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet

from dair_hf.data.collator import ROW_ID
from dair_hf.data.texts.forms import FORMS, INPUT_IDS, LABEL, require_partner_columns, view_of
from dair_hf.data.view_columns import columns_by_view, is_augmented, parse_column
from dair_hf.errors import DataError, explained
from dair_hf.io.records import PARQUET, is_hub_id, load_records, require_pairs_file

JSON_LINES, CSV = ".jsonl", ".csv"
SAVED = ("state.json", "dataset_dict.json")  # in folders of `save_to_disk`; others are laid out as on the Hub
# Columns of CSV files whose cells are texts, even if they look like numbers.
TEXTS = {ROW_ID} | {column for form in FORMS for column in form.columns} - {LABEL}
WHOLE_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
# A float does not hold 19 digits.
NUMBER = re.compile(r"-?(?!\d{19})((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def pairs_from_jsonl(paths: str | Path | Sequence[str | Path], **source: Any) -> datasets.Dataset:
    """Read paired texts from JSON lines, JSON, CSV, Parquet or the Hub, and check their columns and cells.

    A row has the columns of one form; its partner has the same with the prefix `augmented_`, its second partner with
    `augmented_2_` and so on:

    - `text`, optionally `text_pair`, and `label`: the name or number of a class, or a number;
    - `prompt` and `completion`: texts, or lists of messages;
    - `messages`: a chat, whose assistant's turns are learned;
    - `source` and `target`: texts.

    A row whose partner's columns are absent or null has no such partner. If a file has no column for a partner's
    target, the partner has the target of its original, and likewise one of two input columns (`text_pair` without
    `augmented_text_pair`). A partner that equals its original is a pair like any other; null is cheaper. `DAIRTrainer`
    takes the result as it is, and tokenizes it.

    Args:
        paths: File or files, whose rows follow one another; also folders of `datasets`, and ids on the Hub such as
            `user/name`.
        **source: `name` (of a configuration), `split` and `revision` of data sets, as in `datasets.load_dataset`.

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
    parts = [read_pairs(path, **source) for path in files]
    for path, rows in zip(files, parts, strict=True):
        # `concatenate_datasets` fills columns that a file lacks with null: no partner.
        if set(rows.column_names) != set(parts[0].column_names):
            raise DataError(f"{path}: expected the columns {parts[0].column_names}, got {rows.column_names}")
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


def with_row_ids(rows: datasets.Dataset) -> datasets.Dataset:
    """Return rows with a column `row_id`: as given, or their numbers."""
    if ROW_ID in rows.column_names:
        return rows
    return rows.add_column(ROW_ID, [str(number) for number in range(len(rows))])


def read_pairs(path: Path, *, needs_partners: bool = True, **source: Any) -> datasets.Dataset:
    """Read the rows of a file of pairs, a folder of `datasets`, or a data set on the Hub; see `pairs_from_jsonl`."""
    require_pairs_file(path)
    kind, given = path.suffix.lower(), {name for name, value in source.items() if value is not None}
    is_saved = any((path / name).exists() for name in SAVED)
    with explained(f"{path}: cannot be read" + " from the Hub, nor is it a path" * is_hub_id(path), Exception):
        if is_saved:
            rows = datasets.load_from_disk(path)
        elif path.is_dir() or is_hub_id(path):
            rows, given = datasets.load_dataset(path.as_posix(), **source), set()
        elif kind == PARQUET:  # with the types of columns, such as class names and images
            rows = datasets.Dataset(pyarrow.parquet.read_table(path))
        else:
            records = load_records(path)
            names = dict.fromkeys(name for row in records for name in row)
            columns = {name: [row.get(name) for row in records] for name in names}
            if kind == CSV:
                rows = datasets.Dataset.from_dict({name: _cells(name, texts) for name, texts in columns.items()})
            else:
                rows = _with_mixed_types(columns)
    if isinstance(rows, datasets.DatasetDict):
        split = source.get("split") or (next(iter(rows)) if len(rows) == 1 else None)
        if split not in rows:
            raise DataError(f"{path}: expected one of the splits {', '.join(rows)}, got {split}")
        rows, given = rows[split], given - {"split"}
    if given:
        raise DataError(f"{path}: expected a data set with {', '.join(sorted(given))}, got rows without")
    if not len(rows) or (needs_partners and not any(map(is_augmented, rows.column_names))):
        expected = "rows with the columns of originals, and of partners with the prefix 'augmented_'"
        raise DataError(f"{path}: expected {expected}, got {len(rows)} rows with {rows.column_names}")
    return rows


def _cells(name: str, texts: Sequence[str | None]) -> list[Any]:
    """Return the cells of a column of a CSV file."""
    values = [text or None for text in texts]
    kinds = () if parse_column(name)[1] in TEXTS else ((int, WHOLE_NUMBER), (float, NUMBER))
    for number, pattern in kinds:
        if all(value is None or pattern.fullmatch(value) for value in values):
            return [None if value is None else number(value) for value in values]
    return values


def _with_mixed_types(columns: dict[str, list[Any]]) -> datasets.Dataset:
    """Return columns as a data set; a field may be a text in one row and something else in another."""
    # The type `Json` takes a text that is valid JSON for what it says, so texts there are encoded first.
    rows = datasets.Dataset.from_dict(columns, on_mixed_types="use_json")
    if "Json(" not in repr(rows.features):
        return rows
    encoded = {name: [_encoded(value, rows.features[name]) for value in values] for name, values in columns.items()}
    return datasets.Dataset.from_dict(encoded, features=rows.features)


def _encoded(value: Any, feature: Any) -> Any:
    if isinstance(feature, datasets.Json):
        return json.dumps(value) if isinstance(value, str) else value
    if isinstance(feature, datasets.List) and value is not None:
        return [_encoded(item, feature.feature) for item in value]
    if isinstance(feature, dict) and value is not None:
        return {name: _encoded(value.get(name), inner) for name, inner in feature.items()}
    return value


def _require_texts(path: Path, rows: datasets.Dataset) -> None:
    """Refuse rows of no form, and cells that no model can read; of labels, only the model can tell."""
    columns = rows.column_names
    views = columns_by_view(columns, path)
    forms = [form for form in FORMS if set(form.needed) <= set(columns)]
    if not forms and INPUT_IDS not in columns:
        raise DataError(f"{path}: expected {', or '.join(map(str, FORMS))}, got the columns {columns}")
    for form in forms:
        if not any(parse_column(name)[1] in form.columns for name in columns if is_augmented(name)):
            continue
        require_partner_columns(form, columns, f"{path}: ")
        for number, row in enumerate(rows):
            for view in views:
                view_of(row, form, view, _Place(path, number))


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
