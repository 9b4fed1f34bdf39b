"""Records of all kinds of files: texts stay texts, broken files and rows are named."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pandas as pd
import pytest

from dair_hf.errors import DataError
from dair_hf.io.records import (
    COMMA,
    PREDICTION_KEYS,
    TAB,
    _TableRow,
    load_records,
    paused_gc,
    read_predictions,
    read_table,
)


def read(content: bytes, columns: tuple[str, ...] = ("a", "b")) -> list[_TableRow]:
    return read_table(content, "table.tsv", TAB, columns)


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_texts_that_look_like_numbers_and_dates_stay_texts(tmp_path: Path, kind: str) -> None:
    rows = [{"code": "007", "day": "2024-05-02", "text": "NA"}, {"code": "1e3", "day": "", "text": "é\u2028 \x85"}]
    path, frame = tmp_path / f"rows.{kind}", pd.DataFrame(rows)
    if kind == "jsonl":
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    elif kind == "json":
        path.write_text("\ufeff" + json.dumps(rows), encoding="utf-8")
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep=TAB if kind == "tsv" else COMMA, index=False)
    assert load_records(path) == rows


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a"', "line 2"),
        ("a.jsonl", b'{"a": 1}\n[1]', "line 2"),
        ("a.jsonl", b'{"a": 1, "a": 2}', "'a' occurs several times"),
        ("a.jsonl", b'{"a": "\\ud83d\\ude00 \\ud83d"}', "surrogate"),
        ("a.jsonl", b'{"a": "\xe9"}', "line 1"),
        ("a.json", b'[{"a": 1},\n', "line 2"),
        ("a.parquet", b"no", "cannot be read"),
        ("a.tsv", b"a\tb\n1\t2\n1\n", "line 3"),
        ("a.tsv", b"a\tb\n1\t2\t3\n", "line 2"),
        ("a.csv", b"a,b\n1,caf\xe9\n", "line 2"),
        ("a.csv", b'a,b\n1,"2\n', "unexpected end"),
        ("a.csv", b"a,b,a\n1,2,3\n", "each once"),
        ("a.csv", b'a,b\n1,"2"x\n', "expected after"),
        ("none.csv", None, "none.csv"),
    ],
)
def test_broken_files_are_refused_with_their_place(tmp_path: Path, name: str, content: bytes, place: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}.*{place}"):
        load_records(tmp_path / name)


def test_faulty_lines_are_counted_if_asked(tmp_path: Path) -> None:
    path, faulty = tmp_path / "a.jsonl", []
    path.write_text('{"a": 1}\n\n[1]\n{"a"\n{"a": 2}\n')
    assert load_records(path, faulty) == [{"a": 1}, {"a": 2}] and faulty == [3, 4]


def test_cells_are_kept() -> None:
    rows = read(b'c\tb\ta\n1\t"two\nlines"\t "x" \n2\t"say ""no"""\t<br />\n')
    assert [row.cells for row in rows] == [{"a": ' "x" ', "b": "two\nlines"}, {"a": "<br />", "b": 'say "no"'}]
    assert [row.where for row in rows] == ["table.tsv: line 3", "table.tsv: line 4"]
    # U+0085 and U+2028 break lines for `str.splitlines`; the published reviews hold the first.
    (row,) = read("a\tb\nwell\x85 then\tso\u2028on\n".encode())
    assert row.cells == {"a": "well\x85 then", "b": "so\u2028on"}


def test_windows_files_missing_columns_long_cells_and_empty_lines() -> None:
    for content in (b"a\tb\r\n1\t2\r\n", b"\xef\xbb\xbfa\tb\n1\t2"):
        assert [row.cells for row in read(content)] == [{"a": "1", "b": "2"}]
    with pytest.raises(DataError, match=r"table\.tsv: .*\['b'\]"):
        read(b"a\tc\n1\t2\n")
    assert read(b"a\tb\n") == [] == read(b"", ())
    rows = read_table(b",a\n\n0," + b"x" * 200_000 + b"\n\n", "t.csv", COMMA)
    assert rows == [_TableRow("t.csv: line 3", {"Unnamed: 0": "0", "a": "x" * 200_000})]


@pytest.mark.parametrize("change", [{"correct": 0.3}, {"correct": "false"}, {"variant": ...}])
def test_only_predictions_are_read_as_such(tmp_path: Path, change: dict[str, object]) -> None:
    view = {**dict.fromkeys(PREDICTION_KEYS, "x"), "correct": True}
    (tmp_path / "p.jsonl").write_text(json.dumps(view))
    assert list(read_predictions(tmp_path / "p.jsonl")) == [view]
    changed = {name: value for name, value in {**view, **change}.items() if value is not ...}
    (tmp_path / "p.jsonl").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="row 1"):
        list(read_predictions(tmp_path / "p.jsonl"))


def test_the_garbage_collector_is_restored_after_a_pause() -> None:
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), paused_gc(), paused_gc():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
