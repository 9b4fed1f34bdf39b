"""Unsafe archives and broken files."""

from __future__ import annotations

import io
import os
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.io.archives import Source


def make_zip(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def make_tar(path: Path, name: str, link: str | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        if link is not None:
            member.type, member.linkname = tarfile.SYMTYPE, link
        member.size = 0 if link is not None else 2
        archive.addfile(member, io.BytesIO(b"{}"))
    return path


@pytest.mark.parametrize("layout", ["folder", "zip", "tar", "file"])
def test_all_layouts_give_the_same_content(tmp_path: Path, layout: str) -> None:
    if layout == "folder":
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "x.json").write_text("{}")
        source, name = Source(tmp_path), "sub/x.json"
    elif layout == "zip":
        source, name = Source(make_zip(tmp_path / "a.zip", {"sub/x.json": "{}"})), "sub/x.json"
    elif layout == "tar":
        source, name = Source(make_tar(tmp_path / "a.tar.gz", "sub/x.json")), "sub/x.json"
    else:
        (tmp_path / "x.json").write_text("{}")
        source, name = Source(tmp_path / "x.json"), "x.json"
    assert source.names == [name]
    assert source.json(name) == {}


def test_each_process_has_its_own_position_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process that shared the handle of its parent would move the position from which the parent reads."""
    source = Source(make_zip(tmp_path / "a.zip", {"x.json": "{}"}))
    handles: list[zipfile.ZipFile] = []
    read = zipfile.ZipFile.read

    def noted(archive: zipfile.ZipFile, *arguments: Any) -> bytes:
        handles.append(archive)
        return read(archive, *arguments)

    monkeypatch.setattr(zipfile.ZipFile, "read", noted)
    assert [source.json("x.json"), source.json("x.json")] == [{}, {}]
    monkeypatch.setattr(os, "getpid", lambda: -2)
    assert source.json("x.json") == {}
    first, second, in_child = handles
    assert first is second
    assert in_child is not first


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
def test_members_below_the_current_folder_are_named_without_it(tmp_path: Path, name: str) -> None:
    """As `tar -C folder -cf a.tar .` writes them: ".", "./sub", "./sub/x.json"."""
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "x.json").write_text("{}")
    if name.endswith(".zip"):
        make_zip(tmp_path / name, {"./": "", "./sub/x.json": "{}"})
    else:
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith(".gz") else "w") as archive:
            archive.add(tmp_path / "folder", ".")
    source = Source(tmp_path / name)
    assert source.names == ["sub/x.json"]
    assert source.json("sub/x.json") == {}
    assert source.label("sub/x.json") == f"{tmp_path / name}: sub/x.json"


def test_a_folder_of_one_archive_is_this_archive(tmp_path: Path) -> None:
    make_zip(tmp_path / "a.zip", {"x.json": "{}"})
    (tmp_path / ".gitignore").touch()
    assert (Source(tmp_path).names, Source(tmp_path).path) == (["x.json"], tmp_path / "a.zip")
    make_zip(tmp_path / "b.zip", {"y.json": "{}"})
    assert Source(tmp_path).names == [".gitignore", "a.zip", "b.zip"]


@pytest.mark.parametrize("name", ["../x.json", "/etc/x.json", "a/../../x.json", "..\\x.json", "C:\\x.json"])
def test_members_outside_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    for path in (make_zip(tmp_path / "a.zip", {"fine.json": "{}", name: "{}"}), make_tar(tmp_path / "a.tar.gz", name)):
        with pytest.raises(DataError, match="leads outside the archive"):
            Source(path)


def test_links_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        member = zipfile.ZipInfo("x.json")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    for path in (tmp_path / "a.zip", make_tar(tmp_path / "a.tar.gz", "x.json", link="/etc/passwd")):
        with pytest.raises(DataError, match=rf"{path.name}: member 'x\.json'"):
            Source(path)


def test_broken_archives_and_members_are_named(tmp_path: Path) -> None:
    for name in ("a.zip", "a.tar.gz"):
        (tmp_path / name).write_bytes(b"not an archive at all")
        with pytest.raises(DataError, match=f"{name}: not a readable archive"):
            Source(tmp_path / name)
    with pytest.raises(DataError, match="no such file or folder"):
        Source(tmp_path / "absent")
    path = make_zip(tmp_path / "b.zip", {"x.json": '{"value": 12345}', "z.json": '{"a": 1,\n "b": [1, 2'})
    path.write_bytes(path.read_bytes().replace(b"12345", b"54321"))
    for name in ("x.json", "y.json"):  # damaged, missing
        with pytest.raises(DataError, match=rf"b\.zip: {name}: cannot be read"):
            Source(path).read(name)
    with pytest.raises(DataError, match=r"b\.zip: z\.json: not valid JSON: .*line 2"):
        Source(path).json("z.json")


def damaged(path: Path, share: float) -> Path:
    """Invert forty bytes of a file, at a share of its length."""
    content = bytearray(path.read_bytes())
    start = int(len(content) * share)
    content[start : start + 40] = bytes(255 - byte for byte in content[start : start + 40])
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_compressed_archive_is_refused(tmp_path: Path, kind: str, share: float) -> None:
    content = random.Random(0).randbytes(20000)  # which gzip stores as it is, so that only the checksum tells
    with tarfile.open(tmp_path / f"a.tar.{kind}", f"w:{kind}") as archive:
        for name in ("x.bin", "y.bin"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert Source(tmp_path / f"a.tar.{kind}").read("y.bin") == content
    with pytest.raises(DataError, match=r"a\.tar\.\w+: not a readable archive") as refused:
        Source(damaged(tmp_path / f"a.tar.{kind}", share))
    assert "\n" not in str(refused.value)


def test_unusual_zip_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.bin", random.Random(0).randbytes(20000))
    with pytest.raises(DataError, match=r"lzma\.zip: x\.bin: cannot be read"):
        Source(damaged(tmp_path / "lzma.zip", 0.5)).read("x.bin")
    path = make_zip(tmp_path / "a.zip", {"\u00fc.json": "{}"})
    content = path.read_bytes()
    path.write_bytes(content.replace("\u00fc".encode(), b"\xff\xfe"))
    with pytest.raises(DataError, match=r"a\.zip: not a readable archive: 'utf-8' codec"):
        Source(path)
    # Byte 6 of an entry of the directory is the version that its reader must know.
    version = content.index(b"PK\x01\x02") + 6
    path.write_bytes(content[:version] + b"\x63" + content[version + 1 :])
    with pytest.raises(DataError, match=r"a\.zip: not a readable archive: zip file version 9\.9"):
        Source(path)
