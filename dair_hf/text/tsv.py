"""Tables with tab-separated columns, with the line of every row for messages."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.files import decode_utf8


class TableRow(NamedTuple):
    """Row of a table.

    Attributes:
        where: File and line at which the row ends, for messages.
        cells: Column -> text.
    """

    where: str
    cells: dict[str, str]


def read_tsv(source: Source, name: str, columns: Sequence[str]) -> list[TableRow]:
    r"""Read a table of a folder or an archive: UTF-8, one header line, tabs between cells.

    A cell may be in double quotes; it may then hold tabs and line breaks, and two double quotes for each one in the
    text. Nothing else is changed.

    Args:
        source: The folder or archive.
        name: Name of the file in it.
        columns: Columns that are needed; others are dropped.

    Raises:
        DataError: The file is no UTF-8 text or has no such column, a quote is not closed, or a row has more or fewer
            cells than the header. The message names file and line.

    Example:
        >>> read_tsv(Source("reviews.tsv"), "reviews.tsv", ["Text"])[0].where  # doctest: +SKIP
        'reviews.tsv, line 2'
    """
    label = source.label(name)
    text = decode_utf8(source.read(name), label)
    # Not `splitlines`, which also breaks lines at control characters that texts may hold.
    lines = csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True)
    rows: list[TableRow] = []
    header: list[str] | None = None
    try:
        for cells in lines:
            where = f"{label}, line {lines.line_num}"
            if header is None:
                header = cells
                if missing := [column for column in columns if column not in header]:
                    raise DataError(f"{where}: no column {', '.join(missing)} (found {', '.join(header)}); add it")
            elif len(cells) != len(header):
                raise DataError(f"{where}: found {len(cells)} cells, the header has {len(header)}; mend the row")
            else:
                by_name = dict(zip(header, cells, strict=True))
                rows.append(TableRow(where, {column: by_name[column] for column in columns}))
    except csv.Error as error:
        raise DataError(f"{label}, line {lines.line_num}: {error}; check the double quotes of the row") from error
    if not rows:
        raise DataError(f"{label}: holds no rows; check the file")
    return rows
