"""Readers of records: JSON lines, JSON, CSV, TSV and Parquet. A text in a file stays a text."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError, explained
from dair_hf.io.files import FilePath, decode_json_texts, decode_utf8, read_bytes

COMMA, TAB = ",", "\t"
DELIMITERS = {".csv": COMMA, ".tsv": TAB}
PARQUET = ".parquet"


class TableRow(NamedTuple):
    """Row of a table: its place, for messages, and its cells by column."""

    where: str
    cells: dict[str, str]


def load_records(path: FilePath, faulty: list[int] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a file, as stored; cells of CSV and TSV are texts.

    Args:
        path: `.csv`, `.tsv` or `.parquet`; any other name is JSON lines or an array of JSON objects.
        faulty: Receives the numbers of lines that hold no JSON object; None: such a line is an error.
    """
    kind = Path(path).suffix.lower()
    if kind in DELIMITERS:
        return [row.cells for row in read_table(read_bytes(path), str(path), DELIMITERS[kind])]
    if kind == PARQUET:
        import pyarrow.parquet

        with explained(f"{path}: cannot be read", OSError, pyarrow.ArrowException):
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
            return rows
    return _read_json_rows(path, faulty)


def _read_json_rows(path: FilePath, faulty: list[int] | None) -> list[dict[str, Any]]:
    text, unit = decode_utf8(read_bytes(path), str(path)), "line"
    if text.lstrip().startswith("["):
        with explained(f"{path}: not valid JSON", ValueError):
            array = decode_json_texts(text, object_pairs_hook=_distinct)
        values, unit = list(enumerate(array, 1)), "row"
    else:
        values = []
        # Not with splitlines, which also splits at characters that JSON strings may contain, such as U+2028.
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            value, place = None, f"{path}: line {number}: not valid JSON"
            with explained(place, ValueError) if faulty is None else contextlib.suppress(ValueError):
                value = decode_json_texts(line, object_pairs_hook=_distinct)
            values.append((number, value))
    rows = []
    for number, value in values:
        if isinstance(value, dict):
            rows.append(value)
        elif faulty is None:
            raise DataError(f"{path}: {unit} {number}: expected a JSON object, got {value!r:.80}")
        else:
            faulty.append(number)
    return rows


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object; refuse a repeated key; Python would keep the last one."""
    if len(row := dict(pairs)) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} occurs several times")
    return row


def read_table(content: bytes, label: str, delimiter: str, columns: Sequence[str] = ()) -> list[TableRow]:
    """Read a table in UTF-8 with one header line, whose cells are texts; an unnamed column is `Unnamed: NUMBER`."""
    # pandas would fill short rows, rename repeated columns and take the first cell of longer rows for an index.
    csv.field_size_limit(sys.maxsize)  # Python's own limit is 131,072 characters a cell
    lines = csv.reader(io.StringIO(decode_utf8(content, label), newline=""), delimiter=delimiter, strict=True)
    with explained(label, csv.Error):
        table = [(f"{label}: line {lines.line_num}", cells) for cells in lines if cells]
    header = [name or f"Unnamed: {number}" for number, name in enumerate(table[0][1])] if table else []
    uneven = [where for where, cells in table if len(cells) != len(header)]
    missing = [name for name in columns if name not in header]
    if uneven or missing or len(set(header)) < len(header):
        where = next(iter(uneven), label)
        raise DataError(f"{where}: expected the columns {missing or header}, each once and in every row, got {header}")
    rows = ((where, dict(zip(header, cells, strict=True))) for where, cells in table[1:])
    return [TableRow(where, {name: cells[name] for name in columns or header}) for where, cells in rows]
