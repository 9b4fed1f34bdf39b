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
from dair_hf.dialog.readers.splits import SPLITS, files_of_split, known_split, split_of
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.records import paused_gc

_LISTS = re.compile(r"(val|test)ListFile(\.txt|\.json)?")
_NOT_DIALOGUES = re.compile(r"(.*_db|schema|checksums|dialog_acts|ontology)\.json(\.zip)?|.*ListFile.*|\..*")


@paused_gc()
def read_multiwoz(
    path: str | os.PathLike[str], split: str | None = None, version: str | None = None
) -> tuple[Dataset, ReadReport]:
    """Read MultiWOZ 2.1 or 2.2 into rows, one per user turn.

    Folders and zip or tar archives may contain:

    - 2.2: `SPLIT/dialogues_NNN.json` and `schema.json`;
    - the original 2.1: `data.json`, `valListFile` and `testListFile`;
    - 2.1 by split: `val.json`, `multiwoz_test.json`, or an archive of each (`val.json.zip`).

    Any of these files is also read on its own.

    Args:
        path: The folder, archive or file.
        split: "train", "dev" (or "val", "validation") or "test", by the lists or the names of files and folders: a
            single file too must show it in its name. None reads all.
        version: "2.1" or "2.2"; None infers it from the files.

    Returns:
        The rows, with `rows.FEATURES`, and counts of what was read, skipped and normalized.

    Raises:
        DataError: There is nothing to read, no name shows the split, a file is broken, a key is missing, a state has
            an unknown slot, or a dialogue id occurs twice. The message names file and position.

    Example:
        >>> rows, report = read_multiwoz("multiwoz21", split="test")  # doctest: +SKIP
        >>> report.turns  # doctest: +SKIP
        7372
    """
    wanted = known_split(split)
    if version not in (None, "2.1", "2.2"):
        raise DataError(f"MultiWOZ version {version!r} is unknown; use 2.1 or 2.2, or leave it out")
    source = Source(path)
    report = ReadReport()
    files = [name for name in source.names if DIALOGUE_FILE.fullmatch(PurePosixPath(name).name)]
    if version == "2.2" or (version is None and files):
        dialogues = _parse_22(source, files, wanted, report)
    else:
        dialogues = _parse_21(source, wanted, report)
    return build_rows(dialogues, report, f"{source.path}: split {split or 'all'!r}", venues=True), report


def splits_in(source: Source) -> list[str]:
    """Return the splits of a source by its file names, in the order train, dev, test.

    Args:
        source: Any layout that `read_multiwoz` takes.
    """
    if any(_LISTS.fullmatch(PurePosixPath(name).name) for name in source.names):
        return ["train", "dev", "test"]
    splits = {split_of(source, name) for name in _single_files(source)}
    return [split for split in ("train", "dev", "test") if split in splits]


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
    names = files_of_split(source, files or _single_files(source, ".json"), split)
    schema = _find_schema(source)
    if schema is None:
        schema = dict.fromkeys(multiwoz21.TRACKED_SLOTS, frozenset())
        report.normalize("no schema.json: slots checked against the built-in list", str(source.path))
    for name in names:
        for where, dialogue in dialogues_in(source, name):
            if parsed := parse_dialogue(dialogue, schema, multiwoz21.NAME_LIKE_SLOTS, report, where):
                yield parsed


def _single_files(source: Source, *suffixes: str) -> list[str]:
    """Return the files that may hold all dialogues of a split."""
    return [
        name
        for name in source.names
        if name.endswith(suffixes or (".json", ".json.zip"))
        and "__MACOSX" not in name
        and not _NOT_DIALOGUES.fullmatch(PurePosixPath(name).name)
    ]


def _parse_21(source: Source, split: str | None, report: ReadReport) -> Iterator[ParsedDialogue]:
    for label, name, dialogue in _dialogues_21(source, split):
        if parsed := multiwoz21.parse_dialogue(name, dialogue, report, label):
            yield parsed


def _dialogues_21(source: Source, split: str | None) -> Iterator[tuple[str, str, Any]]:
    """Yield file, key and content of each dialogue."""
    names = _single_files(source)
    names = [name for name in names if PurePosixPath(name).name == "data.json"] or names
    lists = _lists(source, names[0]) if len(names) == 1 else {}
    if split is not None and {"dev", "test"} <= set(lists.values()):
        for key, dialogue in _object(source, names[0]).items():
            if lists.get(key.removesuffix(".json"), "train") == split:
                yield source.label(names[0]), key, dialogue
        return
    for name in files_of_split(source, names, split):
        inner = Source(source.path / name) if name.endswith(".zip") else source
        for file in [name] if inner is source else _single_files(inner, ".json"):
            for key, dialogue in _object(inner, file).items():
                yield inner.label(file), key, dialogue


def _object(source: Source, name: str) -> Mapping[str, Any]:
    dialogues = source.json(name)
    if not isinstance(dialogues, dict):
        first = dialogues[0] if isinstance(dialogues, list) and dialogues else None
        keys = f" (keys of the first item: {', '.join(first)})" if isinstance(first, dict) else ""
        is_22 = isinstance(first, dict) and {"services", "turns"} <= first.keys()
        raise DataError(
            f"{source.label(name)}: holds {type(dialogues).__name__}{keys}, "
            f"expected an object of dialogues by id (MultiWOZ 2.1){'; for MultiWOZ 2.2 give version 2.2' * is_22}"
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
