"""Files that are written completely or not at all, and readers of JSON and YAML whose errors name file and line."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from filelock import FileLock, Timeout

from dair_hf.errors import DataError

FilePath = str | os.PathLike[str]

SCRATCH = ".dair_hf"  # suffix of temporary folders
LOCK = "dair_hf.lock"  # in a folder that a process works in
# An escape in JSON: a surrogate pair, half of one, or another.
_ESCAPE = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<half>\\ud[89a-f][0-9a-f]{2})|\\.", re.I)


@contextlib.contextmanager
def atomic_path(target: FilePath) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `target` on success and removed on failure.

    Replaces a regular file at `target`, keeps its mode, and follows links. A pipe or a character device, such as
    `/dev/stdout`, receives the content at the end.

    Args:
        target: Path of the finished file. Missing parent folders are created.

    Yields:
        The path to write to.

    Raises:
        DataError: `target` is a folder, a block device or a socket, or cannot be written.

    Example:
        >>> with atomic_path("outputs/table.md") as path:  # doctest: +SKIP
        ...     path.write_text("| a |")
    """
    resolved = require_file(target)
    if _is_stream(target):
        with tempfile.TemporaryDirectory() as folder:
            content = Path(folder, "content")
            yield content
            with explain_write_errors(target):
                stream = _open_stream(target)
            with content.open("rb") as file, stream:
                shutil.copyfileobj(file, stream)
        return
    with scratch_folder(resolved, target) as scratch:
        yield scratch / resolved.name
        with explain_write_errors(target):
            if resolved.exists():
                shutil.copymode(resolved, scratch / resolved.name)
            os.replace(scratch / resolved.name, resolved)


def require_file(target: FilePath) -> Path:
    """Return the path of an output file with links resolved.

    Raises:
        DataError: `target` is a folder, a block device or a socket.
    """
    resolved = Path(os.path.realpath(target))
    if resolved.is_dir() or os.fspath(target).endswith(os.sep):
        raise DataError(f"{target}: is a folder; name a file")
    if os.path.exists(target) and not os.path.isfile(target) and not _is_stream(target):
        raise DataError(f"{target}: is not a regular file; name one")
    return resolved


def _is_stream(target: FilePath) -> bool:
    """Return whether `target` is a pipe, a character device or an open file descriptor, which cannot be replaced."""
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return False
    is_open = re.match(r"/dev/(stdout$|stderr$|fd/)|/proc/[^/]+/fd/", os.fspath(target)) is not None
    return is_open or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _open_stream(target: FilePath) -> BinaryIO:
    """Open a stream for writing, after flushing what this process has already printed to it."""
    target_stat = os.stat(target)
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
            is_same = os.path.samestat(os.fstat(descriptor), target_stat)
        except (OSError, ValueError):
            continue  # not backed by a file
        if is_same:
            stream.flush()
            return os.fdopen(os.dup(descriptor), "wb")
    return open(target, "ab")


def require_writable_folder(folder: Any, name: str) -> Path:
    """Return the path of a folder for output, which need not exist, before the work whose results it shall hold.

    Args:
        folder: The folder.
        name: Name of the argument, for messages.

    Raises:
        DataError: It is no path, something else is there, or it cannot be written.

    Example:
        >>> require_writable_folder("", "folder")
        Traceback (most recent call last):
        dair_hf.errors.DataError: folder='' names no folder; give one, such as 'pair_report'
    """
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise DataError(f"{name}={folder!r} names no folder; give one, such as 'pair_report'")
    with explain_write_errors(folder):
        existing = Path(os.path.realpath(folder))
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise DataError(f"{existing}: is no folder; name another one")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing))
    return Path(folder)


def require_output_file(
    target: FilePath,
    sources: Iterable[FilePath] = (),
    overwrite: bool = False,
    is_own: Callable[[Path], bool] | None = None,
    remedy: str = "name another file",
) -> None:
    """Refuse the output file of a command if writing it would replace something else.

    Args:
        target: Output file.
        sources: Files and folders that the command reads.
        overwrite: Allow an existing file to be replaced.
        is_own: Whether the command wrote an existing file, see `holds_json`: any other is never replaced. None: the
            command checks that itself, before it writes.
        remedy: How the user names another output, for the message.

    Raises:
        DataError: `target` is a folder, a block device or a socket, is one of the sources, or exists although
            `overwrite` is False or the command did not write it.
    """
    resolved = require_file(target)
    for source in sources:
        if os.path.realpath(source) == str(resolved) or (resolved.exists() and _is_same_file(source, resolved)):
            raise DataError(f"{target}: is also read ({source}); {remedy} to write")
    if not resolved.exists() or not resolved.stat().st_size or _is_stream(target):
        return
    if is_own is not None and not is_own(Path(target)):
        raise DataError(f"{target}: was not written by this command; {remedy}, or move this one away")
    if not overwrite:
        raise DataError(f"{target}: already exists; {remedy}, or give --overwrite to replace it")


def holds_json(check: Callable[[Any], bool]) -> Callable[[Path], bool]:
    """Return the function that says whether a file holds JSON which `check` accepts, for `require_output_file`."""

    def holds(path: Path) -> bool:
        try:
            return check(read_json(path))
        except DataError:
            return False

    return holds


def write_text(target: FilePath, text: str) -> Path:
    """Write `text` as UTF-8 to `target`, atomically, and return the path; lone surrogates are escaped."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(target)


def write_generated(target: FilePath, text: str, mark: str) -> Path:
    """Write a generated page; refuse to replace a file that does not contain `mark`.

    Raises:
        DataError: As `atomic_path`, or the existing file was not generated.
    """
    require_generated(target, mark)
    return write_text(target, text)


def require_generated(target: FilePath, mark: str) -> None:
    """Refuse to replace a file that does not contain `mark`."""
    if Path(target).is_file() and mark.encode() not in read_bytes(target):
        raise DataError(f"{target}: does not contain {mark!r}, so it was not generated; move it away")


def write_json(target: FilePath, value: Any) -> Path:
    """Write `value` as indented JSON to `target`, atomically, and return the path."""
    return write_text(target, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


@contextlib.contextmanager
def scratch_folder(resolved: Path, target: FilePath) -> Iterator[Path]:
    """Yield a temporary folder next to an output path, and remove it at the end.

    The folders of killed processes are removed, too.

    Args:
        resolved: Output path, with links resolved. Missing parent folders are created.
        target: The same path as the user gave it, for messages.
    """
    with explain_write_errors(target):
        resolved.parent.mkdir(parents=True, exist_ok=True)
        for leftover in resolved.parent.glob(f".{glob.escape(resolved.name)}.*{SCRATCH}"):
            with contextlib.suppress(OSError), FileLock(leftover / LOCK, timeout=0):  # else its process lives
                shutil.rmtree(leftover, ignore_errors=True)
        scratch, lock = _locked_scratch(resolved)
    try:
        (scratch / "new").mkdir()
        yield scratch / "new"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lock.release()


def _locked_scratch(resolved: Path) -> tuple[Path, FileLock]:
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{resolved.name}.", suffix=SCRATCH, dir=resolved.parent))
        lock = FileLock(scratch / LOCK)
        with contextlib.suppress(OSError):  # without locks, as on some network drives, leftovers stay
            lock.acquire()
        if scratch.exists():  # no other process took it for a leftover before it was locked
            return scratch, lock


def lock_file(path: Path, folder: FilePath) -> FileLock:
    """Lock a file, which is created, for this process. Links are not followed."""
    lock = FileLock(path, timeout=0, is_singleton=True)
    with explain_write_errors(folder):
        try:
            lock.acquire()
        except Timeout as error:
            raise DataError(f"{folder}: another process works there; wait until it ends, or name another") from error
    return lock


@contextlib.contextmanager
def explain_write_errors(target: FilePath) -> Iterator[None]:
    """Convert an `OSError` raised while creating or opening `target` into a `DataError` that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{target}: cannot write there ({error.strerror or error}); choose a folder you may write to"
        ) from error


def _is_same_file(first: FilePath, second: FilePath) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def read_bytes(path: FilePath) -> bytes:
    """Read a file.

    Raises:
        DataError: The file is missing, a folder, or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def read_json(path: FilePath, remedy: str = "fetch it again") -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        remedy: What to do if it is not JSON, for messages.

    Raises:
        DataError: The file cannot be read or is not JSON; the message contains file, line and column.
    """
    return parse_json(read_bytes(path), str(path), remedy)


def parse_json(content: bytes | str, label: str, remedy: str = "fetch it again", **options: Any) -> Any:
    """Parse a JSON document.

    Args:
        content: The document, in UTF-8.
        label: Name of its source, for messages.
        remedy: What to do if it is not JSON, for messages.
        **options: Arguments of `json.loads`.

    Raises:
        DataError: Not UTF-8 or not JSON; the message contains label, line and column.

    Example:
        >>> parse_json(b'{"a": 1}', "inline")
        {'a': 1}
    """
    try:
        return decode_json(content, **options)
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text (byte {error.start}); re-save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{label}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); "
            f"the file may be truncated, {remedy}"
        ) from error


def decode_json(content: bytes | str, **options: Any) -> Any:
    """Call `json.loads`, and raise `JSONDecodeError` for every kind of invalid JSON.

    Raises:
        json.JSONDecodeError: Invalid JSON, including values nested too deeply and integers with thousands of digits.
        UnicodeDecodeError: Not UTF-8.
    """
    try:
        return json.loads(content, **options)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise json.JSONDecodeError(message, "", 0) from error


def decode_json_texts(content: str, **options: Any) -> Any:
    r"""As `decode_json`, but refuse half of a surrogate pair, which JSON can spell and UTF-8 cannot.

    Raises:
        json.JSONDecodeError: Invalid JSON, or half of a surrogate pair.

    Example:
        >>> decode_json_texts(r'["\ud83d\ude00"]') == ["\U0001f600"]
        True
        >>> decode_json_texts(r'["\ud83d"]')
        Traceback (most recent call last):
        json.decoder.JSONDecodeError: \ud83d is half of a surrogate pair: line 1 column 3 (char 2)
    """
    value = decode_json(content, **options)
    for escape in _ESCAPE.finditer(content):
        if escape["half"]:
            raise json.JSONDecodeError(f"{escape['half']} is half of a surrogate pair", content, escape.start())
    return value


def decode_utf8(content: bytes, label: str) -> str:
    r"""Decode a text in UTF-8, with or without a byte order mark.

    Args:
        content: Content of a file.
        label: Name of its source, for messages.

    Raises:
        DataError: Not UTF-8; the message contains label, line and byte.

    Example:
        >>> decode_utf8(b"one\ntw\xf6", "a.txt")
        Traceback (most recent call last):
        dair_hf.errors.DataError: a.txt: line 2: not UTF-8 text (byte 0xf6); save the file as UTF-8
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        read = error.object  # without the byte order mark, from which `start` counts
        line = read.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{label}: line {line}: not UTF-8 text (byte 0x{read[error.start]:02x}); save the file as UTF-8"
        ) from error


class _YamlLoader(yaml.SafeLoader):
    """Loader of plain values, lists and mappings: no aliases, which may expand without limit, and no tags.

    It reads `1e-3` as a number, as in YAML 1.2, and refuses duplicate keys.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            raise yaml.composer.ComposerError(None, None, "aliases and tags are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("bool", "float", "int", "null")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def read_yaml(path: FilePath) -> Any:
    """Read a YAML file.

    Raises:
        DataError: The file cannot be read or is not plain YAML; the message contains file, line and column.
    """
    return parse_yaml(decode_utf8(read_bytes(path), str(path)), str(path))


def parse_yaml(text: str, label: str) -> Any:
    """Parse a YAML document of plain values, lists and mappings, without aliases and tags."""
    try:
        return yaml.load(text, _YamlLoader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DataError(f"{label}: {position}not valid YAML ({problem})") from error
