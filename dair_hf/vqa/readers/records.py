"""Question and annotation files of VQA v2 and its edited versions: downloads, lookup, parsing and validation."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.archives import RemoteFile, Source
from dair_hf.io.files import decode_json
from dair_hf.vqa.readers.images import image_name

QUESTIONS, ANNOTATIONS = "questions", "annotations"
HOST = "https://s3.amazonaws.com"
# The answers of the test split are not public. Its archive contains test-dev as well.
FILES = {
    "train": ("v2_Questions_Train_mscoco.zip", "v2_Annotations_Train_mscoco.zip"),
    "val": ("v2_Questions_Val_mscoco.zip", "v2_Annotations_Val_mscoco.zip"),
    "test": ("v2_Questions_Test_mscoco.zip",),
}
# v2_OpenEnded_mscoco_train2014_questions.json, v2_mscoco_train2014_annotations.json: the subset precedes the kind.
_NAME = re.compile(r"(?:(?:.*_)?(?P<subset>[A-Za-z-]+\d*)_)?(?P<kind>questions|annotations)\.json")
_ARCHIVE = re.compile(r".*(?:questions|annotations).*\.(?:zip|tar|tgz|tar\.\w+)", re.IGNORECASE)
_QUESTION_FIELDS = {"question_id": (int,), "image_id": (int, str), "question": (str,)}
_ANNOTATION_FIELDS = {
    "question_id": (int,),
    "image_id": (int, str),
    "question_type": (str,),
    "answer_type": (str,),
    "answers": (list,),
}
_INT64_BITS = 63
_YEAR = string.digits  # the subset train2014 belongs to the split train


class Question(NamedTuple):
    """Question about an image.

    Attributes:
        question_id: Id; an edit has the id of the original question.
        image_id: Id in the form of `images.image_name`.
        question: Text.
    """

    question_id: int
    image_id: str
    question: str


class Annotation(NamedTuple):
    """Answers to a question.

    Attributes:
        question_id: Id of the question.
        image_id: Id in the form of `images.image_name`.
        question_type: First words of the question, such as "how many".
        answer_type: "yes/no", "number" or "other".
        answers: One per annotator, in the order of the file.
    """

    question_id: int
    image_id: str
    question_type: str
    answer_type: str
    answers: list[str]


class RecordFile(NamedTuple):
    """Parsed question or annotation file."""

    label: str
    subset: str | None
    records: list[Any]


def vqa_files(split: str, host: str = HOST) -> list[RemoteFile]:
    """Return the downloadable archives of a split of VQA v2, which can be read without unpacking.

    No checksums are published, so each file is trusted on first use.
    """
    if split not in FILES:
        raise DataError(f"split {split!r} cannot be downloaded; use one of {', '.join(FILES)}")
    return [RemoteFile(name, f"{host}/cvmlp/vqa/mscoco/vqa/{name}") for name in FILES[split]]


def splits_in(source: str | os.PathLike[str]) -> list[str]:
    """Return the splits of the question files in a folder or archive, such as `["train", "val"]`.

    Args:
        source: Folder or archive with files under their public names, or a folder of such archives.

    Returns:
        Names in the order of the files. Files whose name contains no split are ignored.

    Raises:
        DataError: The source does not exist, or an archive cannot be read.
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

    Raises:
        DataError: There is no such file or more than one, it is not JSON, or it contains no list of records.

    Example:
        >>> read_records("v2_Questions_Val_mscoco.zip", "questions").subset  # doctest: +SKIP
        'val2014'
    """
    root = Source(source)
    # A file that is given directly may have any name.
    is_file = root.path.is_file() and root.names == [root.path.name]
    matches = [(root, root.path.name)] if is_file else list(_files_of_kind(root, kind))
    if split is not None and not is_file:
        matches = [(holder, name) for holder, name in matches if split in (_subset(name), _subset(name).rstrip(_YEAR))]
    if len(matches) != 1:
        wanted = f"{kind} file" + (f" of split {split!r}" if split is not None else "")
        if not matches:
            names = ", ".join(root.names[:8]) or "nothing"
            year = "" if split is None or split[-1:].isdigit() else "2015" if split.startswith("test") else "2014"
            example = f"v2_mscoco_{split or 'train2014'}{year}_{kind}.json"
            raise DataError(
                f"{source}: no {wanted} under its public name, such as {example} (found {names}); "
                "give the path of the file itself"
            )
        labels = ", ".join(holder.label(name) for holder, name in matches)
        raise DataError(f"{source}: more than one {wanted}: {labels}; give the split, or the path of the file itself")
    return _parse(*matches[0], kind)


def questions_of(file: RecordFile) -> Iterator[Question]:
    """Yield the questions of a file."""
    for index, record in enumerate(file.records):
        _validate(record, _QUESTION_FIELDS, file, QUESTIONS, index)
        yield Question(record["question_id"], image_name(record["image_id"]), record["question"])


def annotations_of(file: RecordFile) -> Iterator[Annotation]:
    """Yield the annotations of a file.

    `multiple_choice_answer` is ignored, because CV-VQA stores there the answer before the edit.
    """
    for index, record in enumerate(file.records):
        _validate(record, _ANNOTATION_FIELDS, file, ANNOTATIONS, index)
        answers = record["answers"]
        if not set(map(type, answers)) <= {str}:
            wrong = next(number for number, answer in enumerate(answers) if type(answer) is not str)
            raise DataError(
                f"{file.label}: annotations[{index}] (question {record['question_id']}): answers[{wrong}]: expected an "
                f"object with a text field 'answer', found {answers[wrong]!r:.80}; download the file again"
            )
        yield Annotation(
            record["question_id"],
            image_name(record["image_id"]),
            record["question_type"],
            record["answer_type"],
            answers,
        )


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
    label = source.label(name)
    try:
        content = decode_json(source.read(name), object_hook=_unwrap_answers())
    except ValueError:
        content = source.json(name)  # raises the same error with its position
    if not isinstance(content, dict) or not isinstance(content.get(kind), list):
        found = f"keys {', '.join(content)}" if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{label}: contains no list of {kind} (found {found:.200}); give a VQA {kind} file")
    if not content[kind]:
        raise DataError(f"{label}: the list of {kind} is empty; download the file again")
    subset = content.get("data_subtype")
    return RecordFile(label, subset if isinstance(subset, str) and subset else None, content[kind])


def _unwrap_answers() -> Callable[[dict[str, Any]], Any]:
    """Return a JSON hook that replaces `{"answer": text, "answer_confidence": ..., "answer_id": ...}` by its text.

    Each question has ten of these objects, four fifths of the memory of a parsed file. Equal texts share one string.
    """
    texts: dict[str, str] = {}

    def unwrap(value: dict[str, Any]) -> Any:
        if "answer" not in value or "question_id" in value:
            return value
        text = value["answer"]
        return texts.setdefault(text, text) if type(text) is str else value

    return unwrap


def _validate(record: Any, fields: Mapping[str, tuple[type, ...]], file: RecordFile, kind: str, index: int) -> None:
    # Exact types, since True is an instance of int.
    if type(record) is dict and all(type(record.get(name)) in types for name, types in fields.items()):
        if record["question_id"].bit_length() <= _INT64_BITS:
            return
    where = f"{file.label}: {kind}[{index}]"
    if type(record) is not dict:
        raise DataError(f"{where}: expected an object, found {type(record).__name__}; give a VQA {kind} file")
    for name, types in fields.items():
        if name not in record:
            raise DataError(f"{where}: field {name!r} is missing (found {', '.join(record)}); give a VQA {kind} file")
        if type(record[name]) not in types:
            expected = " or ".join(type_.__name__ for type_ in types)
            raise DataError(
                f"{where}: {name}: expected {expected}, found {record[name]!r:.80}; download the file again"
            )
    raise DataError(f"{where}: question_id {record['question_id']} exceeds 64 bits; use smaller ids")
