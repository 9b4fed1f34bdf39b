"""Reading of folders, zip and tar archives without unpacking, and verified downloads."""

from __future__ import annotations

import hashlib
import http.client
import lzma
import os
import re
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.files import atomic_path, parse_json, read_json, require_file, write_json

CHECKSUMS = "checksums.json"
TIMEOUT_SECONDS = 60
Archive = TypeVar("Archive", zipfile.ZipFile, tarfile.TarFile)
# Raised for broken archives; RuntimeError also for a password or a method of compression that Python does not know.
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

    A folder that holds one archive and nothing else, hidden files apart, is read as this archive.

    Members are read into memory; nothing is unpacked. A compressed tar archive is read fastest in the order of `names`,
    in which its members are stored: for an earlier one it is decompressed from the start again. An archive that
    contains a link, an absolute path or a path outside the archive is refused as a whole, because it is malicious or
    broken.

    Args:
        path: A folder, a `.zip` archive, a `.tar` archive (also compressed), or any other file.

    Raises:
        DataError: `path` does not exist, or is an unreadable or unsafe archive.

    Example:
        >>> Source("pyproject.toml").names  # doctest: +SKIP
        ['pyproject.toml']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.names: list[str]
        self._read: Callable[[str], bytes]
        inside = [item for item in self.path.glob("*") if not item.name.startswith(".")]
        if len(inside) == 1 and inside[0].is_file() and inside[0].name.endswith(ARCHIVES):
            self.path = inside[0]
        if self.path.is_dir():
            files = (item for item in sorted(self.path.rglob("*")) if item.is_file())
            self.names = [item.relative_to(self.path).as_posix() for item in files]
            self._read = lambda name: (self.path / name).read_bytes()
        elif not self.path.exists():
            raise DataError(f"{self.path}: no such file or folder; check the path")
        elif self.path.name.endswith(ARCHIVES):
            kind, opened = ("zip", self._open_zip) if self.path.name.endswith(".zip") else ("tar", self._open_tar)
            try:
                self.names, self._read = opened()
            except DAMAGED as error:
                reason = " ".join(str(error).split())
                raise DataError(f"{self.path}: not a readable {kind} archive ({reason}); fetch it again") from error
        else:
            self.names = [self.path.name]
            self._read = lambda name: self.path.read_bytes()

    def _open_zip(self) -> tuple[list[str], Callable[[str], bytes]]:
        archive = _Opened(partial(zipfile.ZipFile, self.path))
        members = {}
        for member in archive().infolist():
            name = self._relative_name(member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise DataError(f"{self.path}: member {member.filename!r} is a link; do not trust this archive")
            if not member.is_dir():
                members[name] = member
        return list(members), lambda name: archive().read(members[name])

    def _open_tar(self) -> tuple[list[str], Callable[[str], bytes]]:
        archive = _Opened(partial(tarfile.open, self.path))
        members = {}
        for member in archive().getmembers():
            name = self._relative_name(member.name)
            if not (member.isfile() or member.isdir()):
                raise DataError(f"{self.path}: member {member.name!r} is a link or a device; do not trust this archive")
            if member.isfile():
                members[name] = member
        stream = archive().fileobj
        assert stream is not None
        while stream.read(1 << 20):
            pass  # to the end, where gzip compares the checksum

        def read(name: str) -> bytes:
            content = archive().extractfile(members[name])
            assert content is not None  # `members` contains regular files only
            return content.read()

        return list(members), read

    def _relative_name(self, name: str) -> str:
        """Return a member's name without "./"; refuse one outside the archive."""
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]):
            raise DataError(f"{self.path}: member {name!r} leads outside the archive; do not trust this archive")
        return str(PurePosixPath(name))

    def label(self, name: str) -> str:
        """Return a member's name for messages: `archive.zip: member`, or the path of a file."""
        if self.path.is_dir():
            return str(self.path / name)
        return str(self.path) if self.names == [self.path.name] else f"{self.path}: {name}"

    def read(self, name: str) -> bytes:
        """Return the content of a member.

        Raises:
            DataError: The member does not exist or is damaged.
        """
        if name not in self.names:
            raise DataError(f"{self.path}: holds no {name!r} (found {', '.join(self.names[:5]) or 'nothing'})")
        try:
            return self._read(name)
        except DAMAGED as error:
            raise DataError(f"{self.label(name)}: cannot be read ({error}); fetch it again") from error

    def json(self, name: str) -> Any:
        """Parse a member as JSON.

        Raises:
            DataError: The member does not exist, is damaged or not JSON; the message contains line and column.
        """
        return parse_json(self.read(name), self.label(name))


@dataclass(frozen=True)
class RemoteFile:
    """File to download.

    Attributes:
        name: Relative name under which it is stored.
        url: Its URL, at a pinned revision.
        sha256: Expected checksum, if known.
        size: Expected size in bytes, if known.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None


def with_checksums(files: Iterable[RemoteFile], checksums: Any) -> list[RemoteFile]:
    """Return the files with checksums provided by the user; unchanged for None."""
    if checksums is None:
        return list(files)
    if not isinstance(checksums, dict):
        raise DataError(f"checksums: found {type(checksums).__name__}, expected an object of file name -> SHA-256")
    verified = []
    for remote in files:
        sha256 = checksums.get(remote.name)
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-fA-F]{64}", sha256):
            raise DataError(f"checksums: no SHA-256 of {remote.name!r} (found {sha256!r}); add it or drop the option")
        if remote.sha256 is not None and sha256.lower() != remote.sha256:
            raise DataError(f"checksums: {remote.name!r} has {sha256}, but its known SHA-256 is {remote.sha256}")
        verified.append(replace(remote, sha256=sha256.lower()))
    return verified


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download(files: Sequence[RemoteFile], folder: str | os.PathLike[str], progress: bool = True) -> dict[str, str]:
    """Download files to a folder, each completely and verified or not at all; keep the files that already exist.

    A file without a known checksum is trusted on first use: its checksum is recorded in `checksums.json` in the
    folder, and verified on later calls.

    Args:
        files: Files to download.
        folder: Target folder, created if missing.
        progress: Show a progress bar for each file.

    Returns:
        Name -> SHA-256 of the files that were trusted on first use in this call.

    Raises:
        DataError: A download failed or was incomplete, a checksum differs, or the folder cannot be written. No
            incomplete file is left.
    """
    folder = Path(folder)
    checksum_file = folder / CHECKSUMS
    recorded: dict[str, str] = read_json(checksum_file) if checksum_file.exists() else {}
    if not isinstance(recorded, dict) or not all(isinstance(value, str) for value in recorded.values()):
        raise DataError(f"{checksum_file}: not an object of file name -> SHA-256; download into another folder")
    trusted: dict[str, str] = {}
    for remote in files:
        target = folder / remote.name
        expected = remote.sha256 or recorded.get(remote.name)
        require_file(target)
        if target.exists():
            sha256 = _verified_sha256(target, expected, str(target), "delete it and try again")
        else:
            with atomic_path(target) as path:
                _fetch(remote, path, progress)
                sha256 = _verified_sha256(path, expected, remote.url, "the source changed or was tampered with")
        if expected is None:
            trusted[remote.name] = sha256
        if recorded.get(remote.name) != sha256:
            recorded[remote.name] = sha256
            write_json(checksum_file, recorded)
    return trusted


def _fetch(remote: RemoteFile, path: Path, progress: bool) -> None:
    try:
        with urllib.request.urlopen(remote.url, timeout=TIMEOUT_SECONDS) as response, path.open("wb") as file:
            length = response.headers.get("Content-Length")
            size = remote.size if remote.size is not None else int(length) if length else None
            bar = tqdm.wrapattr(response, "read", total=size, desc=remote.name, disable=not progress)
            with bar as stream:
                shutil.copyfileobj(stream, file, 1 << 20)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise DataError(
            f"{remote.url}: download failed ({error}); check the network, or fetch the file by hand and pass its path"
        ) from error
    received = path.stat().st_size
    if size is not None and received != size:
        raise DataError(f"{remote.url}: received {received} of {size} bytes; try again")


def _verified_sha256(path: Path, expected: str | None, label: str, remedy: str) -> str:
    sha256 = sha256_of(path)
    if expected is not None and sha256 != expected.lower():
        raise DataError(f"{label}: checksum mismatch: SHA-256 is {sha256}, expected {expected}; {remedy}")
    return sha256
