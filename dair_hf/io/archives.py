"""Folders, single files, zip and tar archives read alike, without unpacking; downloads that are verified and whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.files import atomic_path, parse_json, read_json, require_file, write_json

CHECKSUMS = "checksums.json"
CHUNK = 1 << 20
TIMEOUT_SECONDS = 60
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class Source:
    """The files of a folder, an archive or one plain file, under their relative names.

    Nothing is unpacked: members are read into memory. An archive is refused as a whole if any member has an absolute
    path, one that leaves the archive, or is a link, because such an archive was made to do harm or is broken.

    Args:
        path: A folder, a `.zip`, a `.tar` (also compressed), or any other file, which is then its own only member.

    Raises:
        DataError: Nothing is there, the archive cannot be read, or a member escapes it.

    Example:
        >>> Source("pyproject.toml").names  # doctest: +SKIP
        ['pyproject.toml']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.names: list[str]
        self._read: Callable[[str], bytes]
        if self.path.is_dir():
            files = (item for item in sorted(self.path.rglob("*")) if item.is_file())
            self.names = [item.relative_to(self.path).as_posix() for item in files]
            self._read = lambda name: (self.path / name).read_bytes()
        elif not self.path.exists():
            raise DataError(f"{self.path}: no such file or folder; check the path")
        elif self.path.name.endswith(".zip"):
            self._open_zip()
        elif self.path.name.endswith(TAR_SUFFIXES):
            self._open_tar()
        else:
            self.names = [self.path.name]
            self._read = lambda name: self.path.read_bytes()

    def _open_zip(self) -> None:
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{self.path}: not a readable zip archive ({error}); fetch it again") from error
        for member in members:
            self._check_name(member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise DataError(f"{self.path}: member {member.filename!r} is a link; the archive is not to be trusted")
        self.names = [member.filename for member in members if not member.is_dir()]

        def read(name: str) -> bytes:
            with zipfile.ZipFile(self.path) as archive:
                return archive.read(name)

        self._read = read

    def _open_tar(self) -> None:
        try:
            with tarfile.open(self.path) as archive:
                members = archive.getmembers()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path}: not a readable tar archive ({error}); fetch it again") from error
        for member in members:
            self._check_name(member.name)
            if not (member.isfile() or member.isdir()):
                raise DataError(
                    f"{self.path}: member {member.name!r} is a link or a device; the archive is not to be trusted"
                )
        self.names = [member.name for member in members if member.isfile()]

        def read(name: str) -> bytes:
            with tarfile.open(self.path) as archive:
                content = archive.extractfile(name)
                if content is None:
                    raise KeyError(name)
                return content.read()

        self._read = read

    def _check_name(self, name: str) -> None:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0]:
            raise DataError(f"{self.path}: member {name!r} leads outside the archive; the archive is not to be trusted")

    def label(self, name: str) -> str:
        """The member as a message names it: `archive.zip: member` or the path of the file."""
        if self.path.is_dir():
            return str(self.path / name)
        return str(self.path) if self.names == [self.path.name] else f"{self.path}: {name}"

    def read(self, name: str) -> bytes:
        """The content of one member.

        Raises:
            DataError: There is no such member, or it is damaged.
        """
        if name not in self.names:
            raise DataError(f"{self.path}: holds no {name!r} (found {', '.join(self.names[:5]) or 'nothing'})")
        try:
            return self._read(name)
        except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error, RuntimeError) as error:
            raise DataError(f"{self.label(name)}: cannot be read ({error}); fetch it again") from error

    def json(self, name: str) -> Any:
        """One member as JSON.

        Raises:
            DataError: It is absent, damaged or not JSON; the message holds the line and column.
        """
        return parse_json(self.read(name), self.label(name))


@dataclass(frozen=True)
class RemoteFile:
    """A file to download.

    Attributes:
        name: Relative name under which it is stored.
        url: Where it is, at a pinned revision.
        sha256: Its checksum, if known beforehand.
        size: Its size in bytes, if known beforehand.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None


def with_checksums(files: Iterable[RemoteFile], known: Any) -> list[RemoteFile]:
    """The files with checksums that the user has from elsewhere; with None as they are.

    Args:
        files: What is to be fetched.
        known: Parsed JSON: name -> SHA-256.

    Raises:
        DataError: It is no such object, one of the files is not in it, or it contradicts a checksum that is known.
    """
    if known is None:
        return list(files)
    if not isinstance(known, dict):
        raise DataError(f"checksums: found {type(known).__name__}, expected an object of file name -> SHA-256")
    verified = []
    for remote in files:
        sha256 = known.get(remote.name)
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-fA-F]{64}", sha256):
            raise DataError(f"checksums: no SHA-256 of {remote.name!r} (found {sha256!r}); add it or drop the option")
        if remote.sha256 is not None and sha256.lower() != remote.sha256:
            raise DataError(f"checksums: {remote.name!r} has {sha256}, but {remote.sha256} is its known SHA-256")
        verified.append(replace(remote, sha256=sha256.lower()))
    return verified


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch(remote: RemoteFile, path: Path, progress: bool) -> str:
    digest, received = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(remote.url, timeout=TIMEOUT_SECONDS) as response, path.open("wb") as stream:
            promised = response.headers.get("Content-Length")
            expected = remote.size if remote.size is not None else int(promised) if promised else None
            with tqdm(total=expected, unit="B", unit_scale=True, desc=remote.name, disable=not progress) as bar:
                while chunk := response.read(CHUNK):
                    digest.update(chunk)
                    received += len(chunk)
                    stream.write(chunk)
                    bar.update(len(chunk))
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise DataError(
            f"{remote.url}: download failed ({error}); check the network, or fetch the file by hand and pass its path"
        ) from error
    if expected is not None and received != expected:
        raise DataError(f"{remote.url}: received {received} of {expected} bytes; try again")
    return digest.hexdigest()


def download(files: Sequence[RemoteFile], folder: str | os.PathLike[str], progress: bool = True) -> dict[str, str]:
    """Download files into a folder, each whole and verified or not at all; files that are there already are kept.

    A file whose checksum is not known beforehand is trusted on its first use: the checksum found is recorded in
    `checksums.json` in the folder, and a later call holds the file against it.

    Args:
        files: What to fetch.
        folder: Where to; created if missing.
        progress: Whether to show a progress bar per file.

    Returns:
        Name -> SHA-256, of those files alone that were trusted on first use in this call.

    Raises:
        DataError: A download failed or stopped early, a checksum differs, or the folder cannot be written. Nothing
            half-written stays.
    """
    folder = Path(folder)
    ledger = folder / CHECKSUMS
    recorded: dict[str, str] = read_json(ledger) if ledger.exists() else {}
    if not isinstance(recorded, dict) or not all(isinstance(value, str) for value in recorded.values()):
        raise DataError(f"{ledger}: no object of file name -> SHA-256; download into another folder")
    trusted: dict[str, str] = {}
    for remote in files:
        target = folder / remote.name
        known = remote.sha256 or recorded.get(remote.name)
        require_file(target)
        if target.exists():
            found = sha256_of(target)
            _verify(str(target), found, known, "delete it and try again")
        else:
            with atomic_path(target) as path:
                found = _fetch(remote, path, progress)
                _verify(remote.url, found, known, "the source changed or was tampered with")
        if known is None:
            trusted[remote.name] = found
        if recorded.get(remote.name) != found:
            recorded[remote.name] = found
            write_json(ledger, recorded)
    return trusted


def _verify(where: str, found: str, known: str | None, remedy: str) -> None:
    if known is not None and found != known.lower():
        raise DataError(f"{where}: checksum mismatch: SHA-256 is {found}, expected {known}; {remedy}")
