"""Files that are either whole or absent: written beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it is renamed to `target`, on failure it is removed.

    Works for a file as well as for a folder: whatever the body creates at the yielded path is moved. An existing
    folder at `target` is replaced as a whole.

    Args:
        target: Where the finished file or folder shall stand. Missing parent folders are created.

    Yields:
        The path to write to.

    Raises:
        DataError: The folder of `target` cannot be written.

    Example:
        >>> with atomic_path("outputs/table.md") as path:  # doctest: +SKIP
        ...     path.write_text("| a |")
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise DataError(
            f"{target}: cannot write there ({error.strerror or error}); choose a folder you may write to"
        ) from error
    try:
        path = scratch / target.name
        yield path
        if target.is_dir() and not target.is_symlink():
            shutil.move(target, scratch / f"{target.name}.old")
        os.replace(path, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_text(target: str | os.PathLike[str], text: str) -> Path:
    """Write `text` as UTF-8 to `target`, atomically, and return the path."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8")
    return Path(target)


def write_json(target: str | os.PathLike[str], value: Any) -> Path:
    """Write `value` as indented JSON to `target`, atomically, and return the path."""
    return write_text(target, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read one JSON file.

    Raises:
        DataError: The file is absent or not JSON; the message holds file, line and column.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    return parse_json(content, str(path))


def parse_json(content: bytes, label: str) -> Any:
    """The value of a JSON document.

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
        return json.loads(content)
    except UnicodeDecodeError as error:
        raise DataError(f"{label}: not UTF-8 text (byte {error.start}); re-save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{label}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); "
            "the file may be truncated, fetch it again"
        ) from error
