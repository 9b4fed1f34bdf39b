"""Reading of folders, zip and tar archives without unpacking, and checksums of files."""

from __future__ import annotations

import hashlib
import lzma
import os
import stat
import tarfile
import weakref
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from dair_hf.errors import DataError, explained
from dair_hf.io.files import parse_json

Archive = TypeVar("Archive", zipfile.ZipFile, tarfile.TarFile)
# Raised for broken archives; RuntimeError also for a password or an unknown compression method.
DAMAGED = (
    OSError, EOFError, RuntimeError, UnicodeDecodeError, zipfile.BadZipFile, tarfile.TarError, zlib.error,
    lzma.LZMAError,
)  # fmt: skip
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class _Opened(Generic[Archive]):
    """An archive that is opened once in each process and closed with this object.

    Reopened for each member, a compressed archive would be decompressed again. A forked process may not share the file
    position of its parent.
    """

    def __init__(self, open_archive: Callable[[], Archive]) -> None:
        self._open_archive: Callable[[], Archive] = open_archive
        self._process = -1

    def __call__(self) -> Archive:
        """Return the archive, opened in this process."""
        if self._process != os.getpid():
            self._archive: Archive = self._open_archive()
            self._process = os.getpid()
            weakref.finalize(self, self._archive.close)
        return self._archive


class Source:
    """Files of a folder or an archive, by their relative names; a single file is its own only member.

    A folder that holds nothing but one archive and hidden files is read as this archive. Members are read into
    memory, fastest in the order of `names`; nothing is unpacked. An archive with a link, a device, or a path that leads
    outside is refused as a whole: it is malicious or broken.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        inside = [item for item in self.path.glob("*") if not item.name.startswith(".")]
        if len(inside) == 1 and inside[0].is_file() and inside[0].name.endswith(ARCHIVES):
            self.path = inside[0]
        self.names: list[str]
        self._read: Callable[[str], bytes]
        if self.path.is_dir():
            files = (item for item in sorted(self.path.rglob("*")) if item.is_file())
            self.names = [item.relative_to(self.path).as_posix() for item in files]
            self._read = lambda name: (self.path / name).read_bytes()
        elif self.path.name.endswith(ARCHIVES):
            with explained(f"{self.path}: not a readable archive", *DAMAGED):
                self.names, self._read = self._open_zip() if self.path.suffix == ".zip" else self._open_tar()
        else:
            with explained(f"{self.path}: no such file or folder", OSError):
                self.path.stat()
            self.names = [self.path.name]
            self._read = lambda name: self.path.read_bytes()

    def _open_zip(self) -> tuple[list[str], Callable[[str], bytes]]:
        archive = _Opened(partial(zipfile.ZipFile, self.path))
        members = {
            self._safe_name(member.filename, not stat.S_ISLNK(member.external_attr >> 16)): member
            for member in archive().infolist()
        }
        names = [name for name, member in members.items() if not member.is_dir()]
        return names, lambda name: archive().read(members[name])

    def _open_tar(self) -> tuple[list[str], Callable[[str], bytes]]:
        archive = _Opened(partial(tarfile.open, self.path))
        members = {
            self._safe_name(member.name, member.isfile() or member.isdir()): member for member in archive().getmembers()
        }
        stream = archive().fileobj
        assert stream is not None
        while stream.read(1 << 20):
            pass  # to the end, where gzip compares the checksum

        def read(name: str) -> bytes:
            content = archive().extractfile(members[name])
            assert content is not None  # `names` contains regular files only
            return content.read()

        return [name for name, member in members.items() if member.isfile()], read

    def _safe_name(self, name: str, is_plain: bool) -> str:
        """Return a member's name without "./"; refuse links, devices and names outside the archive."""
        path = PurePosixPath(name.replace("\\", "/"))
        if not is_plain or path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]):
            raise DataError(f"{self.path}: member {name!r} leads outside the archive; do not trust this archive")
        return str(PurePosixPath(name))

    def label(self, name: str) -> str:
        """Return a member's name for messages: `archive.zip: member`, or the path of a file."""
        if self.path.is_dir():
            return str(self.path / name)
        return str(self.path) if self.names == [self.path.name] else f"{self.path}: {name}"

    def read(self, name: str) -> bytes:
        """Return the content of a member."""
        with explained(f"{self.label(name)}: cannot be read", *DAMAGED, KeyError):
            return self._read(name)

    def json(self, name: str) -> Any:
        """Parse a member as JSON."""
        return parse_json(self.read(name), self.label(name), distinct=True)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
