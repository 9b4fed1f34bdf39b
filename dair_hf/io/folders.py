"""Folders that are either whole or absent, folders that one process works in, and what neither may ever replace."""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError
from dair_hf.io.files import FilePath, read_json, scratch_beside, write_json, writing

MANIFEST = "dair_hf_manifest.json"  # names of the files that `atomic_folder` wrote
SUPERSEDED = "superseded"  # finished runs whose settings have changed since
LOCK = "dair_hf.lock"  # held by the process that works in a folder; it stays, as a mark of who wrote the folder
# Names of what recipes write, without those of the files in their runs' folders.
WRITTEN = (
    "comparison.*", "*_seed*.json", "audit_*.json", "data.json", "missing.json", "choice.json", "lambdas.md", "*.png",
    "runs", "search", "final", SUPERSEDED, "output.log",
)  # fmt: skip

_claims: dict[str, tuple[int, bool]] = {}  # folder -> descriptor of its locked file, and whether the folder is new


@contextlib.contextmanager
def atomic_folder(target: FilePath, sources: Iterable[FilePath] = (), overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder; it is renamed to `target` on success and removed on failure.

    The names of its files are kept in `dair_hf_manifest.json`. Only a folder that holds these files and no others, and
    that the same program wrote, is ever replaced, and only with `overwrite`.

    Args:
        target: Where the finished folder shall stand: absent, empty, or to be overwritten.
        sources: Files and folders that are read to fill it.
        overwrite: Whether a folder that an earlier call wrote may be replaced.

    Yields:
        The folder to write to.

    Raises:
        DataError: `target` is no folder, holds anything that may not be replaced, is or holds a source, or cannot be
            written; or the disk is full.

    Example:
        >>> with atomic_folder("data/pairs") as folder:  # doctest: +SKIP
        ...     (folder / "train.jsonl").write_text("{}")
    """
    sources = list(sources)
    place = require_output_folder(target, sources, overwrite)
    with scratch_beside(place, target) as scratch:
        folder, old = scratch / "new", scratch / "old"
        folder.mkdir()
        yield folder
        write_json(folder / MANIFEST, {"written_by": _program(), "files": sorted({*_contents(folder), MANIFEST})})
        require_output_folder(target, sources, overwrite)  # somebody may have written there meanwhile
        with writing(target):
            try:
                if place.is_dir() and any(place.iterdir()):
                    os.rename(place, old)
                os.rename(folder, place)
            except BaseException:
                if old.exists() and not place.exists():
                    os.rename(old, place)
                raise


def require_output_folder(target: FilePath, sources: Iterable[FilePath] = (), overwrite: bool = False) -> Path:
    """Return the place of a folder to write, links followed; refuse one that would take the place of something else.

    Args:
        target: See `atomic_folder`.
        sources: See `atomic_folder`.
        overwrite: See `atomic_folder`.

    Raises:
        DataError: `target` is no folder, holds anything that may not be replaced, or is or holds a source.
    """
    place = Path(os.path.realpath(target))
    for source in sources:
        read = Path(os.path.realpath(source))
        if place == read or place in read.parents:
            raise DataError(f"{target}: would take the place of {source}, which is read; name another folder")
    if not place.exists():
        return place
    if not place.is_dir():
        raise DataError(f"{target}: is a file; name a folder")
    if place == Path.cwd():
        raise DataError(f"{target}: is the working folder; name a folder below it")
    found = _contents(place)
    if foreign := sorted(found - _manifest(place)):
        raise DataError(f"{target}: holds {_some(foreign)}, which this command did not write; name a new folder")
    if found and not overwrite:
        raise DataError(
            f"{target}: is there already; name a new folder, or give --overwrite to replace it (in Python "
            "overwrite=True)"
        )
    return place


def mark_folder(folder: FilePath) -> Path:
    """Make a folder for recipes to work in, or take one that holds nothing of others under a name that recipes write.

    Args:
        folder: Absent, marked by an earlier call, with records of runs, or without files named as a recipe's are.

    Returns:
        Its lock file, which is the mark.

    Raises:
        DataError: It is no folder, cannot be written, or holds a file of others that a recipe would replace.
    """
    folder = folder or os.curdir
    place = Path(os.path.realpath(folder))
    lock = place / LOCK
    if place.exists() and not place.is_dir():
        raise DataError(f"{folder}: is a file; name a folder")
    with writing(folder):
        place.mkdir(parents=True, exist_ok=True)
        foreign = [] if lock.exists() or _holds_runs(place) else sorted(_recipe_names(place))
        if foreign:
            raise DataError(f"{folder}: holds {_some(foreign)}, which a recipe would replace; name a new folder")
        lock.touch()
    return lock


def claim_folder(folder: FilePath) -> Path:
    """Mark a folder and keep other processes out of it, and of the folders below it, until this one ends.

    Args:
        folder: See `mark_folder`.

    Returns:
        The folder.

    Raises:
        DataError: As `mark_folder`; or another process works there.

    Example:
        >>> claim_folder("outputs/demo")  # doctest: +SKIP
        PosixPath('outputs/demo')
    """
    place = Path(os.path.realpath(folder))
    if not {str(place), *map(str, place.parents)} & _claims.keys():
        is_new = not place.exists()
        descriptor = os.open(mark_folder(folder), os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise DataError(
                f"{folder}: process {holder} works there; wait until it has ended, or name another folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        with writing(folder):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _claims[str(place)] = descriptor, is_new
    return Path(folder)


def superseded_name(record: Mapping[str, Any], stem: str) -> str:
    """Name of a record in `superseded/`: "erm_seed0_of_94bc7c93.json", with its settings and when it was finished."""
    content = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:8]
    return f"{stem}_of_{record.get('settings_fingerprint', 'unknown')}_{content}.json"


def set_aside(record: Path, folder: Path) -> Path:
    """Move the record of a finished run into `superseded/` of a folder, where it takes the place of no other.

    Args:
        record: The JSON file.
        folder: The folder; it may lie on another disk.

    Returns:
        Where it is now.
    """
    content = read_json(record)
    place = folder / SUPERSEDED / superseded_name(content, record.stem)
    write_json(place, content)  # the name tells the content: what may stand there is the same
    record.unlink()
    return place


def leave_unused_folders() -> None:
    """Give up the claimed folders that nothing was written to, and remove those that were made for it."""
    for folder, (descriptor, is_new) in list(_claims.items()):
        with contextlib.suppress(OSError):
            if os.listdir(folder) == [LOCK]:
                os.unlink(os.path.join(folder, LOCK))
                os.close(descriptor)
                del _claims[folder]
                if is_new:
                    os.rmdir(folder)


def claimed_folders() -> list[str]:
    """Return the folders that this process has claimed, relative to the working folder where they lie below it."""
    here = os.getcwd() + os.sep
    return [folder.removeprefix(here) for folder in _claims]


def _contents(folder: Path) -> set[str]:
    """Relative names of everything below a folder but folders that hold something."""
    found = set()
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        found |= {os.path.relpath(os.path.join(parent, name), folder) for name in (*names, *links)}
        if not folders and not names and Path(parent) != folder:
            found.add(os.path.relpath(parent, folder))
    return found


def _manifest(folder: Path) -> set[str]:
    """Names of the files that this program wrote into a folder; none where another program, or nobody, says so."""
    try:
        found = read_json(folder / MANIFEST)
        return set(found["files"]) if found["written_by"] == _program() else set()
    except (DataError, KeyError, TypeError):
        return set()


def _program() -> str:
    return Path(sys.argv[0]).name


def _recipe_names(folder: Path) -> list[str]:
    """What stands in a folder under names that recipes write."""
    return [path.name for path in folder.iterdir() if any(fnmatch.fnmatch(path.name, name) for name in WRITTEN)]


def _holds_runs(folder: Path) -> bool:
    """Tell whether a recipe has worked in a folder: it holds the record of a run, finished or begun."""
    if any(folder.glob("runs/*/settings_fingerprint.txt")):
        return True
    for path in (*folder.glob("*_seed*.json"), *folder.glob("*/*_seed*.json")):
        with contextlib.suppress(DataError):
            record = read_json(path)
            if isinstance(record, dict) and "settings_fingerprint" in record:
                return True
    return False


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
