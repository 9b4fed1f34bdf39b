"""Matching of questions, annotations and images: one defect at a time among valid records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vqa.readers.images import ImageFolder
from dair_hf.vqa.readers.reading import (
    Entry,
    by_edit,
    by_question,
    drop_foreign_edits,
    drop_image_mismatches,
    find_images,
    match_annotations,
)
from dair_hf.vqa.readers.records import Annotation, Question, RecordFile
from dair_hf.vqa.readers.report import VQAReport


def question(question_id: int, image_id: int | str = 9, text: str = "How many?") -> dict[str, Any]:
    return {"question_id": question_id, "image_id": image_id, "question": text}


def annotation(question_id: int, image_id: int | str = 9, answers: int = 10) -> dict[str, Any]:
    return {
        "question_id": question_id,
        "image_id": image_id,
        "question_type": "how many",
        "answer_type": "number",
        "answers": ["4"] * answers,
    }


def matched(
    questions: list[dict[str, Any]],
    annotations: list[dict[str, Any]] | None,
    key: Callable[[Any], tuple[Any, ...]] = by_question,
) -> tuple[list[tuple[Any, ...]], dict[str, list[tuple[str, str]]]]:
    """Return the kept keys and the skipped records; check that each question has its own annotation."""
    report = VQAReport()
    answered = None if annotations is None else RecordFile("a", None, annotations)
    entries = match_annotations(RecordFile("q", None, questions), answered, key, report)
    for entry in entries:
        assert entry.image == ""
        assert entry.annotation is None if annotations is None else key(entry.annotation) == key(entry.question)
    return [key(entry.question) for entry in entries], {
        problem: [tuple(record) for record in records] for problem, records in report.skipped.items()
    }


def test_valid_records_are_all_kept_in_the_order_of_the_questions() -> None:
    assert matched([question(3), question(1)], [annotation(1), annotation(3)]) == ([(3,), (1,)], {})
    assert matched([question(3), question(1)], None) == ([(3,), (1,)], {})


@pytest.mark.parametrize(
    ("questions", "annotations", "skipped"),
    [
        ([question(1), question(2)], [annotation(1)], {"no_annotation": [("2", "")]}),
        ([question(1)], [annotation(1), annotation(2), annotation(3)], {"no_question": [("2", ""), ("3", "")]}),
        ([question(1)] * 3, [annotation(1)], {"duplicate_question": [("1", ""), ("1", "")]}),
        ([question(1)], [annotation(1), annotation(1)], {"duplicate_annotation": [("1", "")]}),
        ([question(1), question(2, text=" \n")], [annotation(1), annotation(2)], {"empty_question": [("2", "")]}),
        (
            [question(1), question(2), question(3)],
            [annotation(1), annotation(2, answers=9), annotation(3, answers=0)],
            {"wrong_number_of_answers": [("2", "9 answers"), ("3", "0 answers")]},
        ),
    ],
)
def test_each_defect_is_reported(
    questions: list[dict[str, Any]], annotations: list[dict[str, Any]], skipped: dict[str, list[tuple[str, str]]]
) -> None:
    assert matched(questions, annotations) == ([(1,)], skipped)


def test_edits_of_one_question_differ_by_their_images() -> None:
    questions = [question(1, "9_5"), question(1, "9_7"), question(1, "9_7"), question(1, "9_8")]
    annotations = [annotation(1, "9_7"), annotation(1, "9_5"), annotation(1, "9_6")]
    kept, skipped = matched(questions, annotations, by_edit)
    assert kept == [(1, "9_5"), (1, "9_7")]
    assert skipped == {
        "duplicate_question": [("1/9_7", "")],
        "no_annotation": [("1/9_8", "")],
        "no_question": [("1/9_6", "")],
    }


def test_files_of_two_splits_are_refused() -> None:
    asked, answered = RecordFile("q", "train2014", [question(1)]), RecordFile("a", "val2014", [annotation(1)])
    with pytest.raises(
        DataError, match="a contains annotations of val2014, but q contains questions of train2014; give files"
    ):
        match_annotations(asked, answered, by_question, VQAReport())
    assert match_annotations(asked, answered._replace(subset=None), by_question, VQAReport())
    assert match_annotations(asked, answered._replace(subset="train2014"), by_question, VQAReport())


def entry(image_id: str, question_id: int = 1, other: str | None = None) -> Entry:
    answers = Annotation(question_id, other or image_id, "how many", "number", ["4"] * 10)
    return Entry(Question(question_id, image_id, "How many?"), answers)


def test_question_and_annotation_must_name_one_image() -> None:
    report = VQAReport()
    entries = [entry("9"), entry("25", 2, other="26"), entry("30")._replace(annotation=None)]
    assert drop_image_mismatches(entries, report) == [entries[0], entries[2]]
    assert report.skipped == {"image_mismatch": [("2", "question: image 25, annotation: image 26")]}


def test_an_edit_must_be_of_a_known_question_and_its_image() -> None:
    report = VQAReport()
    valid = entry("000000000009_000000000005", 9000)
    entries = [
        valid,
        entry("000000000009_000000000005", 9001),
        entry("000000000025_000000000005", 9000),
        entry("9", 9000),
        entry("000000000009", 9000),
        entry("_000000000009", 9000),
    ]
    assert drop_foreign_edits(entries, {9000: "9", 25000: "25"}, report) == [valid]
    detail = "the question is about image 9"
    assert report.skipped == {
        "orphan_edit": [("9001/000000000009_000000000005", "")],
        "foreign_edit": [
            ("9000/000000000025_000000000005", detail),
            ("9000/9", detail),
            ("9000/000000000009", detail),
            ("9000/_000000000009", detail),
        ],
    }


def test_edits_of_images_with_names() -> None:
    edit = entry("kitchen_3_cup", 7)
    assert drop_foreign_edits([edit], {7: "kitchen_3"}, VQAReport()) == [edit]


def test_missing_and_unreadable_images(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "COCO_val2014_000000000009.png")
    (tmp_path / "COCO_val2014_000000000025.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    images = ImageFolder(tmp_path)
    good, damaged, missing = entry("9", 9000), entry("25", 25000), entry("30", 30000)
    asked = [good, damaged, missing, damaged]

    unverified = VQAReport()
    kept = find_images(asked, images, by_question, unverified, verify=False)
    paths = [str(tmp_path / f"COCO_val2014_0000000000{number}.png") for number in ("09", "25", "25")]
    assert kept == [asked[0]._replace(image=paths[0]), *[damaged._replace(image=path) for path in paths[1:]]]
    assert unverified.skipped == {"missing_image": [("30000", "image 30")]}

    verified = VQAReport()
    assert find_images(asked, images, by_question, verified, verify=True) == kept[:1]
    assert [(record.id, record.detail.partition(": ")[0]) for record in verified.skipped["unreadable_image"]] == [
        ("25000", paths[1])
    ] * 2
    assert all(len(record.detail) > len(paths[1]) + 2 for record in verified.skipped["unreadable_image"])
