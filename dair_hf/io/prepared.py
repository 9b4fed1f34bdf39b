"""Folders of prepared data: written by the commands in `data_scripts/`, read by recipes in place of the raw files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, Features

from dair_hf.errors import DataError, explained
from dair_hf.io.files import MANIFEST, FilePath, read_json, write_json

MARK = "prepared.json"
VERSION = 2  # raise it when a prepared folder changes its layout or its columns change their meaning


def is_prepared(path: FilePath) -> bool:
    """Return True for a folder that a command in `data_scripts/` wrote."""
    return Path(path, MANIFEST).is_file()


def write_mark(folder: FilePath, kind: str, content: Mapping[str, Any]) -> None:
    """Write `prepared.json`: kind and version of the data in a folder, and anything else that readers verify."""
    write_json(Path(folder, MARK), {"kind": kind, "version": VERSION, **content})


def read_mark(folder: FilePath, kind: str) -> dict[str, Any]:
    """Return the content of `prepared.json`; refuse data of another kind or version."""
    path = Path(folder, MARK)
    mark = read_json(path)
    found = (mark.get("kind"), mark.get("version")) if isinstance(mark, dict) else mark
    if found != (kind, VERSION):
        expected = (kind, VERSION)
        raise DataError(f"{path}: expected kind and version {expected}, got {found!r:.60}; prepare the data again")
    return dict(mark)


def save_splits(folder: FilePath, kind: str, data: Mapping[str, DatasetDict]) -> None:
    """Save data sets, by subfolder (or "") and split, and the mark that `load_split` verifies."""
    saved = {}
    for name, splits in data.items():
        splits.save_to_disk(str(Path(folder, name)))
        for split, rows in splits.items():
            saved[Path(name, split).as_posix()] = {"rows": len(rows), "fingerprint": rows._fingerprint}
    write_mark(folder, kind, {"splits": saved})


def load_split(folder: FilePath, kind: str, name: str, features: Features) -> Dataset:
    """Load one split, such as "rows/train", with the fingerprint that it was saved with.

    It is loaded into memory, so that later steps write no cache files into the folder.
    """
    saved = read_mark(folder, kind)["splits"]
    setting = f"{folder}: split {name!r} cannot be read; prepare the data again"
    with explained(setting, OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException):
        count, fingerprint = saved[name]["rows"], saved[name]["fingerprint"]
        loaded = Dataset.load_from_disk(str(Path(folder, name)), keep_in_memory=True)
    if loaded.features != features or len(loaded) != count:
        found = f"got {len(loaded)} with {', '.join(loaded.features)}"
        raise DataError(f"{folder}: split {name!r}: expected {count} rows with {', '.join(features)}, {found}")
    return Dataset(loaded.data, info=loaded.info, fingerprint=fingerprint)
