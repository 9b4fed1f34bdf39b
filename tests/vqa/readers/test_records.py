"""Question and annotation files: lookup, parsing, downloads, and the messages of errors."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.vqa.readers.records import FILES, read_records, vqa_files, vqa_splits
from tests.fixtures.vqa_files import (
    ASKED,
    annotations_json,
    edit_jsons,
    questions_json,
    write_vqa,
    zip_release,
)

QUESTION = {"question_id": 9000, "image_id": 9, "question": "How many?"}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def ids(source: Path, kind: str = "questions", split: str | None = None) -> list[int]:
    return [record["question_id"] for record in read_records(source, kind, split).records]


# --- parsing ----------------------------------------------------------------------------------------------------------


def test_answers_are_texts(tmp_path: Path) -> None:
    file = read_records(write_vqa(tmp_path), "annotations")
    assert file.label == str(tmp_path / "v2_mscoco_train2014_annotations.json")
    assert [(record["question_id"], record["answers"]) for record in file.records] == [
        (row.question_id, row.ten) for row in reversed(ASKED)
    ]


def test_plain_answers_are_read_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"annotations": [{**QUESTION, "answers": ["4", "3"]}]})
    assert read_records(path, "annotations").records[0]["answers"] == ["4", "3"]


def test_text_is_read_in_every_unicode_encoding(tmp_path: Path) -> None:
    content = json.dumps({"questions": [{**QUESTION, "question": "Où?"}]}, ensure_ascii=False)
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig"), ("wide", "utf-16")):
        (tmp_path / f"{name}.json").write_bytes(content.encode(encoding))
        assert read_records(tmp_path / f"{name}.json", "questions").records[0]["question"] == "Où?"


def test_question_with_a_field_answer_stays_a_question(tmp_path: Path) -> None:
    assert ids(write(tmp_path / "q.json", {"questions": [{**QUESTION, "answer": "4"}]})) == [9000]


# --- lookup ----------- -----------------------------------------------------------------------------------------------


def archive_of(folder: Path, layout: str, target: Path) -> Path:
    """Pack a folder in the given layout, inside another folder as archives often have it."""
    target.mkdir()
    if layout == "below":
        return shutil.copytree(folder, target / "vqa" / "Questions") and target
    if layout == "zip":
        with zipfile.ZipFile(target / "all.zip", "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"data/{file.name}")
            archive.writestr("__MACOSX/data/._v2_mscoco_train2014_annotations.json", "\0")
        return target / "all.zip"
    if layout == "tar":
        with tarfile.open(target / "annotations_0.1_0.1.tar.gz", "w:gz") as archive:
            archive.add(folder, "data")
        return target / "annotations_0.1_0.1.tar.gz"
    if layout == "tar in a folder":
        archive_of(folder, "tar", target / "in")
        return target
    return zip_release(target / "zips", folder, "train").parent


@pytest.mark.parametrize("layout", ["below", "zip", "tar", "tar in a folder", "zips in a folder"])
def test_files_are_found_in_folders_and_archives(tmp_path: Path, layout: str) -> None:
    source = archive_of(write_vqa(tmp_path / "plain"), layout, tmp_path / "packed")
    assert vqa_splits(source) == ["train"]
    for kind in ("questions", "annotations"):
        assert len(read_records(source, kind, "train").records) == len(ASKED)


@pytest.mark.parametrize("split", ["train", "train2014"])
def test_split_follows_from_the_name(tmp_path: Path, split: str) -> None:
    write_vqa(write_vqa(tmp_path, "train"), "val")
    assert vqa_splits(tmp_path) == ["train", "val"]
    assert "train2014" in read_records(tmp_path, "annotations", split).label


def test_test_dev_is_not_test(tmp_path: Path) -> None:
    write_vqa(write_vqa(tmp_path, "test"), "test-dev")
    assert vqa_splits(zip_release(tmp_path / "zips", tmp_path, "test")) == ["test"]
    assert vqa_splits(tmp_path) == ["test-dev", "test"]
    assert "_test2015_" in read_records(tmp_path, "questions", "test").label
    assert "_test-dev2015_" in read_records(tmp_path, "questions", "test-dev").label


def test_file_given_directly_may_have_any_name(tmp_path: Path) -> None:
    assert ids(write(tmp_path / "mine.json", {"questions": [QUESTION]}), split="val") == [9000]
    assert vqa_splits(tmp_path) == []
    assert vqa_splits(write(tmp_path / "questions.json", {"questions": [QUESTION]}).parent) == []
    assert ids(tmp_path) == [9000]


def test_files_come_before_archives(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    zip_release(tmp_path, tmp_path, "train")
    assert read_records(tmp_path, "questions").label.endswith("train2014_questions.json")


def test_other_archives_are_not_opened(tmp_path: Path) -> None:
    (write_vqa(tmp_path) / "train2014.zip").write_bytes(b"images, say")
    assert vqa_splits(tmp_path) == ["train"]
    (tmp_path / "v2_Questions_Val_mscoco.zip").write_bytes(b"half a download")
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with pytest.raises(DataError, match=r"v2_Questions_Val_mscoco\.zip"):
        read_records(tmp_path, "questions")


def test_fixtures_have_the_public_format() -> None:
    """Key by key; the other tests rely on it."""
    assert list(questions_json()) == [
        "info", "task_type", "data_type", "data_subtype", "license", "questions",
    ]  # fmt: skip
    assert list(annotations_json()) == ["info", "data_type", "data_subtype", "license", "annotations"]
    keys = ["question_type", "multiple_choice_answer", "answers", "image_id", "answer_type", "question_id"]
    edit_questions, edit_annotations = edit_jsons({9000: (5,)}, less=1)
    for annotation in (annotations_json()["annotations"][0], edit_annotations["annotations"][0]):
        assert list(annotation) == keys
        assert [list(answer) for answer in annotation["answers"]] == [
            ["answer", "answer_confidence", "answer_id"]
        ] * 10  # fmt: skip
    assert (list(edit_questions), list(edit_annotations)) == (["questions"], ["annotations"])
    assert edit_questions["questions"][0] == {
        "image_id": "000000000009_000000000005",
        "question": "How many boxes are on the tray?",
        "question_id": 9000,
    }


# --- downloads --------------------------------------------------------------------------------------------------------


def test_every_split_has_its_archives() -> None:
    base = "https://s3.amazonaws.com/cvmlp/vqa/mscoco/vqa/"
    assert [file.url for split in FILES for file in vqa_files(split)] == [
        base + "v2_Questions_Train_mscoco.zip",
        base + "v2_Annotations_Train_mscoco.zip",
        base + "v2_Questions_Val_mscoco.zip",
        base + "v2_Annotations_Val_mscoco.zip",
        base + "v2_Questions_Test_mscoco.zip",
    ]
    for split in FILES:
        assert all(file.url.endswith("/" + file.name) for file in vqa_files(split))
