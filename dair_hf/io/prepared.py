"""Folders of prepared data: written by the commands in `data_scripts/`, read by recipes in place of the raw files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, Features

from dair_hf.errors import DataError
from dair_hf.io.files import FilePath, read_json, write_json
from dair_hf.io.folders import MANIFEST

MARK = "prepared.json"
VERSION = 2  # raise it when a prepared folder changes its layout or its columns change their meaning


def is_prepared(path: FilePath) -> bool:
    """Return True for a folder that a command in `data_scripts/` wrote."""
    return Path(path, MANIFEST).is_file()


def write_mark(folder: FilePath, kind: str, content: Mapping[str, Any]) -> None:
    """Write `prepared.json`: kind and version of the data in a folder, and anything else that readers verify."""
    write_json(Path(folder, MARK), {"kind": kind, "version": VERSION, **content})


def read_mark(folder: FilePath, kind: str) -> dict[str, Any]:
    """Return the content of `prepared.json`.

    Raises:
        DataError: No command wrote the folder, it holds data of another kind or version, or the file is damaged.
    """
    if not is_prepared(folder):
        raise DataError(f"{folder}: no folder that a command in data_scripts/ wrote; check the path")
    path = Path(folder, MARK)
    mark = read_json(path) if path.is_file() else {"kind": kind, "version": 0}
    if not isinstance(mark, dict) or not {"kind", "version"} <= mark.keys():
        raise DataError(f"{path}: expected kind and version of the data, found {mark!r:.60}; prepare the data anew")
    if mark["kind"] != kind:
        raise DataError(
            f"{folder}: holds prepared data of kind {mark['kind']!r}, expected {kind!r}; name another folder"
        )
    if mark["version"] != VERSION:
        raise DataError(
            f"{folder}: prepared by another version (format {mark['version']}, expected {VERSION}); prepare the data "
            "anew"
        )
    return mark


def save_splits(folder: FilePath, kind: str, data: Mapping[str, DatasetDict]) -> None:
    """Save data sets and the mark that `load_split` verifies.

    Args:
        folder: Where to write.
        kind: Kind of the data, such as "multiwoz".
        data: Subfolder -> splits; "" for the folder itself.
    """
    saved = {}
    for name, splits in data.items():
        splits.save_to_disk(str(Path(folder, name)))
        for split, rows in splits.items():
            saved[Path(name, split).as_posix()] = {"rows": len(rows), "fingerprint": rows._fingerprint}
    write_mark(folder, kind, {"splits": saved})


def load_split(folder: FilePath, kind: str, name: str, features: Features) -> Dataset:
    """Load one split with the fingerprint that it was saved with.

    It is loaded into memory, so that later steps write no cache files into the folder.

    Args:
        folder: Folder written by `save_splits`.
        kind: Kind of the data.
        name: Split, with its subfolder if it has one: "rows/train".
        features: Expected columns.

    Raises:
        DataError: The folder holds data of another kind or version, lacks the split, or the split is damaged.
    """
    saved = read_mark(folder, kind).get("splits", {})
    if name not in saved:
        raise DataError(f"{folder}: holds no split {name!r} (found {', '.join(saved) or 'none'}); prepare it as well")
    try:
        loaded = Dataset.load_from_disk(str(Path(folder, name)), keep_in_memory=True)
        count, fingerprint = saved[name]["rows"], saved[name]["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{folder}: split {name!r} cannot be read ({reason:.200}); prepare the data anew") from error
    if loaded.features != features:
        raise DataError(f"{folder}: split {name!r} has other columns than expected; prepare the data anew")
    if len(loaded) != count:
        raise DataError(f"{folder}: split {name!r} has {len(loaded)} rows of {count}; prepare the data anew")
    return Dataset(loaded.data, info=loaded.info, fingerprint=fingerprint)
