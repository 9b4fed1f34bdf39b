"""VQA v2, IV-VQA and CV-VQA read from files in the public formats, in folders and archives."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vqa.readers.images import load_image
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES, VQAReport, read_edits, read_vqa, report_table
from dair_hf.vqa.readers.records import read_records, vqa_splits
from tests.fixtures.vqa_files import (
    ASKED,
    CV_EDITS,
    IV_EDITS,
    annotations_json,
    edit_jsons,
    questions_json,
    write_cv,
    write_edited_images,
    write_images,
    write_iv,
    write_jsons,
    write_vqa,
    zip_release,
)

QUESTION = {"question_id": 9000, "image_id": 9, "question": "How many?"}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_answers_are_texts(tmp_path: Path) -> None:
    file = read_records(write_vqa(tmp_path), "annotations")
    assert file.label == str(tmp_path / "v2_mscoco_train2014_annotations.json")
    assert [(record["question_id"], record["answers"]) for record in file.records] == [
        (row.question_id, row.ten) for row in reversed(ASKED)
    ]


def test_text_is_read_in_every_unicode_encoding(tmp_path: Path) -> None:
    content = json.dumps({"questions": [{**QUESTION, "question": "Où?"}]}, ensure_ascii=False)
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig"), ("wide", "utf-16")):
        (tmp_path / f"{name}.json").write_bytes(content.encode(encoding))
        assert read_records(tmp_path / f"{name}.json", "questions").records[0]["question"] == "Où?"


def packed(folder: Path, layout: str, target: Path) -> Path:
    """Pack a folder in the given layout, inside another folder as archives often have it."""
    if layout == "below":
        shutil.copytree(folder, target / "vqa" / "Questions")
    elif layout == "zip":
        target.mkdir()
        with zipfile.ZipFile(target / "all.zip", "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"data/{file.name}")
            archive.writestr("__MACOSX/data/._v2_mscoco_train2014_annotations.json", "\0")
    else:
        zip_release(target / "zips", folder, "train")
    return target


@pytest.mark.parametrize("layout", ["below", "zip", "zips in a folder"])
def test_files_are_found_in_folders_and_archives(tmp_path: Path, layout: str) -> None:
    source = packed(write_vqa(tmp_path / "plain"), layout, tmp_path / "packed")
    assert vqa_splits(source) == ["train"]
    for kind in ("questions", "annotations"):
        assert len(read_records(source, kind, "train").records) == len(ASKED)


def test_test_dev_is_not_test(tmp_path: Path) -> None:
    write_vqa(write_vqa(tmp_path, "test"), "test-dev")
    assert vqa_splits(zip_release(tmp_path / "zips", tmp_path, "test")) == ["test"]
    assert vqa_splits(tmp_path) == ["test-dev", "test"]
    assert "_test2015_" in read_records(tmp_path, "questions", "test").label
    assert "_test-dev2015_" in read_records(tmp_path, "questions", "test-dev").label


def test_other_archives_are_not_opened(tmp_path: Path) -> None:
    (write_vqa(tmp_path) / "train2014.zip").write_bytes(b"images, say")
    assert vqa_splits(tmp_path) == ["train"]
    (tmp_path / "v2_Questions_Val_mscoco.zip").write_bytes(b"half a download")
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with pytest.raises(DataError, match=r"v2_Questions_Val_mscoco\.zip"):
        read_records(tmp_path, "questions")


@pytest.fixture
def vqa(tmp_path: Path) -> Path:
    """Write VQA v2, IV-VQA and CV-VQA of the training split with all images."""
    write_images(write_vqa(tmp_path / "vqa").parent / "images")
    write_edited_images(write_iv(tmp_path / "iv") / "images", IV_EDITS)
    write_edited_images(write_cv(tmp_path / "cv") / "images", CV_EDITS)
    return tmp_path


def rows_of(folder: Path, **options: Any) -> Dataset:
    return read_vqa(folder / "vqa", folder / "vqa", folder / "images", **options)[0]


def test_rows_match_the_files(vqa: Path) -> None:
    rows, report = read_vqa(vqa / "vqa", vqa / "vqa", vqa / "images", strict=True, verify=True)
    assert rows.features == ROW_FEATURES
    assert rows.column_names == list(ROW_FEATURES)
    assert asdict(report) == {"counts": {"questions": 24, "annotations": 24, "rows": 24, "images": 8}, "skipped": {}}
    suffixes = dict(zip(sorted({asked.image for asked in ASKED}), ["jpg", "JPG", "jpeg", "png"] * 2, strict=True))
    assert rows.to_list() == [
        {
            "row_id": str(asked.question_id),
            "question_id": asked.question_id,
            "image_id": str(asked.image),
            "image": str(vqa / "images" / f"COCO_train2014_{asked.image:012d}.{suffixes[asked.image]}"),
            "question": asked.text,
            "answers": asked.ten,
            "question_type": asked.question_type,
            "answer_type": asked.answer_type,
        }
        for asked in ASKED
    ]
    assert load_image(rows[0]["image"]).shape == (6, 8, 3)


def test_rows_without_public_answers(vqa: Path) -> None:
    folder = write_vqa(vqa / "test", "test")
    rows, report = read_vqa(folder, None, vqa / "images", split="test", strict=True)
    assert report.counts == {"questions": 24, "annotations": 0, "rows": 24, "images": 8}
    assert rows.features == ROW_FEATURES
    for name, empty in (("answers", []), ("question_type", ""), ("answer_type", "")):
        assert rows[name][:] == [empty] * 24
    assert rows["question"][:] == [asked.text for asked in ASKED]


def test_each_defect_is_skipped_and_reported(vqa: Path) -> None:
    questions, annotations = questions_json(), annotations_json()
    by_id = {record["question_id"]: record for record in annotations["annotations"]}
    by_id[9000]["answers"].pop()
    questions["questions"][4]["question"] = " \n"
    by_id[25000]["image_id"] = 26
    annotations["annotations"].remove(by_id[30000])
    annotations["annotations"].append({**by_id[9001], "question_id": 77000})
    annotations["annotations"].append(by_id[9001])
    questions["questions"].append(questions["questions"][1])
    next((vqa / "images").glob("*_000000000034.*")).unlink()
    next((vqa / "images").glob("*_000000581929.*")).write_bytes(b"no image")
    folder = write_jsons(vqa / "broken", questions, annotations)

    rows, report = read_vqa(folder, folder, vqa / "images", verify=True)
    found = {problem: [record["id"] for record in records] for problem, records in report.skipped.items()}
    assert found == {
        "duplicate_annotation": ["9001"],
        "wrong_number_of_answers": ["9000"],
        "image_mismatch": ["25000"],
        "empty_question": ["25001"],
        "no_annotation": ["30000"],
        "no_question": ["77000"],
        "duplicate_question": ["9001"],
        "missing_image": ["34000", "34001", "34002"],
        "unreadable_image": ["581929000", "581929001", "581929002"],
    }
    left_out = {int(name) for names in found.values() for name in names} - {77000, 9001}
    assert rows["question_id"][:] == [asked.question_id for asked in ASKED if asked.question_id not in left_out]
    assert report.counts == {"questions": 25, "annotations": 25, "rows": len(rows), "images": 6}
    details = {problem: records[0]["detail"] for problem, records in report.skipped.items()}
    assert details["image_mismatch"] == "question: image 25, annotation: image 26"
    assert (details["wrong_number_of_answers"], details["missing_image"]) == ("9 answers", "image 34")
    assert details["unreadable_image"].startswith(str(next((vqa / "images").glob("*_000000581929.*"))) + ": ")

    with pytest.raises(DataError) as refused:
        read_vqa(folder, folder, vqa / "images", verify=True, strict=True)
    for problem, names in found.items():
        line = next(line for line in str(refused.value).splitlines() if line.startswith(f"  {problem}: {len(names)} "))
        assert all(name in line for name in names)


@pytest.mark.parametrize(("name", "edits", "less"), [("iv", IV_EDITS, 0), ("cv", CV_EDITS, 1)])
def test_edits_match_the_files(vqa: Path, name: str, edits: dict[int, tuple[int, ...]], less: int) -> None:
    folder = vqa / name
    found, report = read_edits(rows_of(vqa), folder, folder, folder / "images", strict=True, verify=True)
    assert found.features == EDIT_FEATURES
    by_id = {asked.question_id: asked for asked in ASKED}
    expected = [(question_id, removed) for question_id, removals in edits.items() for removed in removals]
    assert found["question_id"][:] == [question_id for question_id, _ in expected]
    assert found["image_id"][:] == [f"{question_id // 1000:012d}_{removed:012d}" for question_id, removed in expected]
    for row, (question_id, _) in zip(found, expected, strict=True):
        assert row["question"] == by_id[question_id].text
        # The answers of CV-VQA are one less; `multiple_choice_answer` is the original one and must be ignored.
        wanted = by_id[question_id].ten
        assert row["answers"] == ([str(int(answer) - less) for answer in wanted] if less else wanted)
        assert Path(row["image"]).stem == f"COCO_train2014_{row['image_id']}"
        assert load_image(row["image"]).shape == (6, 8, 3)
    assert asdict(report) == {
        "counts": {
            "questions": len(expected),
            "annotations": len(expected),
            "edits": len(expected),
            "edited images": len(set(found["image_id"][:])),
            "questions with edits": len(edits),
            "edits with other answers": less * len(expected),
        },
        "skipped": {},
    }


def test_order_of_answers_does_not_matter(vqa: Path) -> None:
    questions, annotations = edit_jsons({9002: (1, 2), 30000: (86,)}, less=0)
    first, second, third = (record["answers"] for record in annotations["annotations"])
    for answers in (first, second, third):
        answers.reverse()
    second[0]["answer"] = "another one"
    folder = write_jsons(vqa / "edits", questions, annotations)
    images = write_edited_images(folder / "images", {9002: (1, 2), 30000: (86,)})
    _, report = read_edits(rows_of(vqa), folder, folder, images)
    assert (report.counts["edits"], report.counts["edits with other answers"]) == (3, 1)


def test_each_defect_of_edits_is_skipped_and_reported(vqa: Path) -> None:
    folder = vqa / "cv"
    questions = json.loads((folder / "v2_OpenEnded_mscoco_train2014_questions.json").read_text())["questions"]
    annotations = json.loads((folder / "v2_mscoco_train2014_annotations.json").read_text())["annotations"]
    edit = annotations[0]
    for question_id, image_id in ((88000, "000000000088_000000000001"), (9000, "000000000025_000000000001")):
        questions.append({"question_id": question_id, "image_id": image_id, "question": "How many?"})
        annotations.append({**edit, "question_id": question_id, "image_id": image_id})
    next((folder / "images").glob("*_000001039564.*")).unlink()
    questions.append({"question_id": 9000, "image_id": "_000000000009", "question": "How many?"})
    annotations.append({**edit, "image_id": "_000000000009"})
    write_jsons(folder, {"questions": [*questions, questions[0]]}, {"annotations": annotations})
    rows = rows_of(vqa).filter(lambda row: row["question_id"] != 34001)

    found, report = read_edits(rows, folder, folder, folder / "images")
    assert {problem: [record["id"] for record in records] for problem, records in report.skipped.items()} == {
        "orphan_edit": [f"34001/000000000034_{n:012d}" for n in (589, 590)] + ["88000/000000000088_000000000001"],
        "foreign_edit": ["9000/000000000025_000000000001", "9000/_000000000009"],
        "duplicate_question": [f"9000/{questions[0]['image_id']}"],
        "missing_image": ["9000/000000000009_000001039564"],
    }
    assert found["image_id"][:] == [
        "000000000009_000001038967",
        "000000000009_900100000009",
        "000000000025_000000000595",
        "000000524286_000002110001",
        "000000581929_000000001767",
        "000000581929_000000001768",
    ]


def test_edits_of_images_with_names(vqa: Path) -> None:
    questions, annotations = edit_jsons({9000: (5,)}, less=0)
    for record in (questions["questions"][0], annotations["annotations"][0]):
        record["image_id"] = "kitchen_3_cup"
    folder = write_jsons(vqa / "named", questions, annotations)
    Image.new("RGB", (4, 4)).save(folder / "kitchen_3_cup.png")
    rows = rows_of(vqa).select([0]).map(lambda row: {"image_id": "kitchen_3"})
    assert read_edits(rows, folder, folder, folder)[0]["image_id"][:] == ["kitchen_3_cup"]


def test_reports_in_columns() -> None:
    report, other = VQAReport({"questions": 40, "rows": 14}), VQAReport({"questions": 7, "rows": 5, "images": 3})
    for number in range(25):
        report.skip("missing_image", str(number), f"image {number}")
    report.skip("empty_question", "77")
    other.skip("empty_question", "5")
    assert report_table({"train": report, "val": other}).splitlines() == [
        "                                       train  val",
        "questions                                 40    7",
        "rows                                      14    5",
        "images                                          3",
        "skipped: no such image in the folders     25    0  e.g. 0 (image 0)",
        "skipped: the question is blank             1    1  e.g. 77",
    ]
    assert report_table({}) == ""
    assert VQAReport(**json.loads(json.dumps(asdict(report)))) == report  # as in `report.json` of prepared data
    report.check("q.json", 14)
    for kept, strict in ((14, True), (0, False)):
        with pytest.raises(DataError, match=r"(?s)q\.json: .*missing_image: 25 .*empty_question: 1 "):
            report.check("q.json", kept, strict=strict)
