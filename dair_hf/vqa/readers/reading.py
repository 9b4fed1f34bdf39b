"""Readers of VQA v2 and of the edited images of IV-VQA and CV-VQA; records that cannot be used are reported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.errors import DataError, explained
from dair_hf.io.arrow import paused_gc
from dair_hf.io.commands import align
from dair_hf.vqa.readers.images import ImageFolder, image_name
from dair_hf.vqa.readers.records import ANNOTATIONS, QUESTIONS, RecordFile, read_records

ANNOTATORS = 10  # answers per question
# The schema of questions and edits. Arrow refuses values of other types in the JSON files.
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
# Fields that identify a question of VQA v2, and an edit: all edits of a question share its id.
QUESTION_KEY, EDIT_KEY = ("question_id",), ("question_id", "image_id")
NO_ANSWERS: Mapping[str, Any] = {"answers": [], "question_type": "", "answer_type": ""}
EXAMPLES_IN_ERROR = 20  # the report lists all
PROBLEMS = {
    "missing_image": "no such image in the folders",
    "unreadable_image": "the image cannot be decoded",
    "no_annotation": "question without annotation",
    "no_question": "annotation without question",
    "duplicate_question": "a question with this id came before",
    "duplicate_annotation": "an annotation with this id came before",
    "image_mismatch": "question and annotation name different images",
    "wrong_number_of_answers": "number of answers is not ten",
    "empty_question": "the question is blank",
    "orphan_edit": "edit of a question that is not among the rows",
    "foreign_edit": "edit of an image other than the question's",
}

FileOrFolder = str | os.PathLike[str]
Record = dict[str, Any]
Problem = tuple[str, str] | None  # key of PROBLEMS, and detail


@dataclass
class VQAReport:
    """Counts of what was read, and the records that were skipped.

    Attributes:
        counts: Name -> count, in the order of the table.
        skipped: Key of `PROBLEMS` -> all records skipped for that reason, as `id` and `detail`.
    """

    counts: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def skip(self, problem: str, record_id: str, detail: str = "") -> None:
        """Add a skipped record under a key of `PROBLEMS`."""
        self.skipped.setdefault(problem, []).append({"id": record_id, "detail": detail})

    def check(self, source: str, kept: int, *, strict: bool = False) -> None:
        """Raise a DataError if no record of a source is left or, with `strict`, if any was skipped."""
        if not kept or (strict and self.skipped):
            problems = ""
            for problem, records in self.skipped.items():
                examples = ", ".join(map(_example, records[:EXAMPLES_IN_ERROR]))
                problems += f"\n  {problem}: {len(records)} ({PROBLEMS[problem]}): {examples}"
            raise DataError(f"{source}: expected records that can be used, got {kept}, and skipped:{problems}")


Reported = tuple[Dataset, VQAReport]


def report_table(reports: Mapping[str, VQAReport]) -> str:
    """Format reports as plain text, one column each: counts, then skipped records with an example.

    Args:
        reports: Column title, such as the split -> report.

    Example:
        >>> print(report_table({"train": VQAReport({"rows": 2}), "val": VQAReport({"rows": 1})}))
              train  val
        rows      2    1
    """
    names = dict.fromkeys(name for report in reports.values() for name in report.counts)
    problems = dict.fromkeys(problem for report in reports.values() for problem in report.skipped)
    rows: list[list[object]] = [["", *reports]]
    rows += [[name, *(report.counts.get(name, "") for report in reports.values())] for name in names]
    examples = [""] * len(rows)
    for problem in problems:
        records = [report.skipped.get(problem, []) for report in reports.values()]
        rows.append([f"skipped: {PROBLEMS[problem]}", *map(len, records)])
        examples.append(f"  e.g. {_example(next(skipped[0] for skipped in records if skipped))}")
    return "\n".join(line + example for line, example in zip(align(rows), examples, strict=True))


def _example(record: dict[str, str]) -> str:
    return f"{record['id']} ({record['detail']})" if record["detail"] else record["id"]


@paused_gc()
def read_vqa(
    questions: FileOrFolder,
    annotations: FileOrFolder | None,
    images: ImageFolder | FileOrFolder,
    *,
    split: str | None = None,
    strict: bool = False,
    verify: bool = False,
) -> Reported:
    """Read the questions of VQA v2, or of any data in its format.

    Args:
        questions: Question file, or a folder or archive that holds it; see `records.read_records`.
        annotations: Annotation file, or its folder or archive. None if the answers are not public.
        images: The images, or the folder that holds them.
        split: "train", "val", "test" or "test-dev"; None if there is only one.
        strict: Raise an error instead of skipping records.
        verify: Decode every image and skip questions about damaged ones, at about 5 ms per image and core. Otherwise
            `load_image` raises an error when it loads a damaged image.

    Returns:
        Rows with `ROW_FEATURES` in the order of the questions, and a report of the skipped records. Without
        annotations the answers and types are empty.

    Raises:
        DataError: A file is missing or has another format; two image files have the same id; no question is left or,
            with `strict`, one is skipped.
    """
    asked, answered, report = _read_files(questions, annotations, split)
    with _explained(asked, answered):
        entries = _matched(asked, answered, QUESTION_KEY, report)
        entries = _with_images(entries, images, QUESTION_KEY, report, verify)
        for entry in entries:
            entry["row_id"] = str(entry["question_id"])
        report.counts |= {"rows": len(entries), "images": len({entry["image"] for entry in entries})}
        report.check(asked.label, len(entries), strict=strict)
        return _dataset(entries, ROW_FEATURES), report


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
) -> Reported:
    """Read the edits of IV-VQA or CV-VQA; a question may have any number of them.

    An edit has the id of the original question. Its image id is the original one, an underscore, and the id of what
    was removed.

    Args:
        rows: Original questions, from `read_vqa`.
        questions: Question file of the edits, given as for `read_vqa`.
        annotations: Their annotation file.
        images: The edited images.
        split: As for `read_vqa`.
        strict: As for `read_vqa`.
        verify: As for `read_vqa`.

    Returns:
        Edits with `EDIT_FEATURES` in the order of the file, and a report of the skipped records. The report also counts
        the edits whose answers differ from the original: none in IV-VQA, all in CV-VQA.
    """
    asked, answered, report = _read_files(questions, annotations, split)
    ids = rows["question_id"][:]
    image_of = dict(zip(ids, rows["image_id"][:], strict=True))
    answers_of = dict(zip(ids, rows["answers"][:], strict=True))

    def belongs(edit: Record) -> Problem:
        image = image_of.get(edit["question_id"])
        if image is None:
            return "orphan_edit", ""
        if image_name(edit["image_id"].rpartition("_")[0]) != image:
            return "foreign_edit", f"the question is about image {image}"
        return None

    with _explained(asked, answered):
        entries = _kept(_matched(asked, answered, EDIT_KEY, report), belongs, EDIT_KEY, report)
        entries = _with_images(entries, images, EDIT_KEY, report, verify)
        report.counts |= {
            "edits": len(entries),
            "edited images": len({entry["image"] for entry in entries}),
            "questions with edits": len({entry["question_id"] for entry in entries}),
            "edits with other answers": sum(
                sorted(entry["answers"]) != sorted(answers_of[entry["question_id"]]) for entry in entries
            ),
        }
        report.check(asked.label, len(entries), strict=strict)
        return _dataset(entries, EDIT_FEATURES), report


def _read_files(
    questions: FileOrFolder, annotations: FileOrFolder | None, split: str | None
) -> tuple[RecordFile, RecordFile | None, VQAReport]:
    asked = read_records(questions, QUESTIONS, split)
    answered = None if annotations is None else read_records(annotations, ANNOTATIONS, split)
    counts = {"questions": len(asked.records), "annotations": len(answered.records) if answered else 0}
    return asked, answered, VQAReport(counts)


def _explained(asked: RecordFile, answered: RecordFile | None) -> contextlib.AbstractContextManager[None]:
    """Name the files if a field is missing or has another type."""
    labels = asked.label if answered is None else f"{asked.label} or {answered.label}"
    return explained(f"{labels}: malformed record", LookupError, TypeError, AttributeError, ArithmeticError, ValueError)


def _matched(asked: RecordFile, answered: RecordFile | None, key: tuple[str, ...], report: VQAReport) -> list[Record]:
    """Return the questions merged with their annotations."""
    for file in (asked, answered):
        for record in file.records if file else ():
            record["image_id"] = image_name(record["image_id"])
    annotations: dict[Any, Record] = {}
    for annotation in answered.records if answered else ():
        if annotations.setdefault(_key(annotation, key), annotation) is not annotation:
            report.skip("duplicate_annotation", _record_id(annotation, key))
    seen: set[Any] = set()

    def problem(question: Record) -> Problem:
        name = _key(question, key)
        if name in seen:
            return "duplicate_question", ""
        seen.add(name)
        if not question["question"].strip():
            return "empty_question", ""
        if answered is None:
            return None
        if (match := annotations.get(name)) is None:
            return "no_annotation", ""
        if len(match["answers"]) != ANNOTATORS:
            return "wrong_number_of_answers", f"{len(match['answers'])} answers"
        if match["image_id"] != question["image_id"]:
            return "image_mismatch", f"question: image {question['image_id']}, annotation: image {match['image_id']}"
        return None

    questions = _kept(asked.records, problem, key, report)
    for name, annotation in annotations.items():
        if name not in seen:
            report.skip("no_question", _record_id(annotation, key))
    # An annotation's `multiple_choice_answer` is not read: CV-VQA stores there the answer before the edit.
    return [{**annotations.get(_key(question, key), NO_ANSWERS), **question} for question in questions]


def _with_images(
    entries: Sequence[Record],
    images: ImageFolder | FileOrFolder,
    key: tuple[str, ...],
    report: VQAReport,
    verify: bool,
) -> list[Record]:
    """Return the entries whose images exist and, with `verify`, can be decoded; add the paths."""
    folder = images if isinstance(images, ImageFolder) else ImageFolder(images)
    for entry in entries:
        entry["image"] = folder.find(entry["image_id"])
    found = _kept(
        entries, lambda entry: None if entry["image"] else ("missing_image", f"image {entry['image_id']}"), key, report
    )
    damaged = folder.unreadable(entry["image"] for entry in found) if verify else {}

    def problem(entry: Record) -> Problem:
        path = entry["image"]
        return ("unreadable_image", f"{path}: {damaged[path]}") if path in damaged else None

    return _kept(found, problem, key, report)


def _kept(
    records: Iterable[Record], problem_of: Callable[[Record], Problem], key: tuple[str, ...], report: VQAReport
) -> list[Record]:
    """Return the records without a problem, and report the others."""
    kept = []
    for record in records:
        if problem := problem_of(record):
            report.skip(problem[0], _record_id(record, key), problem[1])
        else:
            kept.append(record)
    return kept


def _key(record: Record, fields: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(record[name] for name in fields)


def _record_id(record: Record, key: tuple[str, ...]) -> str:
    return "/".join(map(str, _key(record, key)))


def _dataset(entries: Sequence[Record], features: Features) -> Dataset:
    schema = features.arrow_schema
    columns = [pa.array([entry[field.name] for entry in entries], field.type) for field in schema]
    return Dataset(InMemoryTable(pa.table(columns, schema=schema)), info=DatasetInfo(features=features.copy()))
