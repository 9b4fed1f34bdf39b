"""Tables in text files: cells between commas or tabs, with the line of every row for messages."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import decode_utf8

COMMA, TAB = ",", "\t"


class TableRow(NamedTuple):
    """Row of a table."""

    where: str
    cells: dict[str, str]


def read_table(content: bytes, label: str, delimiter: str, columns: Sequence[str] = ()) -> list[TableRow]:
    r"""Read a table: UTF-8, one header line, a delimiter between cells.

    A cell may be in double quotes; it may then hold delimiters and line breaks, and two double quotes for each one in
    the text. Nothing else is changed: all cells are texts. Empty lines are left out. A column without a name, as that
    of the index which pandas writes, is called `Unnamed: NUMBER`, as pandas does.

    Args:
        content: Content of the file.
        label: Name of the file, for messages.
        delimiter: `COMMA` or `TAB`.
        columns: Columns that are needed; others are dropped. Empty: all are kept.

    Raises:
        DataError: The file is no UTF-8 text, lacks a column or has one twice, a quote is not closed, or a row has more
            or fewer cells than the header. The message names file and line.

    Example:
        >>> read_table(b'text,label\n"a, b",1\n', "reviews.csv", COMMA)
        [TableRow(where='reviews.csv: line 2', cells={'text': 'a, b', 'label': '1'})]
    """
    text = decode_utf8(content, label)
    rows: list[TableRow] = []
    header: list[str] = []
    # Not `splitlines`, which also breaks lines at control characters that texts may hold.
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        with _cells_of_any_length():
            for cells in lines:
                where = f"{label}: line {lines.line_num}"
                if not cells:
                    continue
                if not header:
                    header = [name or f"Unnamed: {number}" for number, name in enumerate(cells)]
                    _require_columns(header, columns, where)
                elif len(cells) != len(header):
                    raise DataError(f"{where}: found {len(cells)} cells, the header has {len(header)}; mend the row")
                else:
                    by_name = dict(zip(header, cells, strict=True))
                    rows.append(TableRow(where, {name: by_name[name] for name in columns or header}))
    except csv.Error as error:
        raise DataError(f"{label}: line {lines.line_num}: {error}; check the double quotes of the row") from error
    if not rows:
        raise DataError(f"{label}: holds no rows; check the file")
    return rows


def _require_columns(header: Sequence[str], columns: Sequence[str], where: str) -> None:
    if missing := [column for column in columns if column not in header]:
        raise DataError(f"{where}: no column {', '.join(missing)} (found {', '.join(header)}); add it")
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{where}: several columns are called {', '.join(repeated)}; rename all but one")


@contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """Lift the limit of Python's reader, 131,072 characters a cell."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
