"""Files of dialogue data sets: the split that a name shows, dialogues in a file, and pinned downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from dair_hf.dialog.readers.shapes import check_json
from dair_hf.errors import DataError
from dair_hf.io.archives import RemoteFile, Source

# Name of a split -> split.
SPLITS = {
    "train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validate": "dev", "validation": "dev", "test": "test"
}  # fmt: skip
_WORD = rf"(?:^|(?<=[^a-z]))({'|'.join(SPLITS)})(?:ing|[ _-]?set)?"
_FILE, _FOLDER = re.compile(rf"{_WORD}(?![a-z])"), re.compile(rf"{_WORD}$")

HOST = "https://raw.githubusercontent.com"
_REVISIONS = {
    "2.1": "thu-coai/ConvLab-2/6871fb8245da9eadf42009915763abebad95de51/data/multiwoz",
    "2.2": "budzianowski/multiwoz/5baf9a9323062705e8e34d95ee4fd71d387a97d4/data/MultiWOZ_2.2",
    "sgd": "google-research-datasets/dstc8-schema-guided-dialogue/18cf5f085b4c2383a2103ef4885963136a7c8488",
    "woz2": "nmrksic/neural-belief-tracker/63b5933d867fd9dacc2bfadcc5f6be3a3ef8ee77/data/woz",
}
# Files of each split; a number counts the files "dialogues_001.json", "dialogues_002.json", ...
_FILES: dict[str, dict[str, str | int]] = {
    "2.1": {"train": "train.json.zip", "dev": "val.json.zip", "test": "test.json.zip"},
    "2.2": {"train": 17, "dev": 2, "test": 2},
    "sgd": {"train": 127, "dev": 20, "test": 34},
    "woz2": {"train": "woz_train_en.json", "dev": "woz_validate_en.json", "test": "woz_test_en.json"},
}
# SHA-256 and size in bytes. All other files are trusted on their first download.
_KNOWN = {
    ("2.2", "schema.json"): ("ae9e2390f38fb967af64623c2f4f7e0c636fb377ad523b582a03161d3ddbdf68", 18_123),
    ("2.1", "val.json.zip"): ("25ddfd4d0b01304012b54e2d98caa038c91d95295c4b519cc721b9b616f506dc", 1_537_014),
    ("2.1", "test.json.zip"): ("438deb6ff5402cef5ff29cc0d5a10db818c1e9142727c1d631e71b563c66a5b4", 1_533_565),
    ("woz2", "woz_train_en.json"): ("7cd9e971553e5f3e80bb0c93164bf4c619c7f49f45d636a0512474cdeb074485", 3_825_261),
    ("woz2", "woz_validate_en.json"): ("ae1ea9067fd05c0179d349f140b38de1b2db587d5bfcb4f99ef0d77474ab00ad", 1_222_746),
    ("woz2", "woz_test_en.json"): ("3673e433b21a6b0d74e9144bd059e64b29bc3e1c5dc0e18654a98ec597c0d72c", 2_481_214),
}


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


def downloads(data: str, split: str | None = None, host: str = HOST) -> list[RemoteFile]:
    """List the files of MultiWOZ "2.1" (the tokenized copy with spans) or "2.2", "sgd" or "woz2", by split."""
    names: list[str] = ["schema.json"] if data == "2.2" else []
    for name, files in _FILES[data].items():
        if split not in (None, name):
            continue
        if isinstance(files, str):
            names.append(files)
        else:
            names += [f"{name}/schema.json"] * (data == "sgd")
            names += [f"{name}/dialogues_{number:03d}.json" for number in range(1, files + 1)]
    remote = []
    for name in names:
        sha256, size = _KNOWN.get((data, name), (None, None))
        remote.append(RemoteFile(name, f"{host}/{_REVISIONS[data]}/{name}", sha256, size))
    return remote
