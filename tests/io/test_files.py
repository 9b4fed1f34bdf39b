"""Files are written completely or not at all; errors name the file and the reason."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from dair_hf.io.files import (
    atomic_path,
    decode_utf8,
    parse_yaml,
    read_json,
    require_output_file,
    write_json,
    write_text,
)
from tests.fixtures.paths import ROOT


def test_text_and_json_are_read_back_and_parents_created(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a" / "b.json", {"name": "Zoë", "values": [1, None]})
    assert read_json(path) == {"name": "Zoë", "values": [1, None]}
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert "Zoë" in path.read_text(encoding="utf-8")
    assert write_text(tmp_path / "t.md", "|").read_text() == "|"
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["b.json"]


def test_failure_leaves_only_the_old_file(tmp_path: Path) -> None:
    target = write_text(tmp_path / "table.md", "old")
    with pytest.raises(RuntimeError, match="halfway"), atomic_path(target) as scratch:
        scratch.write_text("new, not finish")
        raise RuntimeError("halfway")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.md"]


def test_file_never_replaces_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    for entry in ("", "letter.txt"):
        if entry:
            (folder / entry).write_text("mine")
        for target in (folder, tmp_path / "link"):
            with pytest.raises(DataError, match=f"{target.name}: is a folder; name a file"):
                write_text(target, "x")
            (tmp_path / "link").symlink_to("precious") if not entry and target == folder else None
    assert (folder / "letter.txt").read_text() == "mine"
    # The folder is created while the file is being written.
    with pytest.raises(DataError, match="late: cannot write there"), atomic_path(tmp_path / "late") as path:
        path.write_text("x")
        (tmp_path / "late").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for target in (tmp_path / "socket", "/dev/null"):
            with pytest.raises(DataError, match=f"{target}: is not a regular file"):
                write_text(target, "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["late", "link", "precious", "socket"]


def test_unwritable_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/table.md: cannot write there"):
        write_text(tmp_path / "file" / "table.md", "|")
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(DataError, match=f"^{path}: "):
            read_json(path)


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    for text in ("new", "newer"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "folder" / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_output_files_of_commands(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "empty").write_text("")
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "hard").hardlink_to(tmp_path / "there")
    for name in ("absent", "empty"):
        require_output_file(tmp_path / name, [tmp_path / "there", "elsewhere"])
    require_output_file(tmp_path / "there", ["elsewhere", tmp_path], overwrite=True)
    with pytest.raises(DataError, match="there: already exists; name another file, or give --overwrite"):
        require_output_file(tmp_path / "there")
    with pytest.raises(DataError, match="there: was not written by this command; name another file, or move this one"):
        require_output_file(tmp_path / "there", overwrite=True, is_own=lambda path: bool(read_json(path)))
    (tmp_path / "own").write_text('{"own": true}')
    require_output_file(tmp_path / "own", overwrite=True, is_own=lambda path: read_json(path)["own"])
    for target, source in (("there", "there"), ("there", "link"), ("link", "there"), ("hard", "there")):
        with pytest.raises(DataError, match=f"{target}: is also read .*{source}.; name another file"):
            require_output_file(tmp_path / target, [tmp_path / source], overwrite=True)


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    for mode in (0o600, 0o755):
        write_text(tmp_path / "a", "old").chmod(mode)
        assert stat.S_IMODE(write_text(tmp_path / "a", "new").stat().st_mode) == mode


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x", "a: !!int 3", "!!set {a: }", "a: !local 3", "a: !!timestamp x", "!!bool x", "a: !!binary 3",
        "[a", "a: 1\na: 2", "[" * 1000, "a: 0x_",
    ],
)  # fmt: skip
def test_only_plain_yaml_is_read(text: str) -> None:
    with pytest.raises(DataError, match="^settings: not valid YAML: "):
        parse_yaml(text, "settings")


def test_plain_yaml() -> None:
    text = "\ufeffa: [1, 1e-3, true, ~, x, '2']\nb: {c: 2020-02-31, <<: 1}"
    assert parse_yaml(text, "settings") == {"a": [1, 0.001, True, None, "x", "2"], "b": {"c": "2020-02-31", "<<": 1}}


def test_yaml_is_read_in_one_place() -> None:
    for folder in ("dair_hf", "recipes", "reproduction", "data_scripts", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            reads = re.findall(r"yaml\.(?:safe_|full_|unsafe_)?load\w*\(", path.read_text())
            assert len(reads) == (path == ROOT / "dair_hf" / "io" / "files.py"), path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": [1, 2', "line 2"),
        (b"", "line 1 column 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "Exceeds the limit"),
        (b'"caf\xe9"', "position 4"),
    ],
)
def test_invalid_json_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(DataError, match=f"state.json: not valid JSON: .*{message}"):
        read_json(tmp_path / "state.json")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_text_that_is_not_utf8_is_named_with_its_line(mark: bytes) -> None:
    assert decode_utf8(mark + "one\ntwö".encode(), "a.txt") == "one\ntwö"
    for content, line in ((b"one\ntw\xf6", 2), (b"1\n2\n\xff", 3)):
        with pytest.raises(DataError, match=f"^a.txt: line {line}: "):
            decode_utf8(mark + content, "a.txt")
