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
from dair_hf.vqa.readers.records import read_records, vqa_splits
from tests.fixtures.vqa_files import (
    ASKED,
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


@pytest.mark.parametrize("layout", ["below", "zip", "tar in a folder", "zips in a folder"])
def test_files_are_found_in_folders_and_archives(tmp_path: Path, layout: str) -> None:
    source = archive_of(write_vqa(tmp_path / "plain"), layout, tmp_path / "packed")
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
