"""Rows of a file as they stand in it: JSON lines, JSON, CSV, Parquet, and folders of `datasets`.

The readers of `datasets` guess types from the first chunk of JSON and CSV: texts such as "2024-05-02" or "007" become
dates and numbers, and a column that begins with empty cells cannot hold a text later. Here a text stays a text.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets

from dair_hf.data.collator import ROW_ID
from dair_hf.data.texts.forms import FORMS, LABEL
from dair_hf.data.view_columns import parse_column
from dair_hf.errors import DataError, is_out_of_memory
from dair_hf.io.records import load_records

JSON_LINES, CSV, PARQUET = ".jsonl", ".csv", ".parquet"
# Columns of CSV files whose cells are texts, whatever they look like.
TEXTS = {ROW_ID} | {column for form in FORMS for column in form.columns} - {LABEL}
WHOLE_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
NUMBER = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def read_file(path: Path) -> datasets.Dataset | datasets.DatasetDict:
    """Read the rows of a file, or the data of a folder."""
    kind = path.suffix.lower()
    with _explained(path):
        if path.is_dir():
            return datasets.load_from_disk(path)
        if kind == PARQUET:
            with tempfile.TemporaryDirectory() as cache:
                return datasets.Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
        if kind == CSV:
            table = load_records(path)
            columns = table[0] if table else {}
            return datasets.Dataset.from_dict({name: _cells(name, [row[name] for row in table]) for name in columns})
        rows = load_records(path)
        names = dict.fromkeys(name for row in rows for name in row)
        return _with_mixed_types({name: [row.get(name) for row in rows] for name in names})


def _cells(name: str, texts: Sequence[str]) -> list[Any]:
    """Return the cells of a column of a CSV file."""
    values = [text or None for text in texts]
    kinds = () if parse_column(name)[1] in TEXTS else ((int, WHOLE_NUMBER), (float, NUMBER))
    for number, pattern in kinds:
        if all(value is None or pattern.fullmatch(value) for value in values):
            return [None if value is None else number(value) for value in values]
    return values


def _with_mixed_types(columns: dict[str, list[Any]]) -> datasets.Dataset:
    """Return columns as a data set; a field may be a text in one row and something else in another.

    The type `Json` of `datasets` takes a text that is valid JSON for what it says, so texts there are encoded first.
    """
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


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise errors of readers, which else log them, too, as a `DataError` with the file."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        cause: BaseException = error
        while isinstance(cause, datasets.exceptions.DatasetGenerationError) and cause.__cause__ is not None:
            cause = cause.__cause__
        text = " ".join(str(cause).split())
        raise DataError(f"{path}: cannot be read ({text[:400] or type(cause).__name__}); check the file") from error
    finally:
        datasets.logging.set_verbosity(verbosity)
