"""MultiWOZ as it is published: 2.2 (schema style) and 2.1 (`data.json` style), from a folder, an archive or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.readers import multiwoz21
from dair_hf.dialog.readers.report import ReadReport, collector_paused
from dair_hf.dialog.readers.schema import Schema, add_dialogue, read_schema
from dair_hf.dialog.text.rows import RowBuilder
from dair_hf.errors import DataError
from dair_hf.io.archives import Source

SPLITS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
_DIALOGUES = re.compile(r"dialogues_\d+\.json")
_LISTS = re.compile(r"(val|test)ListFile(\.txt|\.json)?")
_NEXT_TO_DATA = re.compile(r".*_db\.json|schema\.json|checksums\.json|dialog_acts\.json|ontology\.json|.*ListFile.*")


@collector_paused()
def read_multiwoz(
    path: str | os.PathLike[str], split: str | None = None, version: str | None = None
) -> tuple[Dataset, ReadReport]:
    """Read MultiWOZ 2.1 or 2.2 into rows, one per user turn.

    Accepted are, as folders or as zip or tar archives: 2.2 with `SPLIT/dialogues_NNN.json` and `schema.json`; the
    original 2.1 with `data.json`, `valListFile` and `testListFile`; files by split (`val.json`, `test.json`), also
    each in an archive of its own (`val.json.zip`); and any one of these files alone.

    Args:
        path: The folder, archive or file.
        split: "train", "dev" (or "val", "validation") or "test"; None reads everything there is.
        version: "2.1" or "2.2"; None tells them apart by their files.

    Returns:
        The rows, with `rows.FEATURES`, and what was found, skipped and normalised.

    Raises:
        DataError: Nothing readable is there, a file is broken, the split holds nothing, a key is missing, a state names
            an unknown slot, or a dialogue id occurs twice. The message says file and position.

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
    builder, report = RowBuilder(), ReadReport()
    files = [name for name in source.names if _DIALOGUES.fullmatch(PurePosixPath(name).name)]
    if version == "2.2" or (version is None and files):
        _read_22(source, files, wanted, builder, report)
    else:
        for label, name, dialogue in _dialogues_21(source, wanted):
            multiwoz21.add_dialogue(builder, report, name, dialogue, label)
    if not len(builder):
        raise DataError(
            f"{source.path}: split {split or 'all'!r} holds no user turn with a state; check path and split"
        )
    return builder.build(), report


def splits_in(source: Source) -> list[str]:
    """The splits that the names of the source's files tell of, in the order train, dev, test.

    Args:
        source: Any of the layouts that `read_multiwoz` takes; for the original 2.1 archive all three.
    """
    if any(_LISTS.fullmatch(PurePosixPath(name).name) for name in source.names):
        return ["train", "dev", "test"]
    data = [name for name in source.names if name.endswith((".json", ".json.zip"))]
    found = {_split_of(name) for name in data} or set()
    if found <= {None}:
        found = {_split_of(source.path.name)}
    return [split for split in ("train", "dev", "test") if split in found]


def _split_of(name: str) -> str | None:
    """The split that a member belongs to by its folder or file name."""
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


def _read_22(source: Source, files: list[str], split: str | None, builder: RowBuilder, report: ReadReport) -> None:
    names = _of_split(source, files or [name for name in source.names if name.endswith(".json")], split)
    schema = _find_schema(source)
    if schema is None:
        schema = Schema({slot: frozenset() for slot in multiwoz21.TRACKED_SLOTS})
        report.normalise("no schema.json there: slots held against the built-in list", str(source.path))
    for name in names:
        dialogues, label = source.json(name), source.label(name)
        if not isinstance(dialogues, list):
            raise DataError(f"{label}: holds {type(dialogues).__name__}, expected a list of dialogues (MultiWOZ 2.2)")
        for index, dialogue in enumerate(dialogues):
            add_dialogue(builder, report, dialogue, schema, f"{label}: dialogue [{index}]", multiwoz21.NAME_LIKE)


def _dialogues_21(source: Source, split: str | None) -> Iterator[tuple[str, str, Any]]:
    candidates = [
        name for name in source.names if not PurePosixPath(name).name.startswith(".") and "__MACOSX" not in name
    ]
    whole = [name for name in candidates if PurePosixPath(name).name == "data.json"]
    if whole:
        dialogues, lists = _object(source, whole[0]), _lists(source, whole[0])
        if split is not None and not lists:
            raise DataError(
                f"{source.path}: holds data.json without valListFile and testListFile, so no split {split!r}; "
                "put the lists beside it or read it without a split"
            )
        for name, dialogue in dialogues.items():
            if split is None or lists.get(name.removesuffix(".json"), "train") == split:
                yield source.label(whole[0]), name, dialogue
        return
    plain = [name for name in candidates if name.endswith(".json") and not _NEXT_TO_DATA.fullmatch(Path(name).name)]
    packed = (
        [name for name in candidates if re.fullmatch(r"(.*/)?[a-z]+\.json\.zip", name)] if source.path.is_dir() else []
    )
    chosen = _of_split(source, plain + packed, split)
    if not chosen:
        raise DataError(
            f"{source.path}: holds no dialogues of split {split or 'all'!r} "
            f"(found {', '.join(candidates[:5]) or 'nothing'}); expected dialogues_NNN.json, data.json or SPLIT.json"
        )
    for name in chosen:
        inner = Source(source.path / name) if name in packed else source
        for member in [name] if inner is source else [name for name in inner.names if name.endswith(".json")]:
            for key, dialogue in _object(inner, member).items():
                yield inner.label(member), key, dialogue


def _object(source: Source, name: str) -> Mapping[str, Any]:
    dialogues = source.json(name)
    if not isinstance(dialogues, dict):
        raise DataError(
            f"{source.label(name)}: holds {type(dialogues).__name__}, "
            "expected an object of dialogues by id (MultiWOZ 2.1)"
        )
    return dialogues


def _lists(source: Source, data: str) -> dict[str, str]:
    """Dialogue id -> split, of those that the list files name."""
    found: dict[str, str] = {}
    for name in source.names:
        match = _LISTS.fullmatch(PurePosixPath(name).name)
        if match and PurePosixPath(name).parent == PurePosixPath(data).parent:
            ids = source.read(name).decode("utf-8", "replace").split()
            found.update((item.strip('",[]').removesuffix(".json"), SPLITS[match[1]]) for item in ids)
    return found
