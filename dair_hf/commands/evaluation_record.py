"""Files of an evaluation: which an earlier one wrote, and which are of others; without slow imports."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError
from dair_hf.io.archives import sha256_of
from dair_hf.io.files import FilePath, atomic_path, holds_json, read_json, require_output_file, scratch_folder
from dair_hf.io.folders import sole_writer

RECORD_FILE = "evaluation.json"
RECORD_KEYS = {"model", "pairs", "settings", "metrics", "seconds"}
FILES = "files"  # key of the record: name -> SHA-256 of the other files that evaluations wrote to its folder
OTHER_FOLDER = "name another folder with --output"


def is_record(value: Any) -> bool:
    """Return whether the content of a file is a record of `dair-hf evaluate`."""
    return isinstance(value, dict) and value.keys() >= RECORD_KEYS


def own_files(folder: Path) -> dict[str, str]:
    """Return the files beside a record that are as an evaluation wrote them: name -> SHA-256."""
    try:
        record = read_json(folder / RECORD_FILE)
    except DataError:
        return {}
    files = record.get(FILES) if is_record(record) else None
    own = {}
    for name, digest in files.items() if isinstance(files, dict) else ():
        with contextlib.suppress(OSError):  # it was moved
            if sha256_of(folder / name) == digest:
                own[name] = digest
    return own


def require_evaluation_folder(
    folder: Path, names: Collection[str], sources: Collection[FilePath], overwrite: bool
) -> None:
    """Refuse a folder for an evaluation if writing it would replace files of others, or an earlier evaluation."""
    own = own_files(folder)
    # First whether all of them may be replaced: else --overwrite would be advised although it does not help.
    for may_replace in (True, overwrite):
        require_output_file(folder / RECORD_FILE, sources, may_replace, holds_json(is_record), OTHER_FOLDER)
        for name in names:
            require_output_file(folder / name, sources, may_replace, lambda path: path.name in own, OTHER_FOLDER)


@contextlib.contextmanager
def evaluation_files(folder: Path, sources: Collection[FilePath], overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder whose files are moved to the folder of an evaluation at the end, the record last."""
    with sole_writer(folder), scratch_folder(folder.resolve() / RECORD_FILE, folder) as scratch:
        yield scratch
        names = sorted(path.name for path in scratch.iterdir() if path.name != RECORD_FILE)
        require_evaluation_folder(folder, names, sources, overwrite)  # again, in case others wrote there meanwhile
        for name in (*names, RECORD_FILE):
            with atomic_path(folder / name) as path:
                shutil.move(scratch / name, path)


def digests_of(folder: Path) -> dict[str, str]:
    """Return the files in a folder: name -> SHA-256."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
