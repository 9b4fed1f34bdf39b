"""Splits of a data set: their names, and the files that belong to one."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dair_hf.errors import DataError
from dair_hf.io.archives import Source

# Name of a split -> split.
SPLITS = {
    "train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validate": "dev", "validation": "dev", "test": "test"
}  # fmt: skip
_WORD = rf"(?:^|(?<=[^a-z]))({'|'.join(SPLITS)})(?:ing|[ _-]?set)?"
_FILE, _FOLDER = re.compile(rf"{_WORD}(?![a-z])"), re.compile(rf"{_WORD}$")


def known_split(split: str | None) -> str | None:
    """Return the split that a name means; None for all splits."""
    if split is not None and split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
    return None if split is None else SPLITS[split]


def split_of(source: Source, name: str) -> str | None:
    """Return the split of a file: by the innermost name of file and folders that shows one, last by the source's.

    A name with two splits ("train_test") shows none. The name of a folder that is read as a whole counts only if it
    ends with the split ("sgd/dev", but not "test_run").
    """
    parts = [(_FILE, part) for part in reversed(PurePosixPath(name).parts)]
    parts.append((_FOLDER if source.path.is_dir() else _FILE, source.path.name))
    for pattern, part in parts:
        splits = {SPLITS[word] for word in pattern.findall(part.lower())}
        if len(splits) == 1:
            return splits.pop()
    return None


def files_of_split(source: Source, names: list[str], split: str | None) -> list[str]:
    """Return the files of a split, all of them for None."""
    chosen = [name for name in names if split is None or split_of(source, name) == split]
    if not chosen:
        # Without a name to filter by, all splits would pass for the one that is wanted.
        raise DataError(
            f"{source.path}: holds no dialogues of split {split or 'all'!r} by the names of its files and folders "
            f"(found {', '.join((names or source.names)[:5]) or 'nothing'}); leave the split out to read all"
        )
    return chosen
