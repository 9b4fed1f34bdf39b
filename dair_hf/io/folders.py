"""Folders that are written completely or not at all, and folders that one process at a time works in."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import FileLock

from dair_hf.errors import DataError, explained
from dair_hf.io.files import LOCK, FilePath, explain_write_errors, read_json, scratch_folder, write_json

MANIFEST = "dair_hf_manifest.json"  # names of the files that `atomic_folder` wrote
# Names that recipes write, except inside the folders of their runs.
RECIPE_NAMES = (
    "comparison.*", "paired.*", "*_seed*.json", "audit_*.json", "data.json", "missing.json", "choice.json",
    "lambdas.md", "*.png", "runs", "search", "final", "output.log",
)  # fmt: skip

_claims: dict[str, tuple[FileLock, bool]] = {}  # folder -> its lock, and whether this process created it


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
    with scratch_folder(resolved, target) as new:
        yield new
        write_json(new / MANIFEST, {"written_by": _program(), "files": sorted({*_contents(new), MANIFEST})})
        require_output_folder(target, sources, overwrite)  # again, in case another program wrote there meanwhile
        with explain_write_errors(target):
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
        if resolved == Path.cwd() or not resolved.is_dir():
            problem = "is a file, or the working folder; name another folder"
        elif foreign:
            problem = f"holds {_some(foreign)}, which this command did not write; name a new folder"
        elif contents and not overwrite:
            problem = "already exists; name a new folder, or give --overwrite (in Python overwrite=True)"
    if problem is not None:
        raise DataError(f"{target}: {problem}")
    return resolved


def mark_folder(folder: FilePath) -> Path:
    """Create a folder for recipes to work in, or mark an existing one that contains nothing a recipe would replace.

    Folders that were marked before, that contain records of runs, or that have no files with names that recipes write
    are accepted. Returns the lock file, which is the mark.
    """
    resolved = Path(os.path.realpath(folder))
    lock = resolved / LOCK
    with explain_write_errors(folder):
        resolved.mkdir(parents=True, exist_ok=True)
        if not lock.exists() and not _has_run_records(resolved):
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


def _has_run_records(folder: Path) -> bool:
    """Return whether a folder contains the record of a run, finished or not."""
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
