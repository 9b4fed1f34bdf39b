"""Tables: quoting, lines of rows, and broken files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.text.tsv import TableRow, read_tsv


def read(tmp_path: Path, content: bytes, columns: tuple[str, ...] = ("a", "b")) -> list[TableRow]:
    (tmp_path / "table.tsv").write_bytes(content)
    return read_tsv(Source(tmp_path), "table.tsv", columns)


def test_cells_are_kept_and_lines_are_counted(tmp_path: Path) -> None:
    rows = read(tmp_path, b'c\tb\ta\n1\t"two\nlines"\t "x" \n2\t"say ""no"""\t<br />\n')
    assert [row.cells for row in rows] == [{"a": ' "x" ', "b": "two\nlines"}, {"a": "<br />", "b": 'say "no"'}]
    assert [row.where for row in rows] == [f"{tmp_path}/table.tsv, line {line}" for line in (3, 4)]


def test_control_characters_end_no_line(tmp_path: Path) -> None:
    # U+0085 and U+2028 break lines for `str.splitlines`; the published reviews hold the first.
    (row,) = read(tmp_path, "a\tb\nwell\x85 then\tso\u2028on\n".encode())
    assert row.cells == {"a": "well\x85 then", "b": "so\u2028on"}


@pytest.mark.parametrize("content", [b"a\tb\r\n1\t2\r\n", b"\xef\xbb\xbfa\tb\n1\t2"])
def test_windows_files_are_read(tmp_path: Path, content: bytes) -> None:
    assert [row.cells for row in read(tmp_path, content)] == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tc\n1\t2\n", r"table\.tsv, line 1: no column b \(found a, c\); add it"),
        (b"a\tb\n1\t2\n1\n", r"table\.tsv, line 3: found 1 cells, the header has 2"),
        (b"a\tb\n1\t2\t3\n", r"table\.tsv, line 2: found 3 cells"),
        (b"a\tb\n1\t2\n1\tcaf\xe9\n", r"table\.tsv: line 3: not UTF-8 text \(byte 0xe9\)"),
        (b'a\tb\n1\t"2\n', r"table\.tsv, line 2: .*check the double quotes"),
        (b'a\tb\n1\t"2"x\n', r"table\.tsv, line 2: .*check the double quotes"),
        (b"a\tb\n", r"table\.tsv: holds no rows"),
        (b"", r"table\.tsv: holds no rows"),
    ],
)
def test_broken_tables_are_refused_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)
