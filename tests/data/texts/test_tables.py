"""Tables: quoting, lines of rows, and broken files."""

from __future__ import annotations

import pytest

from dair_hf.data.texts.tables import COMMA, TAB, TableRow, read_table
from dair_hf.errors import DataError


def read(content: bytes, columns: tuple[str, ...] = ("a", "b")) -> list[TableRow]:
    return read_table(content, "table.tsv", TAB, columns)


def test_cells_are_kept_and_lines_are_counted() -> None:
    rows = read(b'c\tb\ta\n1\t"two\nlines"\t "x" \n2\t"say ""no"""\t<br />\n')
    assert [row.cells for row in rows] == [{"a": ' "x" ', "b": "two\nlines"}, {"a": "<br />", "b": 'say "no"'}]
    assert [row.where for row in rows] == [f"table.tsv: line {line}" for line in (3, 4)]


def test_control_characters_end_no_line() -> None:
    # U+0085 and U+2028 break lines for `str.splitlines`; the published reviews hold the first.
    (row,) = read("a\tb\nwell\x85 then\tso\u2028on\n".encode())
    assert row.cells == {"a": "well\x85 then", "b": "so\u2028on"}


@pytest.mark.parametrize("content", [b"a\tb\r\n1\t2\r\n", b"\xef\xbb\xbfa\tb\n1\t2"])
def test_windows_files_are_read(content: bytes) -> None:
    assert [row.cells for row in read(content)] == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tc\n1\t2\n", r"table\.tsv: line 1: no column b \(found a, c\); add it"),
        (b"a\tb\n1\t2\n1\n", r"table\.tsv: line 3: found 1 cells, the header has 2"),
        (b"a\tb\n1\t2\t3\n", r"table\.tsv: line 2: found 3 cells"),
        (b"a\tb\n1\t2\n1\tcaf\xe9\n", r"table\.tsv: line 3: not UTF-8 text \(byte 0xe9\)"),
        (b'a\tb\n1\t"2\n', r"table\.tsv: line 2: .*check the double quotes"),
        (b'a\tb\n1\t"2"x\n', r"table\.tsv: line 2: .*check the double quotes"),
        (b"a\tb\ta\n1\t2\t3\n", r"table\.tsv: line 1: several columns are called a; rename all but one"),
        (b"a\tb\n", r"table\.tsv: holds no rows"),
        (b"", r"table\.tsv: holds no rows"),
    ],
)
def test_broken_tables_are_refused_with_their_line(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(content)


def test_long_cells_nameless_columns_and_empty_lines() -> None:
    rows = read_table(b",a\n\n0," + b"x" * 200_000 + b"\n\n", "t.csv", COMMA)
    assert rows == [TableRow("t.csv: line 3", {"Unnamed: 0": "0", "a": "x" * 200_000})]
