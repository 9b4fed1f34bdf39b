"""Read VQA v2, and the edited images of IV-VQA and CV-VQA, as rows and edits; what is left out is reported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.errors import DataError
from dair_hf.io.arrow import paused_gc, to_python
from dair_hf.vqa.readers.images import ImageFolder
from dair_hf.vqa.readers.matching import (
    Entry,
    by_edit,
    by_question,
    of_one_image,
    of_these_questions,
    with_answers,
    with_images,
)
from dair_hf.vqa.readers.records import ANNOTATIONS, QUESTIONS, read_records
from dair_hf.vqa.readers.report import VQAReport

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
        questions: The questions file, or a folder or archive that holds it; see `records.read_records`.
        annotations: The annotations file likewise, perhaps the same folder; None where the answers are not public.
        images: The images, or the folder they are in.
        split: Which split, where a folder holds several: "train", "val", "test", "test-dev".
        strict: Refuse the data where anything would be left out.
        verify: Decode every image, to leave out those that cannot be read: about 5 ms an image and core. Without it
            `load_image` meets them later.

    Returns:
        Rows with `ROW_FEATURES`, in the order of the questions, and the report of what was left out. Without
        annotations the types are empty and there are no answers.

    Raises:
        DataError: A file is absent, not JSON or in another format; questions and annotations are of two splits; two
            image files have one id; nothing is left, or with `strict` something is left out.

    Example:
        >>> rows, report = read_vqa("vqa", "vqa", "Images/val2014", split="val")  # doctest: +SKIP
        >>> print(summary_table({"val": report}))  # doctest: +SKIP
    """
    asked = read_records(questions, QUESTIONS, split)
    answered = None if annotations is None else read_records(annotations, ANNOTATIONS, split)
    folder = images if isinstance(images, ImageFolder) else ImageFolder(images)
    report = VQAReport({"questions": len(asked.records), "annotations": len(answered.records) if answered else 0})
    matched = of_one_image(with_answers(asked, answered, by_question, report), report)
    entries = with_images(matched, folder, by_question, report, verify=verify)
    report.counts |= {"rows": len(entries), "images": len({entry.image for entry in entries})}
    report.check(asked.label, len(entries), strict=strict)
    columns = {
        "row_id": [str(entry.question.question_id) for entry in entries],
        **_shared_columns(entries),
        "question_type": [entry.annotation.question_type if entry.annotation else "" for entry in entries],
        "answer_type": [entry.annotation.answer_type if entry.annotation else "" for entry in entries],
    }
    return _dataset(columns, ROW_FEATURES, asked.label), report


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
    """Read the edits of IV-VQA or CV-VQA: any number of them for each question.

    An edit carries the id of the original question, and an image id that is the original's, an underscore, and the id
    of what was removed.

    Args:
        rows: The original questions, from `read_vqa`.
        questions: The questions file of the edits, or a folder or archive that holds it; see `records.read_records`.
        annotations: The annotations file likewise.
        images: The edited images, or the folder they are in.
        split: Which split, where a folder holds several.
        strict: Refuse the data where anything would be left out.
        verify: Decode every image, to leave out those that cannot be read.

    Returns:
        Edits with `EDIT_FEATURES`, in the order of the file, and the report of what was left out. It also counts the
        edits whose answers are not the original's: none of IV-VQA, all of CV-VQA.

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
    asked = read_records(questions, QUESTIONS, split)
    answered = read_records(annotations, ANNOTATIONS, split)
    folder = images if isinstance(images, ImageFolder) else ImageFolder(images)
    report = VQAReport({"questions": len(asked.records), "annotations": len(answered.records)})
    image_of = dict(zip(rows["question_id"][:], rows["image_id"][:], strict=True))
    matched = of_these_questions(with_answers(asked, answered, by_edit, report), image_of, report)
    entries = with_images(matched, folder, by_edit, report, verify=verify)
    report.counts |= {
        "edits": len(entries),
        "edited images": len({entry.image for entry in entries}),
        "questions with edits": len({entry.question.question_id for entry in entries}),
        "edits with other answers": _changed(entries, rows),
    }
    report.check(asked.label, len(entries), strict=strict)
    return _dataset(_shared_columns(entries), EDIT_FEATURES, asked.label), report


def _changed(entries: Sequence[Entry], rows: Dataset) -> int:
    """How many edits have other answers than their original, in whatever order."""
    wanted = {entry.question.question_id for entry in entries}
    ids = rows["question_id"][:]
    places = [place for place, question_id in enumerate(ids) if question_id in wanted]
    answers = to_python(rows.select_columns(["answers"]).with_format("arrow").select(places)[:]["answers"])
    before = {ids[place]: sorted(found) for place, found in zip(places, answers, strict=True)}
    return sum(
        sorted(entry.annotation.answers) != before[entry.question.question_id]
        for entry in entries
        if entry.annotation is not None
    )


def _shared_columns(entries: Sequence[Entry]) -> dict[str, list[Any]]:
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
    except UnicodeEncodeError as error:  # JSON may hold one half of a surrogate pair
        raise DataError(f"{label}: text that is not Unicode, {error.object!r:.80}; correct it in the file") from error
    return Dataset(InMemoryTable(table), info=DatasetInfo(features=features.copy()))
