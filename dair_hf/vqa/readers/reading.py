"""Readers of VQA v2 and of the edited images of IV-VQA and CV-VQA; records that cannot be used are reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.errors import DataError
from dair_hf.io.arrow import paused_gc
from dair_hf.vqa.readers.images import ImageFolder, image_name
from dair_hf.vqa.readers.records import (
    ANNOTATIONS,
    QUESTIONS,
    Annotation,
    Question,
    RecordFile,
    annotations_of,
    questions_of,
    read_records,
)
from dair_hf.vqa.readers.report import VQAReport

ANNOTATORS = 10  # answers per question
EDIT_FEATURES = Features(
    {
        "question_id": Value("int64"),
        "image_id": Value("string"),
        "image": Value("string"),
        "question": Value("string"),
        "answers": List(Value("string")),
    }
)
ROW_FEATURES = Features(
    {
        "row_id": Value("string"),
        **EDIT_FEATURES,
        "question_type": Value("string"),
        "answer_type": Value("string"),
    }
)

FileOrFolder = str | os.PathLike[str]
Key = Callable[[Question | Annotation], tuple[Any, ...]]


class Entry(NamedTuple):
    """Question with its annotation and image."""

    question: Question
    annotation: Annotation | None
    image: str = ""


@paused_gc()
def read_vqa(
    questions: FileOrFolder,
    annotations: FileOrFolder | None,
    images: ImageFolder | FileOrFolder,
    *,
    split: str | None = None,
    strict: bool = False,
    verify: bool = False,
) -> tuple[Dataset, VQAReport]:
    """Read the questions of VQA v2, or of any data in its format.

    Args:
        questions: Question file, or a folder or archive that holds it; see `records.read_records`.
        annotations: Annotation file likewise, possibly the same folder. None if the answers are not public.
        images: The images, or the folder that holds them.
        split: "train", "val", "test" or "test-dev"; None if there is only one.
        strict: Raise an error instead of skipping records.
        verify: Decode every image and skip questions about damaged ones, at about 5 ms per image and core. Otherwise
            `load_image` raises an error when it loads a damaged image.

    Returns:
        Rows with `ROW_FEATURES` in the order of the questions, and a report of the skipped records. Without
        annotations the answers and types are empty.

    Raises:
        DataError: A file is missing, is not JSON or has another format; questions and annotations are of different
            splits; two image files have the same id; no question is left or, with `strict`, one is skipped.

    Example:
        >>> rows, report = read_vqa("vqa", "vqa", "Images/val2014", split="val")  # doctest: +SKIP
        >>> print(summary_table({"val": report}))  # doctest: +SKIP
    """
    question_file = read_records(questions, QUESTIONS, split)
    annotation_file = None if annotations is None else read_records(annotations, ANNOTATIONS, split)
    folder = images if isinstance(images, ImageFolder) else ImageFolder(images)
    annotation_count = len(annotation_file.records) if annotation_file else 0
    report = VQAReport({"questions": len(question_file.records), "annotations": annotation_count})
    entries = drop_image_mismatches(match_annotations(question_file, annotation_file, by_question, report), report)
    entries = find_images(entries, folder, by_question, report, verify=verify)
    report.counts |= {"rows": len(entries), "images": len({entry.image for entry in entries})}
    report.check(question_file.label, len(entries), strict=strict)
    columns = {
        "row_id": [str(entry.question.question_id) for entry in entries],
        **_edit_columns(entries),
        "question_type": [entry.annotation.question_type if entry.annotation else "" for entry in entries],
        "answer_type": [entry.annotation.answer_type if entry.annotation else "" for entry in entries],
    }
    return _dataset(columns, ROW_FEATURES, question_file.label), report


@paused_gc()
def read_edits(
    rows: Dataset,
    questions: FileOrFolder,
    annotations: FileOrFolder,
    images: ImageFolder | FileOrFolder,
    *,
    split: str | None = None,
    strict: bool = False,
    verify: bool = False,
) -> tuple[Dataset, VQAReport]:
    """Read the edits of IV-VQA or CV-VQA; a question may have any number of them.

    An edit has the id of the original question. Its image id is the original one, an underscore, and the id of what
    was removed.

    Args:
        rows: Original questions, from `read_vqa`.
        questions: Question file of the edits, or a folder or archive that holds it; see `records.read_records`.
        annotations: Annotation file likewise.
        images: The edited images, or the folder that holds them.
        split: "train", "val", "test" or "test-dev"; None if there is only one.
        strict: Raise an error instead of skipping records.
        verify: Decode every image and skip damaged ones.

    Returns:
        Edits with `EDIT_FEATURES` in the order of the file, and a report of the skipped records. The report also counts
        the edits whose answers differ from the original: none in IV-VQA, all in CV-VQA.

    Raises:
        DataError: As `read_vqa`, or a column of the rows is missing.

    Example:
        >>> edits, report = read_edits(rows, "cv_vqa", "cv_vqa", "CV_VQA/val2014", split="val")  # doctest: +SKIP
    """
    if missing := {"question_id", "image_id", "answers"} - set(rows.column_names):
        raise DataError(
            f"edits: the rows lack column {', '.join(sorted(missing))} (found {', '.join(rows.column_names)}); read "
            "them with read_vqa"
        )
    question_file = read_records(questions, QUESTIONS, split)
    annotation_file = read_records(annotations, ANNOTATIONS, split)
    folder = images if isinstance(images, ImageFolder) else ImageFolder(images)
    report = VQAReport({"questions": len(question_file.records), "annotations": len(annotation_file.records)})
    image_of = dict(zip(rows["question_id"][:], rows["image_id"][:], strict=True))
    entries = drop_foreign_edits(match_annotations(question_file, annotation_file, by_edit, report), image_of, report)
    entries = find_images(entries, folder, by_edit, report, verify=verify)
    report.counts |= {
        "edits": len(entries),
        "edited images": len({entry.image for entry in entries}),
        "questions with edits": len({entry.question.question_id for entry in entries}),
        "edits with other answers": _count_changed(entries, rows),
    }
    report.check(question_file.label, len(entries), strict=strict)
    return _dataset(_edit_columns(entries), EDIT_FEATURES, question_file.label), report


def by_question(record: Question | Annotation) -> tuple[Any, ...]:
    """Return the key that identifies a question of VQA v2."""
    return (record.question_id,)


def by_edit(record: Question | Annotation) -> tuple[Any, ...]:
    """Return the key that identifies an edit: all edits of a question share its id."""
    return (record.question_id, record.image_id)


def match_annotations(
    question_file: RecordFile, annotation_file: RecordFile | None, key: Key, report: VQAReport
) -> list[Entry]:
    """Match questions with annotations."""
    annotations: dict[Any, Annotation] = {}
    if annotation_file is not None:
        if question_file.subset and annotation_file.subset and question_file.subset != annotation_file.subset:
            raise DataError(
                f"{annotation_file.label} contains annotations of {annotation_file.subset}, but {question_file.label} "
                f"contains questions of {question_file.subset}; give files of one split"
            )
        for annotation in annotations_of(annotation_file):
            if annotations.setdefault(key(annotation), annotation) is not annotation:
                report.skip("duplicate_annotation", _record_id(annotation, key))
    seen: set[Any] = set()
    entries = []
    for question in questions_of(question_file):
        name = key(question)
        match = annotations.get(name)
        if name in seen:
            report.skip("duplicate_question", _record_id(question, key))
        elif not question.question.strip():
            report.skip("empty_question", _record_id(question, key))
        elif annotation_file is not None and match is None:
            report.skip("no_annotation", _record_id(question, key))
        elif match is not None and len(match.answers) != ANNOTATORS:
            report.skip("wrong_number_of_answers", _record_id(question, key), f"{len(match.answers)} answers")
        else:
            entries.append(Entry(question, match))
        seen.add(name)
    for name, annotation in annotations.items():
        if name not in seen:
            report.skip("no_question", _record_id(annotation, key))
    return entries


def drop_image_mismatches(entries: Iterable[Entry], report: VQAReport) -> list[Entry]:
    """Return the entries whose question and annotation name the same image."""
    kept = []
    for entry in entries:
        question, annotation, _ = entry
        if annotation is None or annotation.image_id == question.image_id:
            kept.append(entry)
        else:
            detail = f"question: image {question.image_id}, annotation: image {annotation.image_id}"
            report.skip("image_mismatch", _record_id(question, by_question), detail)
    return kept


def drop_foreign_edits(entries: Iterable[Entry], image_of: Mapping[int, str], report: VQAReport) -> list[Entry]:
    """Return the edits that belong to the given questions and to their images."""
    kept = []
    for entry in entries:
        question = entry.question
        image = image_of.get(question.question_id)
        if image is None:
            report.skip("orphan_edit", _record_id(question, by_edit))
        elif image_name(question.image_id.rpartition("_")[0]) != image:
            report.skip("foreign_edit", _record_id(question, by_edit), f"the question is about image {image}")
        else:
            kept.append(entry)
    return kept


def find_images(
    entries: Iterable[Entry], images: ImageFolder, key: Key, report: VQAReport, *, verify: bool
) -> list[Entry]:
    """Add the paths of the images."""
    kept = []
    for entry in entries:
        path = images.find(entry.question.image_id)
        if path is None:
            report.skip("missing_image", _record_id(entry.question, key), f"image {entry.question.image_id}")
        else:
            kept.append(entry._replace(image=path))
    if not verify:
        return kept
    problems = images.unreadable(entry.question.image_id for entry in kept)
    for entry in kept:
        image_id = entry.question.image_id
        if image_id in problems:
            report.skip("unreadable_image", _record_id(entry.question, key), f"{entry.image}: {problems[image_id]}")
    return [entry for entry in kept if entry.question.image_id not in problems]


def _record_id(record: Question | Annotation, key: Key) -> str:
    return "/".join(map(str, key(record)))


def _count_changed(entries: Sequence[Entry], rows: Dataset) -> int:
    """Count edits whose answers differ from the original ones in more than their order."""
    edited = {entry.question.question_id for entry in entries}
    ids = rows["question_id"][:]
    positions = [position for position, question_id in enumerate(ids) if question_id in edited]
    column = rows.select_columns(["answers"]).with_format("arrow").select(positions)[:]["answers"].to_pylist()
    originals = {ids[position]: sorted(answers) for position, answers in zip(positions, column, strict=True)}
    return sum(
        sorted(entry.annotation.answers) != originals[entry.question.question_id]
        for entry in entries
        if entry.annotation is not None
    )


def _edit_columns(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    return {
        "question_id": [entry.question.question_id for entry in entries],
        "image_id": [entry.question.image_id for entry in entries],
        "image": [entry.image for entry in entries],
        "question": [entry.question.question for entry in entries],
        "answers": [entry.annotation.answers if entry.annotation else [] for entry in entries],
    }


def _dataset(columns: Mapping[str, list[Any]], features: Features, label: str) -> Dataset:
    schema = features.arrow_schema
    try:
        table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    except UnicodeEncodeError as error:  # JSON can contain half of a surrogate pair
        raise DataError(f"{label}: invalid Unicode in {error.object!r:.80}; correct it in the file") from error
    return Dataset(InMemoryTable(table), info=DatasetInfo(features=features.copy()))
