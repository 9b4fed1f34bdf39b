"""Reader of MultiWOZ 2.1 and 2.2 as published, from a folder, an archive or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.readers import multiwoz21
from dair_hf.dialog.readers.dialogues import ParsedDialogue, build_rows
from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.readers.schema import DIALOGUE_FILE, Schema, dialogues_in, parse_dialogue, read_schema
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.arrow import paused_gc

SPLITS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
_LISTS = re.compile(r"(val|test)ListFile(\.txt|\.json)?")
_NOT_DIALOGUES = re.compile(r".*_db\.json|schema\.json|checksums\.json|dialog_acts\.json|ontology\.json|.*ListFile.*")


@paused_gc()
def read_multiwoz(
    path: str | os.PathLike[str], split: str | None = None, version: str | None = None
) -> tuple[Dataset, ReadReport]:
    """Read MultiWOZ 2.1 or 2.2 into rows, one per user turn.

    Folders and zip or tar archives may contain:

    - 2.2: `SPLIT/dialogues_NNN.json` and `schema.json`;
    - the original 2.1: `data.json`, `valListFile` and `testListFile`;
    - 2.1 by split: `val.json`, `test.json`, or an archive of each (`val.json.zip`).

    Any of these files is also read on its own.

    Args:
        path: The folder, archive or file.
        split: "train", "dev" (or "val", "validation") or "test"; None reads all.
        version: "2.1" or "2.2"; None infers it from the files.

    Returns:
        The rows, with `rows.FEATURES`, and counts of what was read, skipped and normalized.

    Raises:
        DataError: There is nothing to read, a file is broken, the split is empty, a key is missing, a state has an
            unknown slot, or a dialogue id occurs twice. The message names file and position.

    Example:
        >>> rows, report = read_multiwoz("multiwoz21", split="test")  # doctest: +SKIP
        >>> report.turns  # doctest: +SKIP
        7372
    """
    if split is not None and split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
    if version not in (None, "2.1", "2.2"):
        raise DataError(f"MultiWOZ version {version!r} is unknown; use 2.1 or 2.2, or leave it out")
    source = Source(path)
    wanted = SPLITS[split] if split is not None else None
    report = ReadReport()
    files = [name for name in source.names if DIALOGUE_FILE.fullmatch(PurePosixPath(name).name)]
    if version == "2.2" or (version is None and files):
        dialogues = _parse_22(source, files, wanted, report)
    else:
        dialogues = _parse_21(source, wanted, report)
    return build_rows(dialogues, report, f"{source.path}: split {split or 'all'!r}"), report


def splits_in(source: Source) -> list[str]:
    """Return the splits of a source by its file names, in the order train, dev, test.

    Args:
        source: Any layout that `read_multiwoz` takes.
    """
    if any(_LISTS.fullmatch(PurePosixPath(name).name) for name in source.names):
        return ["train", "dev", "test"]
    data = [name for name in source.names if name.endswith((".json", ".json.zip"))]
    splits = {_split_of(name) for name in data}
    if splits <= {None}:
        splits = {_split_of(source.path.name)}
    return [split for split in ("train", "dev", "test") if split in splits]


def _split_of(name: str) -> str | None:
    """Return the split that the path of a file names."""
    for part in reversed(PurePosixPath(name).parts):
        if (stem := part.split(".")[0]) in SPLITS:
            return SPLITS[stem]
    return None


def _of_split(source: Source, names: list[str], split: str | None) -> list[str]:
    if split is None:
        return names
    if any(_split_of(name) is not None for name in names):
        return [name for name in names if _split_of(name) == split]
    whole = _split_of(source.path.name)
    return names if whole in (None, split) else []


def _find_schema(source: Source) -> Schema | None:
    inside = sorted((name for name in source.names if PurePosixPath(name).name == "schema.json"), key=len)
    if inside:
        return read_schema(source.json(inside[0]), source.label(inside[0]))
    for folder in (source.path.parent, source.path.parent.parent):
        if (folder / "schema.json").is_file():
            beside = Source(folder / "schema.json")
            return read_schema(beside.json("schema.json"), str(beside.path))
    return None


def _parse_22(source: Source, files: list[str], split: str | None, report: ReadReport) -> Iterator[ParsedDialogue]:
    names = _of_split(source, files or _single_files(source), split)
    schema = _find_schema(source)
    if schema is None:
        schema = dict.fromkeys(multiwoz21.TRACKED_SLOTS, frozenset())
        report.normalize("no schema.json: slots checked against the built-in list", str(source.path))
    for name in names:
        for where, dialogue in dialogues_in(source, name):
            if parsed := parse_dialogue(dialogue, schema, multiwoz21.NAME_LIKE_SLOTS, report, where):
                yield parsed


def _single_files(source: Source) -> list[str]:
    """Return the files that may hold all dialogues of a split."""
    return [
        name
        for name in source.names
        if name.endswith(".json")
        and not PurePosixPath(name).name.startswith(".")
        and "__MACOSX" not in name
        and not _NOT_DIALOGUES.fullmatch(PurePosixPath(name).name)
    ]


def _parse_21(source: Source, split: str | None, report: ReadReport) -> Iterator[ParsedDialogue]:
    for label, name, dialogue in _dialogues_21(source, split):
        if parsed := multiwoz21.parse_dialogue(name, dialogue, report, label):
            yield parsed


def _dialogues_21(source: Source, split: str | None) -> Iterator[tuple[str, str, Any]]:
    """Yield file, key and content of each dialogue."""
    names = [name for name in source.names if not PurePosixPath(name).name.startswith(".") and "__MACOSX" not in name]
    for name in names:
        if PurePosixPath(name).name == "data.json":
            yield from _of_data_json(source, name, split)
            return
    plain = _single_files(source)
    zipped = [name for name in names if source.path.is_dir() and re.fullmatch(r"(.*/)?[a-z]+\.json\.zip", name)]
    chosen = _of_split(source, plain + zipped, split)
    if not chosen:
        raise DataError(
            f"{source.path}: holds no dialogues of split {split or 'all'!r} "
            f"(found {', '.join(names[:5]) or 'nothing'}); expected dialogues_NNN.json, data.json or SPLIT.json"
        )
    for name in chosen:
        inner = Source(source.path / name) if name in zipped else source
        for file in [name] if inner is source else [name for name in inner.names if name.endswith(".json")]:
            for key, dialogue in _object(inner, file).items():
                yield inner.label(file), key, dialogue


def _of_data_json(source: Source, file: str, split: str | None) -> Iterator[tuple[str, str, Any]]:
    dialogues, lists = _object(source, file), _lists(source, file)
    if split is not None and not lists:
        raise DataError(
            f"{source.path}: holds data.json without valListFile and testListFile, so no split {split!r}; "
            "put the lists beside it or read it without a split"
        )
    for name, dialogue in dialogues.items():
        if split is None or lists.get(name.removesuffix(".json"), "train") == split:
            yield source.label(file), name, dialogue


def _object(source: Source, name: str) -> Mapping[str, Any]:
    dialogues = source.json(name)
    if not isinstance(dialogues, dict):
        remedy = (
            '; a list of dialogues is MultiWOZ 2.2: read it with version="2.2"' if isinstance(dialogues, list) else ""
        )
        raise DataError(
            f"{source.label(name)}: holds {type(dialogues).__name__}, "
            f"expected an object of dialogues by id (MultiWOZ 2.1){remedy}"
        )
    return dialogues


def _lists(source: Source, data: str) -> dict[str, str]:
    """Return dialogue id -> split for the dialogues in the list files."""
    split_of: dict[str, str] = {}
    for name in source.names:
        match = _LISTS.fullmatch(PurePosixPath(name).name)
        if match and PurePosixPath(name).parent == PurePosixPath(data).parent:
            ids = source.read(name).decode("utf-8", "replace").split()
            split_of.update((item.strip('",[]').removesuffix(".json"), SPLITS[match[1]]) for item in ids)
    return split_of
