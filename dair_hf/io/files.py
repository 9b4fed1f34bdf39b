"""Files and folders that are written whole or not at all, and readers of JSON and YAML whose errors name the file."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from dair_hf.errors import DataError, explained

FilePath = str | os.PathLike[str]

SCRATCH = ".dair_hf"  # suffix of temporary folders
LOCK = "dair_hf.lock"  # in a folder that a process works in
MANIFEST = "dair_hf_manifest.json"  # names of the files that `atomic_folder` wrote
# Names that recipes write, except inside the folders of their runs.
RECIPE_NAMES = (
    "comparison.*", "paired.*", "*_seed*.json", "audit_*.json", "data.json", "missing.json", "choice.json",
    "lambdas.md", "*.png", "runs", "search", "final", "output.log",
)  # fmt: skip

_claims: dict[str, tuple[FileLock, bool]] = {}  # folder -> its lock, and whether this process created it


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
    resolved = _require_file(target)
    with _scratch_folder(resolved, target) as scratch:
        yield scratch / resolved.name
        with _explain_write_errors(target):
            if resolved.exists():
                shutil.copymode(resolved, scratch / resolved.name)
            os.replace(scratch / resolved.name, resolved)


def _require_file(target: FilePath) -> Path:
    """Return the path of an output file with links resolved; refuse folders, devices, pipes and sockets."""
    resolved = Path(os.path.realpath(target))
    if (resolved.exists() and not resolved.is_file()) or os.fspath(target).endswith(os.sep):
        raise DataError(f"{target}: is {'a folder' if resolved.is_dir() else 'not a regular file'}; name a file")
    return resolved


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
        is_own: Whether the command wrote an existing file: any other is never replaced, nor one that cannot be read.
            None: the command checks that itself, before it writes.
        remedy: How the user names another output, for the message.
    """
    resolved, problem = _require_file(target), None
    for source in sources:
        is_same = os.path.exists(source) and resolved.exists() and os.path.samefile(source, resolved)
        if is_same or resolved == Path(os.path.realpath(source)):
            problem = f"is also read ({source}); {remedy} to write"
    if problem is None and resolved.exists() and resolved.stat().st_size:
        if is_own is not None and not _holds(is_own, Path(target)):
            problem = f"was not written by this command; {remedy}, or move this one away"
        elif not overwrite:
            problem = f"already exists; {remedy}, or give --overwrite to replace it"
    if problem is not None:
        raise DataError(f"{target}: {problem}")


def _holds(is_own: Callable[[Path], bool], path: Path) -> bool:
    try:
        return is_own(path)
    except DataError:
        return False


def write_text(target: FilePath, text: str) -> Path:
    """Write `text` as UTF-8 to `target`, atomically, and return the path; lone surrogates are escaped."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(target)


def write_json(target: FilePath, value: Any) -> Path:
    """Write `value` as indented JSON to `target`, atomically, and return the path."""
    return write_text(target, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False) + "\n")


@contextlib.contextmanager
def _scratch_folder(resolved: Path, target: FilePath) -> Iterator[Path]:
    """Yield a temporary folder next to an output path, and remove it at the end."""
    with _explain_write_errors(target):
        resolved.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=f".{resolved.name}.", suffix=SCRATCH, dir=resolved.parent)
    try:
        # In a folder of its own, since a temporary folder is for its owner alone.
        (new := Path(scratch, "new")).mkdir()
        yield new
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _explain_write_errors(target: FilePath) -> contextlib.AbstractContextManager[None]:
    """Convert an `OSError` raised while creating or opening `target` into a `DataError` that names it."""
    return explained(f"{target}: cannot write there", OSError)


@contextlib.contextmanager
def atomic_folder(target: FilePath, sources: Iterable[FilePath] = (), overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `target` on success and removed on failure.

    The names of its files are recorded in `dair_hf_manifest.json`. An existing folder is replaced only if `overwrite`
    is set, the same program wrote it, and it contains no other files.

    Args:
        target: Path of the finished folder.
        sources: Files and folders that are read to fill it, which it may not replace or lie in.
        overwrite: Allow a folder from an earlier call to be replaced.
    """
    sources = list(sources)
    resolved = require_output_folder(target, sources, overwrite)
    with _scratch_folder(resolved, target) as new:
        yield new
        write_json(new / MANIFEST, {"written_by": _program(), "files": sorted({*_contents(new), MANIFEST})})
        require_output_folder(target, sources, overwrite)  # again, in case another program wrote there meanwhile
        with _explain_write_errors(target):
            if not resolved.exists():
                os.rename(new, resolved)
                return
            # Visible, and outside the temporary folder: nothing is lost if the process is killed in between.
            old = resolved.with_name(f"{resolved.name}.old-{os.getpid()}")
            try:
                os.rename(resolved, old)
                os.rename(new, resolved)
            finally:
                if not resolved.exists():
                    os.rename(old, resolved)
                shutil.rmtree(old, ignore_errors=True)


def require_output_folder(target: FilePath, sources: Iterable[FilePath] = (), overwrite: bool = False) -> Path:
    """Return the path of a folder for `atomic_folder`; refuse it if writing it would replace something else."""
    resolved, problem = Path(os.path.realpath(target)), None
    contents = _contents(resolved)
    foreign = sorted(contents - _manifest(resolved))
    for source in sources:
        source_path = Path(os.path.realpath(source))
        if resolved in (source_path, *source_path.parents) or source_path in resolved.parents:
            problem = f"overlaps {source}, which is read; name another folder"
    if problem is None and resolved.exists():
        if resolved == Path.cwd() or not resolved.is_dir() or resolved.is_mount():
            problem = "is a file, a mount point, or the working folder; name another folder"
        elif foreign:
            problem = f"holds {_some(foreign)}, which this command did not write; name a new folder"
        elif contents and not overwrite:
            problem = "already exists; name a new folder, or give --overwrite (in Python overwrite=True)"
    if problem is not None:
        raise DataError(f"{target}: {problem}")
    return resolved


def mark_folder(folder: FilePath) -> Path:
    """Create a folder for recipes to work in, or mark an existing one that contains nothing a recipe would replace.

    Folders that were marked before, or that have no files with names that recipes write, are accepted. Returns the lock
    file, which is the mark.
    """
    resolved = Path(os.path.realpath(folder))
    lock = resolved / LOCK
    with _explain_write_errors(folder):
        resolved.mkdir(parents=True, exist_ok=True)
        if not lock.exists():
            names = [path.name for path in resolved.iterdir()]
            if foreign := sorted({name for pattern in RECIPE_NAMES for name in fnmatch.filter(names, pattern)}):
                raise DataError(f"{folder}: holds {_some(foreign)}, which a recipe would replace; name a new folder")
        os.close(os.open(lock, os.O_CREAT | os.O_NOFOLLOW, 0o666))
    return lock


def claim_folder(folder: FilePath) -> Path:
    """Mark a folder, and keep other processes out of it and its subfolders until this process ends."""
    resolved = Path(os.path.realpath(folder))
    if not {str(resolved), *map(str, resolved.parents)} & _claims.keys():
        is_new = not resolved.exists()
        lock = FileLock(mark_folder(folder), timeout=0, is_singleton=True)  # follows no links
        with explained(f"{folder}: another process works there", OSError):
            lock.acquire()
        _claims[str(resolved)] = lock, is_new
    return Path(folder)


def release_unused_folders() -> None:
    """Release the claimed folders to which nothing was written, and remove those that this process created."""
    for folder, (lock, is_new) in list(_claims.items()):
        with contextlib.suppress(OSError):
            if os.listdir(folder) == [LOCK]:
                os.unlink(os.path.join(folder, LOCK))
                lock.release()
                del _claims[folder]
                if is_new:
                    os.rmdir(folder)


def _contents(folder: Path) -> set[str]:
    """Return the relative names of all files, links and empty folders below a folder."""
    contents = set()
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        contents |= {os.path.relpath(os.path.join(parent, name), folder) for name in (*names, *links)}
        if not folders and not names and Path(parent) != folder:
            contents.add(os.path.relpath(parent, folder))
    return contents


def _manifest(folder: Path) -> set[str]:
    """Return the names of the files that this program wrote to a folder; empty if its manifest does not say so."""
    try:
        manifest = read_json(folder / MANIFEST)
        return set(manifest["files"]) if manifest["written_by"] == _program() else set()
    except (DataError, KeyError, TypeError):
        return set()


def _program() -> str:
    return Path(sys.argv[0]).name


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_bytes(path: FilePath) -> bytes:
    """Read a file."""
    with explained(f"{path}: cannot be read", OSError):
        return Path(path).read_bytes()


def read_json(path: FilePath) -> Any:
    """Read a JSON file; errors name the file and the line."""
    return parse_json(read_bytes(path), str(path))


def parse_json(content: bytes | str, label: str, **options: Any) -> Any:
    """Parse a JSON document in UTF-8 with the options of `decode_json`; `label` names its source in errors."""
    with explained(f"{label}: not valid JSON", ValueError):
        return decode_json(content, **options)


def decode_json(content: bytes | str, distinct: bool = False, **options: Any) -> Any:
    """Call `json.loads`, and raise `JSONDecodeError` for every kind of invalid JSON, also if nested too deeply.

    With `distinct`, it also raises if an object repeats a key, of which Python would keep the last value.
    """
    try:
        return json.loads(content, object_pairs_hook=_distinct if distinct else None, **options)
    except (ValueError, RecursionError) as error:
        failure: Exception = error
        if not isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            failure = json.JSONDecodeError(reason, "", 0)
        raise failure from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(value := dict(pairs)) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} occurs several times")
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
