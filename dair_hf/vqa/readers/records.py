"""The questions and annotations files of VQA v2 and of its edits: found, parsed and checked field by field."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.files import decode_json
from dair_hf.vqa.readers.images import image_name

QUESTIONS, ANNOTATIONS = "questions", "annotations"
# v2_OpenEnded_mscoco_train2014_questions.json, v2_mscoco_train2014_annotations.json: the subset stands before the kind.
_NAME = re.compile(r"(?:(?:.*_)?(?P<subset>[A-Za-z-]+\d*)_)?(?P<kind>questions|annotations)\.json")
_ARCHIVE = re.compile(r".*(?:questions|annotations).*\.(?:zip|tar|tgz|tar\.\w+)", re.IGNORECASE)
_QUESTION = {"question_id": (int,), "image_id": (int, str), "question": (str,)}
_ANNOTATION = {
    "question_id": (int,),
    "image_id": (int, str),
    "question_type": (str,),
    "answer_type": (str,),
    "answers": (list,),
}
_INT64_BITS = 63
_YEAR = string.digits  # train2014 is a train split


class Question(NamedTuple):
    """One question.

    Attributes:
        question_id: Its id; an edit's is that of the original question.
        image_id: As `images.image_name` writes it.
        question: The text.
    """

    question_id: int
    image_id: str
    question: str


class Annotation(NamedTuple):
    """The answers to one question.

    Attributes:
        question_id: Of the question.
        image_id: As `images.image_name` writes it.
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
    """One JSON file, parsed.

    Attributes:
        label: Its name in messages.
        subset: What it says it was made from, such as "train2014"; None where it does not say.
        records: Its records, not yet checked.
    """

    label: str
    subset: str | None
    records: list[Any]


def splits_in(source: str | os.PathLike[str]) -> list[str]:
    """The splits that a folder or an archive has questions of, such as `["train", "val"]`.

    Args:
        source: A folder or archive with files under their public names, or a folder of such archives.

    Returns:
        The names in the order of the files; nothing for a file whose name holds no split.

    Raises:
        DataError: Nothing is there, or an archive cannot be read.
    """
    names = [_subset(name).rstrip(_YEAR) for _, name in _members(Source(source), QUESTIONS)]
    return [name for name in dict.fromkeys(names) if name]


def read_records(source: str | os.PathLike[str], kind: str, split: str | None = None) -> RecordFile:
    """Find and parse the questions or the annotations of one split.

    Args:
        source: The JSON file; or a folder, zip or tar archive that holds it under its public name
            (`v2_OpenEnded_mscoco_train2014_questions.json`); or a folder with such an archive in it, whose name must
            hold "questions" or "annotations".
        kind: "questions" or "annotations".
        split: "train", "val", "test", "test-dev", or with the year, "train2014"; None where there is only one. The
            name of a file that is given itself is not looked at.

    Returns:
        The parsed file.

    Raises:
        DataError: There is no such file or more than one, it is not JSON, or holds no list of such records.

    Example:
        >>> read_records("v2_Questions_Val_mscoco.zip", "questions").subset  # doctest: +SKIP
        'val2014'
    """
    opened = Source(source)
    # A file itself may have any name, so that it need not be renamed.
    is_file = opened.path.is_file() and opened.names == [opened.path.name]
    found = [(opened, opened.path.name)] if is_file else list(_members(opened, kind))
    if split is not None and not is_file:
        found = [(holder, name) for holder, name in found if split in _split_names(name)]
    if len(found) != 1:
        what = f"{kind} file" + (f" of split {split!r}" if split is not None else "")
        if not found:
            names = ", ".join(opened.names[:8]) or "nothing"
            raise DataError(
                f"{source}: no {what} named as in the public release, such as "
                f"v2_mscoco_train2014_{kind}.json (found {names}); give the file itself"
            )
        labels = ", ".join(holder.label(name) for holder, name in found)
        raise DataError(f"{source}: more than one {what}: {labels}; give the split, or the file itself")
    ((holder, name),) = found
    return _parsed(holder, name, kind)


def questions_of(file: RecordFile) -> Iterator[Question]:
    """The questions of a file.

    Raises:
        DataError: A record lacks a field or has one of another type; the message holds file, place and field.

    Example:
        >>> record = {"question_id": 9000, "image_id": 9, "question": "How many cups are there?"}
        >>> next(questions_of(RecordFile("q.json", None, [record])))
        Question(question_id=9000, image_id='9', question='How many cups are there?')
    """
    for place, record in enumerate(file.records):
        _check(record, _QUESTION, file, QUESTIONS, place)
        yield Question(record["question_id"], image_name(record["image_id"]), record["question"])


def annotations_of(file: RecordFile) -> Iterator[Annotation]:
    """The annotations of a file.

    `multiple_choice_answer` is not read: in CV-VQA it is the answer before the edit. Neither are the confidence and the
    number of an answer, which nothing here depends on.

    Raises:
        DataError: A record lacks a field or has one of another type; the message holds file, place and field.
    """
    for place, record in enumerate(file.records):
        _check(record, _ANNOTATION, file, ANNOTATIONS, place)
        answers = record["answers"]
        if not set(map(type, answers)) <= {str}:
            wrong = next(index for index, answer in enumerate(answers) if type(answer) is not str)
            raise DataError(
                f"{file.label}: annotations[{place}] (question {record['question_id']}): answers[{wrong}]: found "
                f"{answers[wrong]!r:.80}, expected an object with the text of an answer as 'answer'; fetch the file "
                "again"
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


def _split_names(name: str) -> set[str]:
    subset = _subset(name)
    return {subset, subset.rstrip(_YEAR)}


def _members(source: Source, kind: str) -> Iterator[tuple[Source, str]]:
    """The files of a kind in a source; where there is none, those in the archives in it."""
    files = [PurePosixPath(name) for name in source.names]
    matches = [(file, _NAME.fullmatch(file.name)) for file in files if not file.name.startswith(".")]
    plain = [file.as_posix() for file, match in matches if match and match["kind"] == kind]
    yield from ((source, name) for name in plain)
    if not plain and source.path.is_dir():
        for file in files:
            if _ARCHIVE.fullmatch(file.name):
                yield from _members(Source(source.path / file), kind)


def _parsed(source: Source, name: str, kind: str) -> RecordFile:
    label = source.label(name)
    try:
        content = decode_json(source.read(name), object_hook=_without_wrapping())
    except ValueError:
        content = source.json(name)  # fails likewise, and says where
    if not isinstance(content, dict) or not isinstance(content.get(kind), list):
        found = f"keys {', '.join(content)}" if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{label}: no list of {kind} in it (found {found:.200}); is this a VQA {kind} file?")
    if not content[kind]:
        raise DataError(f"{label}: holds no {kind}; fetch it again")
    subset = content.get("data_subtype")
    return RecordFile(label, subset if isinstance(subset, str) and subset else None, content[kind])


def _without_wrapping() -> Callable[[dict[str, Any]], Any]:
    """Turn each `{"answer": text, "answer_confidence": ..., "answer_id": ...}` into its text while it is parsed.

    There are ten of these dicts per question: kept, they would be four fifths of the memory. Equal texts become one
    string.
    """
    texts: dict[Any, Any] = {}

    def unwrap(found: dict[str, Any]) -> Any:
        if "answer" not in found or "question_id" in found:
            return found
        text = found["answer"]
        return texts.setdefault(text, text) if type(text) is str else found

    return unwrap


def _check(record: Any, fields: Mapping[str, tuple[type, ...]], file: RecordFile, kind: str, place: int) -> None:
    # By exact type: true is no number.
    if type(record) is dict and all(type(record.get(name)) in kinds for name, kinds in fields.items()):
        if record["question_id"].bit_length() <= _INT64_BITS:
            return
    where = f"{file.label}: {kind}[{place}]"
    if type(record) is not dict:
        raise DataError(f"{where}: found {type(record).__name__}, expected an object; is this a VQA {kind} file?")
    for name, kinds in fields.items():
        if name not in record:
            raise DataError(f"{where}: lacks {name!r} (found {', '.join(record)}); is this a VQA {kind} file?")
        if type(record[name]) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise DataError(f"{where}: {name}: found {record[name]!r:.80}, expected {expected}; fetch the file again")
    raise DataError(f"{where}: question_id {record['question_id']} has more than 64 bits; use smaller ids")
