"""Files are whole or absent, and what cannot be read or written says where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.files import atomic_path, read_json, write_json, write_text


def test_text_and_json_come_back_and_parents_are_made(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a" / "b.json", {"name": "Zoë", "values": [1, None]})
    assert read_json(path) == {"name": "Zoë", "values": [1, None]}
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert "Zoë" in path.read_text(encoding="utf-8")
    assert write_text(tmp_path / "t.md", "|").read_text() == "|"
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["b.json"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = write_text(tmp_path / "table.md", "old")
    with pytest.raises(RuntimeError, match="halfway"), atomic_path(target) as scratch:
        scratch.write_text("new, not finish")
        raise RuntimeError("halfway")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.md"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with atomic_path(tmp_path / "data") as scratch:
            scratch.mkdir()
            (scratch / name).write_text(name)
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["second"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/table.md: cannot write there \(.*\); choose a folder you may write to"):
        write_text(tmp_path / "file" / "table.md", "|")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": [1, 2', r"state.json: line 2, column \d+: not valid JSON .*may be truncated, fetch"),
        (b"", "state.json: line 1, column 1: not valid JSON"),
        (b'"caf\xe9"', r"state.json: not UTF-8 text \(byte 4\); re-save the file as UTF-8"),
    ],
)
def test_json_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_json(tmp_path / "state.json")


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.json: no such file; check the path"):
        read_json(tmp_path / "nowhere.json")


def test_errors_are_caught_as_what_they_are() -> None:
    assert issubclass(DataError, ValueError)
    assert issubclass(NonFiniteLossError, FloatingPointError)
