"""Files that are whole or absent and never take the place of a folder; files that are read, or an error says where."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from dair_hf.errors import DataError

FilePath = str | os.PathLike[str]

SCRATCH = ".dair_hf"  # how the name of a temporary folder ends
# Some libraries hide the number of the error, torch's zip writer even its text.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("No space left on device", "Disk quota exceeded", "File too large", "inline_container.cc")


@contextlib.contextmanager
def atomic_path(target: FilePath) -> Iterator[Path]:
    """Yield a temporary path for the file `target`; it is renamed to `target` on success and removed on failure.

    A regular file at `target` is replaced, and a link is followed. A pipe or a character device, such as `/dev/stdout`,
    is written to in the end. A folder or a block device is refused.

    Args:
        target: Where the finished file shall stand. Missing parent folders are created.

    Yields:
        The path to write to.

    Raises:
        DataError: `target` is a folder, a block device or a socket, cannot be written, or the disk is full.

    Example:
        >>> with atomic_path("outputs/table.md") as path:  # doctest: +SKIP
        ...     path.write_text("| a |")
    """
    place = require_file(target)
    if _is_stream(target):
        with tempfile.TemporaryDirectory() as folder:
            content = Path(folder, "content")
            with full_disk_named(folder):
                yield content
            with writing(target):
                stream = _opened_stream(target)
            with content.open("rb") as file, stream:
                shutil.copyfileobj(file, stream)
        return
    with scratch_beside(place, target) as scratch:
        yield scratch / place.name
        with writing(target):
            os.replace(scratch / place.name, place)


def require_file(target: FilePath) -> Path:
    """Return the place of a file to write, links followed.

    Raises:
        DataError: A folder, a block device or a socket stands there.
    """
    place = Path(os.path.realpath(target))
    if place.is_dir() or os.fspath(target).endswith(os.sep):
        raise DataError(f"{target}: is a folder; name a file")
    if os.path.exists(target) and not os.path.isfile(target) and not _is_stream(target):
        raise DataError(f"{target}: is no regular file; name one")
    return place


def _is_stream(target: FilePath) -> bool:
    """Tell whether `target` is written to and never replaced: a pipe, a character device, an open file of a process."""
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return False
    is_open = re.match(r"/dev/(stdout$|stderr$|fd/)|/proc/[^/]+/fd/", os.fspath(target)) is not None
    return is_open or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _opened_stream(target: FilePath) -> BinaryIO:
    """Open a stream to write to it, behind what this process has printed there."""
    there = os.stat(target)
    for stream in (sys.stdout, sys.stderr):
        try:
            number = stream.fileno()
            is_same = os.path.samestat(os.fstat(number), there)
        except (OSError, ValueError):
            continue  # no file behind it
        if is_same:
            stream.flush()
            return os.fdopen(os.dup(number), "wb")
    return open(target, "ab")


def require_output_file(target: FilePath, sources: Iterable[FilePath] = (), overwrite: bool = False) -> None:
    """Refuse the output file of a command where it would take the place of something else.

    Args:
        target: The file.
        sources: Files and folders that the command reads.
        overwrite: Whether the user allows that a file which is already there is replaced.

    Raises:
        DataError: A folder, a block device or a socket stands there, the file is one of the sources, or there is a file
            and `overwrite` is not set.
    """
    place = require_file(target)
    for source in sources:
        if os.path.realpath(source) == str(place) or (place.exists() and _is_same(source, place)):
            raise DataError(f"{target}: is read as well ({source}); name another file to write")
    if not overwrite and place.exists() and place.stat().st_size and not _is_stream(target):
        raise DataError(f"{target}: is there already; name another file, or give --overwrite to replace it")


def write_text(target: FilePath, text: str) -> Path:
    """Write `text` as UTF-8 to `target`, atomically, and return the path; half a surrogate pair becomes its escape."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(target)


def write_generated(target: FilePath, text: str, mark: str) -> Path:
    """Write a page that is made anew each time; a file without `mark`, which says so in `text`, is refused.

    Raises:
        DataError: As `atomic_path`; or somebody else wrote the file.
    """
    if Path(target).is_file() and mark.encode() not in read_bytes(target):
        raise DataError(f"{target}: does not say {mark!r}, so somebody wrote it by hand; move it away")
    return write_text(target, text)


def write_json(target: FilePath, value: Any) -> Path:
    """Write `value` as indented JSON to `target`, atomically, and return the path."""
    return write_text(target, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


@contextlib.contextmanager
def scratch_beside(place: Path, target: FilePath) -> Iterator[Path]:
    """Yield a temporary folder beside `place`, which is removed in the end.

    Args:
        place: What shall be written, links followed. Missing parent folders are created.
        target: The same as the user named it.

    Raises:
        DataError: The folder cannot be made, or the disk is full.
    """
    with writing(target):
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=SCRATCH, dir=place.parent))
    try:
        with full_disk_named(target):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def writing(target: FilePath) -> Iterator[None]:
    """Turn an `OSError` of making or opening `target` into one line that names it.

    Raises:
        DataError: The place cannot be written, or its disk is full.
    """
    with full_disk_named(target):
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise
            raise DataError(
                f"{target}: cannot write there ({error.strerror or error}); choose a folder you may write to"
            ) from error


@contextlib.contextmanager
def full_disk_named(target: FilePath) -> Iterator[None]:
    """Turn the error of a full disk, in whatever form a library raises it, into one that names path and disk.

    Raises:
        DataError: The body failed because the disk of `target` is full, or a limit on the size of files is reached.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        # Looked at before anything is removed. A failed write names no file, unlike a failed opening.
        disk, free = disk_of(target)
        nameless = isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.filename is None)
        if not is_disk_full(error) and not (nameless and free < 2**16):
            raise
        raise DataError(
            f"{target}: cannot be written: the disk mounted at {disk} is full, or a limit on the size of files is "
            f"reached ({getattr(error, 'strerror', None) or error}; {free:,} bytes are free); free some space or write "
            "elsewhere, and run the same command again"
        ) from error


def is_disk_full(error: BaseException) -> bool:
    """Tell whether an error says that a disk is full, or that a limit on the size of files is reached."""
    return getattr(error, "errno", None) in _FULL or any(words in str(error) for words in _FULL_WORDS)


def disk_of(path: FilePath) -> tuple[str, int]:
    """Return where the file system of `path` is mounted, and its free bytes; `path` need not exist."""
    place = Path(os.path.realpath(path))
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    while not os.path.ismount(place):
        place = place.parent
    return str(place), free


def _is_same(one: FilePath, other: FilePath) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def read_bytes(path: FilePath) -> bytes:
    """Read a file.

    Raises:
        DataError: It is absent, a folder, or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def read_json(path: FilePath) -> Any:
    """Read one JSON file.

    Raises:
        DataError: The file cannot be read or is not JSON; the message holds file, line and column.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(content: bytes | str, label: str) -> Any:
    """Parse a JSON document.

    Args:
        content: The document, UTF-8.
        label: Where it comes from, for the message.

    Raises:
        DataError: Not UTF-8 or not JSON; the message holds label, line and column.

    Example:
        >>> parse_json(b'{"a": 1}', "inline")
        {'a': 1}
    """
    try:
        return decode_json(content)
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text (byte {error.start}); re-save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{label}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); "
            "the file may be truncated, fetch it again"
        ) from error


def decode_json(content: bytes | str, **options: Any) -> Any:
    """As `json.loads`, but whatever it refuses is a `JSONDecodeError`, unless it is no UTF-8.

    Raises:
        json.JSONDecodeError: Also where values are nested too deeply, or an integer has thousands of digits.
        UnicodeDecodeError: Not UTF-8.
    """
    try:
        return json.loads(content, **options)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise json.JSONDecodeError(message, "", 0) from error


class _YamlLoader(yaml.SafeLoader):
    """Reads `1e-3` as a number, as YAML 1.2 does (for YAML 1.1 it is text), and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


_YamlLoader.yaml_implicit_resolvers = {
    first: list(resolvers) for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def read_yaml(path: FilePath) -> Any:
    """Read one YAML file.

    Raises:
        DataError: The file cannot be read or is not YAML; the message holds file, line and column.
    """
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); re-save the file as UTF-8") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, label: str) -> Any:
    """Parse a YAML document.

    Args:
        text: The document.
        label: Where it comes from, for the message.

    Raises:
        DataError: Not YAML; the message holds label, line and column.

    Example:
        >>> parse_yaml("{max_steps: 5, learning_rate: 1e-3}", "inline")
        {'max_steps': 5, 'learning_rate': 0.001}
    """
    try:
        return yaml.load(text, _YamlLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DataError(f"{label}: {where}not valid YAML ({problem})") from error
    except RecursionError as error:
        raise DataError(f"{label}: nested too deeply; check what wrote it") from error
    except ValueError as error:
        # Such as the 31st of February.
        raise DataError(f"{label}: not valid YAML ({error})") from error
