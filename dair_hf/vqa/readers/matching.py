"""Questions matched with their answers and images; what has no match is left out and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.vqa.readers.images import ImageFolder, image_name
from dair_hf.vqa.readers.records import Annotation, Question, RecordFile, annotations_of, questions_of
from dair_hf.vqa.readers.report import VQAReport

ANSWERS = 10  # of each question, by as many annotators
Key = Callable[[Question | Annotation], tuple[Any, ...]]


class Entry(NamedTuple):
    """A question with what belongs to it.

    Attributes:
        question: The question.
        annotation: Its answers; None where the file with the answers was not given.
        image: Path of its image; empty until it was looked for.
    """

    question: Question
    annotation: Annotation | None
    image: str = ""


def by_question(record: Question | Annotation) -> tuple[Any, ...]:
    """What tells the questions of VQA v2 apart.

    Example:
        >>> by_question(Question(262148000, "262148", "Where is he looking?"))
        (262148000,)
    """
    return (record.question_id,)


def by_edit(record: Question | Annotation) -> tuple[Any, ...]:
    """What tells edits apart: a question has several, which share its id.

    Example:
        >>> by_edit(Question(262148000, "000000262148_000000000005", "Where is he looking?"))
        (262148000, '000000262148_000000000005')
    """
    return (record.question_id, record.image_id)


def record_name(key: tuple[Any, ...]) -> str:
    """A key as the report writes it.

    Example:
        >>> record_name((262148000, "000000262148_000000000005"))
        '262148000/000000262148_000000000005'
    """
    return "/".join(map(str, key))


def with_answers(asked: RecordFile, answered: RecordFile | None, key: Key, report: VQAReport) -> list[Entry]:
    """Each question with its annotation.

    Args:
        asked: The questions.
        answered: The annotations; None: there are none to look for.
        key: `by_question` or `by_edit`.
        report: Gets what is left out: blank questions, questions and annotations without the other or after another of
            the same key, annotations that do not hold ten answers.

    Returns:
        The others, in the order of the questions.

    Raises:
        DataError: The files are of different splits, or a record is malformed.
    """
    if answered is not None and asked.subset and answered.subset and asked.subset != answered.subset:
        raise DataError(
            f"{answered.label}: holds annotations of {answered.subset}, {asked.label} questions of {asked.subset}; "
            "give files of one split"
        )
    given: dict[Any, Annotation] = {}
    for annotation in annotations_of(answered) if answered is not None else ():
        if given.setdefault(key(annotation), annotation) is not annotation:
            report.skip("duplicate_annotation", record_name(key(annotation)))
    seen: set[Any] = set()
    entries = []
    for question in questions_of(asked):
        name = key(question)
        found = given.get(name)
        if name in seen:
            report.skip("duplicate_question", record_name(name))
        elif not question.question.strip():
            report.skip("empty_question", record_name(name))
        elif answered is not None and found is None:
            report.skip("no_annotation", record_name(name))
        elif found is not None and len(found.answers) != ANSWERS:
            report.skip("wrong_number_of_answers", record_name(name), f"{len(found.answers)} answers")
        else:
            entries.append(Entry(question, found))
        seen.add(name)
    for name in given:
        if name not in seen:
            report.skip("no_question", record_name(name))
    return entries


def of_one_image(entries: Iterable[Entry], report: VQAReport) -> list[Entry]:
    """The entries whose annotation is about the same image as the question."""
    kept = []
    for entry in entries:
        question, annotation, _ = entry
        if annotation is None or annotation.image_id == question.image_id:
            kept.append(entry)
        else:
            detail = f"question: image {question.image_id}, annotation: image {annotation.image_id}"
            report.skip("image_mismatch", record_name(by_question(question)), detail)
    return kept


def of_these_questions(entries: Iterable[Entry], image_of: Mapping[int, str], report: VQAReport) -> list[Entry]:
    """The edits of these questions that are edits of their images.

    Args:
        entries: Edits: their image id is that of the original image, an underscore, and what was removed.
        image_of: Id of a question -> id of its image, as `images.image_name` writes it.
        report: Gets edits of other questions, and of other images.
    """
    kept = []
    for entry in entries:
        question = entry.question
        image = image_of.get(question.question_id)
        if image is None:
            report.skip("orphan_edit", record_name(by_edit(question)))
        elif image_name(question.image_id.rpartition("_")[0]) != image:
            report.skip("foreign_edit", record_name(by_edit(question)), f"the question is about image {image}")
        else:
            kept.append(entry)
    return kept


def with_images(
    entries: Iterable[Entry], images: ImageFolder, key: Key, report: VQAReport, *, verify: bool
) -> list[Entry]:
    """The entries with the paths of their images.

    Args:
        entries: Questions.
        images: Where to look.
        key: `by_question` or `by_edit`.
        report: Gets those whose image is missing or cannot be read.
        verify: Whether to read the images.

    Raises:
        DataError: Two files have the id of an image.
    """
    found = []
    for entry in entries:
        path = images.find(entry.question.image_id)
        if path is None:
            name = record_name(key(entry.question))
            report.skip("missing_image", name, f"image {entry.question.image_id}")
        else:
            found.append(entry._replace(image=path))
    return _readable(found, images, key, report) if verify else found


def _readable(entries: Sequence[Entry], images: ImageFolder, key: Key, report: VQAReport) -> list[Entry]:
    damaged = images.unreadable(entry.question.image_id for entry in entries)
    kept = []
    for entry in entries:
        reason = damaged.get(entry.question.image_id)
        if reason is None:
            kept.append(entry)
        else:
            report.skip("unreadable_image", record_name(key(entry.question)), f"{entry.image}: {reason}")
    return kept
