"""Files that are written completely or not at all, and readers of JSON and YAML whose errors name the file."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from dair_hf.errors import DataError, explained

FilePath = str | os.PathLike[str]

SCRATCH = ".dair_hf"  # suffix of temporary folders
LOCK = "dair_hf.lock"  # in a folder that a process works in
# An escape in JSON: a surrogate pair, half of one, or another.
_ESCAPE = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<half>\\ud[89a-f][0-9a-f]{2})|\\.", re.I)


@contextlib.contextmanager
def atomic_path(target: FilePath) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `target` on success and removed on failure.

    Replaces a regular file at `target`, keeps its mode, and follows links.

    Args:
        target: Path of the finished file. Missing parent folders are created.

    Yields:
        The path to write to.

    Raises:
        DataError: `target` is not a regular file, or cannot be written.

    Example:
        >>> with atomic_path("outputs/table.md") as path:  # doctest: +SKIP
        ...     path.write_text("| a |")
    """
    resolved = require_file(target)
    with scratch_folder(resolved, target) as scratch:
        yield scratch / resolved.name
        with explain_write_errors(target):
            if resolved.exists():
                shutil.copymode(resolved, scratch / resolved.name)
            os.replace(scratch / resolved.name, resolved)


def require_file(target: FilePath) -> Path:
    """Return the path of an output file with links resolved; refuse folders, devices, pipes and sockets."""
    resolved = Path(os.path.realpath(target))
    if (resolved.exists() and not resolved.is_file()) or os.fspath(target).endswith(os.sep):
        raise DataError(f"{target}: is {'a folder' if resolved.is_dir() else 'not a regular file'}; name a file")
    return resolved


def require_writable_folder(folder: FilePath, name: str) -> Path:
    """Return the path of an output folder, which need not exist; refuse one that cannot be written, before the work."""
    with explained(f"{name}={str(folder)!r}: cannot write there", OSError):
        existing = Path(os.path.realpath(folder))
        while not existing.exists():
            existing = existing.parent
        tempfile.TemporaryFile(dir=existing).close()
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
    """
    resolved, problem = require_file(target), None
    for source in sources:
        is_same = os.path.exists(source) and resolved.exists() and os.path.samefile(source, resolved)
        if is_same or resolved == Path(os.path.realpath(source)):
            problem = f"is also read ({source}); {remedy} to write"
    if problem is None and resolved.exists() and resolved.stat().st_size:
        if is_own is not None and not is_own(Path(target)):
            problem = f"was not written by this command; {remedy}, or move this one away"
        elif not overwrite:
            problem = f"already exists; {remedy}, or give --overwrite to replace it"
    if problem is not None:
        raise DataError(f"{target}: {problem}")


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
    """Write a generated page; refuse to replace a file that does not contain `mark`."""
    require_output_file(target, overwrite=True, is_own=lambda path: mark.encode() in read_bytes(path))
    return write_text(target, text)


def write_json(target: FilePath, value: Any) -> Path:
    """Write `value` as indented JSON to `target`, atomically, and return the path."""
    return write_text(target, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


@contextlib.contextmanager
def scratch_folder(resolved: Path, target: FilePath) -> Iterator[Path]:
    """Yield a temporary folder next to an output path, and remove it at the end, with those of killed processes."""
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


def explain_write_errors(target: FilePath) -> contextlib.AbstractContextManager[None]:
    """Convert an `OSError` raised while creating or opening `target` into a `DataError` that names it."""
    return explained(f"{target}: cannot write there", OSError)


def read_bytes(path: FilePath) -> bytes:
    """Read a file."""
    with explained(f"{path}: cannot be read", OSError):
        return Path(path).read_bytes()


def read_json(path: FilePath) -> Any:
    """Read a JSON file; errors name the file and the line."""
    return parse_json(read_bytes(path), str(path))


def parse_json(content: bytes | str, label: str, **options: Any) -> Any:
    """Parse a JSON document in UTF-8 with the options of `json.loads`; `label` names its source in errors."""
    with explained(f"{label}: not valid JSON", ValueError):
        return decode_json(content, **options)


def decode_json(content: bytes | str, **options: Any) -> Any:
    """Call `json.loads`, and raise `JSONDecodeError` for every kind of invalid JSON, also if nested too deeply."""
    try:
        return json.loads(content, **options)
    except (ValueError, RecursionError) as error:
        failure: Exception = error
        if not isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            failure = json.JSONDecodeError(reason, "", 0)
        raise failure from None


def decode_json_texts(content: str, **options: Any) -> Any:
    """As `decode_json`, but refuse half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    value = decode_json(content, **options)
    for escape in _ESCAPE.finditer(content):
        if escape["half"]:
            raise json.JSONDecodeError(f"{escape['half']} is half of a surrogate pair", content, escape.start())
    return value


def decode_utf8(content: bytes, label: str) -> str:
    """Decode a text in UTF-8, with or without a byte order mark; errors name the label and the line."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        read = error.object  # without the byte order mark, as `start` counts
        line = read.count(b"\n", 0, error.start) + 1
        raise DataError(f"{label}: line {line}: not UTF-8 text (byte 0x{read[error.start]:02x})") from error


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
    """Read a YAML file of plain values, lists and mappings; errors name file and line."""
    return parse_yaml(decode_utf8(read_bytes(path), str(path)), str(path))


def parse_yaml(text: str, label: str) -> Any:
    """Parse a YAML document of plain values, lists and mappings, without aliases and tags."""
    with explained(f"{label}: not valid YAML", yaml.YAMLError, RecursionError, ValueError):
        return yaml.load(text, _YamlLoader)  # a SafeLoader
