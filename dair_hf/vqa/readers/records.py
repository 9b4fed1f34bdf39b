"""Question and annotation files of VQA v2 and its edited versions: lookup and parsing."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dair_hf.errors import DataError, explained
from dair_hf.io.archives import Source
from dair_hf.io.files import decode_json

QUESTIONS, ANNOTATIONS = "questions", "annotations"
# v2_OpenEnded_mscoco_train2014_questions.json, v2_mscoco_train2014_annotations.json: the subset precedes the kind.
_NAME = re.compile(r"(?:(?:.*_)?(?P<subset>[A-Za-z-]+\d*)_)?(?P<kind>questions|annotations)\.json")
_ARCHIVE = re.compile(r".*(?:questions|annotations).*\.(?:zip|tar|tgz|tar\.\w+)", re.IGNORECASE)
_YEAR = string.digits  # the subset train2014 belongs to the split train


class RecordFile(NamedTuple):
    """Parsed question or annotation file; the answers of an annotation are texts."""

    label: str
    records: list[dict[str, Any]]


def vqa_splits(source: str | os.PathLike[str]) -> list[str]:
    """Return the splits of the question files in a folder or archive, such as `["train", "val"]`.

    Files whose name contains no split are ignored.
    """
    names = [_subset(name).rstrip(_YEAR) for _, name in _files_of_kind(Source(source), QUESTIONS)]
    return [name for name in dict.fromkeys(names) if name]


def read_records(source: str | os.PathLike[str], kind: str, split: str | None = None) -> RecordFile:
    """Find and parse the questions or annotations of a split.

    Args:
        source: The JSON file; a folder, zip or tar archive that holds it under its public name
            (`v2_OpenEnded_mscoco_train2014_questions.json`); or a folder with such an archive, whose name must contain
            "questions" or "annotations".
        kind: "questions" or "annotations".
        split: "train", "val", "test", "test-dev", or a subset with its year such as "train2014". None if the source
            holds a single split. Ignored if `source` is the JSON file itself.
    """
    root = Source(source)
    if root.path.is_file() and root.names == [root.path.name]:  # given directly, a file may have any name
        return _parse(root, root.path.name, kind)
    matches = [
        (holder, name)
        for holder, name in _files_of_kind(root, kind)
        if split is None or split in (_subset(name), _subset(name).rstrip(_YEAR))
    ]
    if len(matches) != 1:
        names = [holder.label(name) for holder, name in matches] or root.names[:8]
        wanted = f"one file *{split or ''}*_{kind}.json"
        raise DataError(
            f"{source}: expected {wanted}, got {', '.join(names) or 'nothing'}; give its path, or the split"
        )
    return _parse(*matches[0], kind)


def _subset(name: str) -> str:
    match = _NAME.fullmatch(PurePosixPath(name).name)
    return (match and match["subset"]) or ""


def _files_of_kind(source: Source, kind: str) -> Iterator[tuple[Source, str]]:
    """Yield the files of a kind in a source or, if a folder has none, in the archives in that folder."""
    files = [PurePosixPath(name) for name in source.names]
    matches = [(file, _NAME.fullmatch(file.name)) for file in files if not file.name.startswith(".")]
    names = [file.as_posix() for file, match in matches if match and match["kind"] == kind]
    yield from ((source, name) for name in names)
    if not names and source.path.is_dir():
        for file in files:
            if _ARCHIVE.fullmatch(file.name):
                yield from _files_of_kind(Source(source.path / file), kind)


def _parse(source: Source, name: str, kind: str) -> RecordFile:
    with explained(source.label(name), ValueError):
        content = decode_json(source.read(name), object_hook=_unwrap_answers())
    records = content.get(kind) if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise DataError(f"{source.label(name)}: expected an object with a list of {kind}, got {content!r:.80}")
    return RecordFile(source.label(name), records)


def _unwrap_answers() -> Callable[[dict[str, Any]], Any]:
    """Return a JSON hook that replaces `{"answer": text, "answer_confidence": ..., "answer_id": ...}` by its text.

    Each question has ten of these objects, four fifths of the memory of a parsed file. Equal texts share one string.
    """
    texts: dict[str, str] = {}

    def unwrap(value: dict[str, Any]) -> Any:
        text = value.get("answer")
        return texts.setdefault(text, text) if type(text) is str and "question_id" not in value else value

    return unwrap
