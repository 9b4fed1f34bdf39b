"""Files of dialogue data sets: the split that a name shows, and dialogues in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from dair_hf.dialog.readers.shapes import check_json
from dair_hf.errors import DataError
from dair_hf.io.archives import Source

# Name of a split -> split.
SPLITS = {
    "train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validate": "dev", "validation": "dev", "test": "test"
}  # fmt: skip
_WORD = rf"(?:^|(?<=[^a-z]))({'|'.join(SPLITS)})(?:ing|[ _-]?set)?"
_FILE, _FOLDER = re.compile(rf"{_WORD}(?![a-z])"), re.compile(rf"{_WORD}$")


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
    wanted = SPLITS.get(split or "", split)
    chosen = [name for name in names if wanted is None or split_of(source, name) == wanted]
    if not chosen:
        # Without a name to filter by, all splits would pass for the one that is wanted.
        raise DataError(
            f"{source.path}: expected files of split {split or 'all'!r} by the names of files and folders, got "
            f"{', '.join((names or source.names)[:5]) or 'nothing'}; leave the split out to read all"
        )
    return chosen


def dialogues_in(source: Source, file: str, shape: Any) -> Iterator[tuple[str, Any]]:
    """Yield position and content of each dialogue of a file that holds a list of them."""
    dialogues = source.json(file)
    check_json(dialogues, list, source.label(file))
    for index, dialogue in enumerate(dialogues):
        where = f"{source.label(file)}: dialogue [{index}]"
        check_json(dialogue, shape, where)
        yield where, dialogue
