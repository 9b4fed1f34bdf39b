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
from dair_hf.vqa.readers.records import (
    FILES,
    Annotation,
    Question,
    RecordFile,
    annotations_of,
    questions_of,
    read_records,
    splits_in,
    vqa_files,
)
from tests.fixtures.vqa_files import (
    ASKED,
    annotations_json,
    edit_jsons,
    questions_json,
    write_cv,
    write_vqa,
    zip_release,
)

QUESTION = {"question_id": 9000, "image_id": 9, "question": "How many?"}
ANSWERS = [{"answer": "4", "answer_confidence": "yes", "answer_id": place + 1} for place in range(10)]
ANNOTATION = {
    "question_type": "how many",
    "multiple_choice_answer": "4",
    "answers": ANSWERS,
    "image_id": 9,
    "answer_type": "number",
    "question_id": 9000,
}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# --- the public files -------------------------------------------------------------------------------------------------


def test_every_field_of_the_public_format_is_read(tmp_path: Path) -> None:
    folder = write_vqa(tmp_path)
    asked = read_records(folder, "questions")
    assert asked.subset == "train2014"
    assert asked.label == str(folder / "v2_OpenEnded_mscoco_train2014_questions.json")
    assert list(questions_of(asked)) == [Question(row.question_id, str(row.image), row.text) for row in ASKED]
    answered = read_records(folder, "annotations")
    assert answered.subset == "train2014"
    assert list(annotations_of(answered)) == [
        Annotation(row.question_id, str(row.image), row.question_type, row.answer_type, row.ten)
        for row in reversed(ASKED)
    ]


def test_answers_of_an_edit_are_those_after_it(tmp_path: Path) -> None:
    write_cv(tmp_path)
    (first, *_) = annotations_of(read_records(tmp_path, "annotations"))
    assert first == Annotation(9000, "000000000009_000001038967", "how many", "number", ["3"] * 10)
    assert json.loads((tmp_path / "v2_mscoco_train2014_annotations.json").read_text())["annotations"][0][
        "multiple_choice_answer"
    ] == "4"  # fmt: skip
    assert read_records(tmp_path, "questions").subset is None  # the files of edits contain only records


def test_plain_answers_are_read_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"annotations": [{**ANNOTATION, "answers": ["4", "3"]}]})
    assert next(annotations_of(read_records(path, "annotations"))).answers == ["4", "3"]


def test_text_is_read_in_every_unicode_encoding(tmp_path: Path) -> None:
    content = json.dumps({"questions": [{**QUESTION, "question": "Où?"}]}, ensure_ascii=False)
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig"), ("wide", "utf-16")):
        (tmp_path / f"{name}.json").write_bytes(content.encode(encoding))
        assert next(questions_of(read_records(tmp_path / f"{name}.json", "questions"))).question == "Où?"


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
    assert splits_in(source) == ["train"]
    for kind in ("questions", "annotations"):
        assert len(read_records(source, kind, "train").records) == len(ASKED)


@pytest.mark.parametrize("split", ["train", "train2014"])
def test_split_follows_from_the_name(tmp_path: Path, split: str) -> None:
    write_vqa(write_vqa(tmp_path, "train"), "val")
    assert splits_in(tmp_path) == ["train", "val"]
    assert read_records(tmp_path, "annotations", split).subset == "train2014"
    with pytest.raises(DataError, match="more than one questions file: .*train2014.*, .*val2014.*; give the split"):
        read_records(tmp_path, "questions")
    with pytest.raises(DataError, match=r"no questions file of split 'test' under its public .*\(found v2_OpenEnded"):
        read_records(tmp_path, "questions", "test")


def test_test_dev_is_not_test(tmp_path: Path) -> None:
    write_vqa(write_vqa(tmp_path, "test"), "test-dev")
    assert splits_in(zip_release(tmp_path / "zips", tmp_path, "test")) == ["test"]
    assert splits_in(tmp_path) == ["test-dev", "test"]
    assert read_records(tmp_path, "questions", "test").subset == "test2015"
    assert read_records(tmp_path, "questions", "test-dev").subset == "test-dev2015"
    with pytest.raises(DataError, match="no annotations file of split 'test'"):
        read_records(tmp_path, "annotations", "test")


def test_file_given_directly_may_have_any_name(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", {"questions": [QUESTION]})
    assert len(read_records(path, "questions", "val").records) == 1
    with pytest.raises(DataError, match=r"no questions file .*\(found mine\.json\); give the path of the file"):
        read_records(tmp_path, "questions")
    assert splits_in(tmp_path) == []
    assert splits_in(write(tmp_path / "questions.json", {"questions": [QUESTION]}).parent) == []
    assert len(read_records(tmp_path, "questions").records) == 1


def test_files_come_before_archives(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    zip_release(tmp_path, tmp_path, "train")
    assert read_records(tmp_path, "questions").label.endswith("train2014_questions.json")


def test_other_archives_are_not_opened(tmp_path: Path) -> None:
    (write_vqa(tmp_path) / "train2014.zip").write_bytes(b"images, say")
    assert splits_in(tmp_path) == ["train"]
    (tmp_path / "v2_Questions_Val_mscoco.zip").write_bytes(b"half a download")
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with pytest.raises(DataError, match="v2_Questions_Val_mscoco.zip: not a readable archive"):
        read_records(tmp_path, "questions")


# --- errors --- -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"questions": [', r"q\.json: not valid JSON"),
        ("[]", r"q\.json: contains no list of questions \(found list\); give a VQA questions file"),
        ("7", r"contains no list of questions \(found int\)"),
        (annotations_json(), r"contains no list of questions \(found keys info, data_type, .*annotations\)"),
        ({"questions": {"a": 1}}, r"contains no list of questions \(found keys questions\)"),
        ({"questions": []}, r"q\.json: the list of questions is empty; download the file again"),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_records(write(tmp_path / "q.json", content), "questions")


def test_missing_file_and_invalid_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent.json: no such file or folder"):
        read_records(tmp_path / "absent.json", "questions")
    for split, example in (
        ("val", "val2014"),
        ("test-dev", "test-dev2015"),
        ("val2014", "val2014"),
        (None, "train2014"),
    ):
        with pytest.raises(DataError, match=f"such as v2_mscoco_{example}_questions.json "):
            read_records(tmp_path, "questions", split)
    (tmp_path / "q.json").write_bytes(b'{"questions": ["\xe9"]}')
    with pytest.raises(DataError, match=r"q\.json: not valid JSON"):
        read_records(tmp_path / "q.json", "questions")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, r"q: questions\[1\]: question: expected str, found None; download the file again"),
        ({"question_id": "9000"}, r"question_id: expected int, found '9000'"),
        ({"question_id": True}, r"question_id: expected int, found True"),
        ({"question_id": 9.0}, r"question_id: expected int, found 9\.0"),
        ({"question_id": 1 << 63}, r"question_id 9223372036854775808 exceeds 64 bits; use smaller ids"),
        ({"image_id": [9]}, r"image_id: expected int or str, found \[9\]"),
        (
            {"image_id": ...},
            r"q: questions\[1\]: field 'image_id' is missing \(found question_id, question\); give a VQA",
        ),
    ],
)
def test_malformed_question_is_named(change: dict[str, Any], message: str) -> None:
    record = {name: value for name, value in {**QUESTION, **change}.items() if value is not ...}
    with pytest.raises(DataError, match=message):
        list(questions_of(RecordFile("q", None, [QUESTION, record])))


def test_the_largest_ids_are_read() -> None:
    ids = [(1 << 63) - 1, -(1 << 63) + 1, 0]
    file = RecordFile("q", None, [{**QUESTION, "question_id": question_id} for question_id in ids])
    assert [question.question_id for question in questions_of(file)] == ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": None}, r"a: annotations\[0\]: answers: expected list, found None"),
        (
            {"answers": ["4", 4]},
            r"annotations\[0\] \(question 9000\): answers\[1\]: expected an object with .*, found 4;",
        ),
        (
            {"answers": [{"answer_id": 1}]},
            r"answers\[0\]: expected an object with a text field 'answer', found \{'answer_id': 1\}",
        ),
        ({"answers": [{"answer": None}]}, r"answers\[0\]: expected an object .*, found \{'answer': None\};"),
        ({"question_type": 3}, r"question_type: expected str, found 3"),
        ({"answer_type": ...}, r"field 'answer_type' is missing"),
    ],
)
def test_malformed_annotation_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    record = {name: value for name, value in {**ANNOTATION, **change}.items() if value is not ...}
    file = read_records(write(tmp_path / "a.json", {"annotations": [record]}), "annotations")
    with pytest.raises(DataError, match=message):
        list(annotations_of(file._replace(label="a")))


@pytest.mark.parametrize("record", ["text", 3, None, ["a"]])
def test_record_that_is_no_object_is_named(record: Any) -> None:
    with pytest.raises(DataError, match=rf"q: questions\[0\]: expected an object, found {type(record).__name__}"):
        list(questions_of(RecordFile("q", None, [record])))


def test_question_with_a_field_answer_stays_a_question(tmp_path: Path) -> None:
    path = write(tmp_path / "q.json", {"questions": [{**QUESTION, "answer": "4"}]})
    assert next(questions_of(read_records(path, "questions"))).question_id == 9000


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


def test_mirror_has_the_same_paths() -> None:
    (file, _) = vqa_files("val", "http://127.0.0.1:8000")
    assert file.url == "http://127.0.0.1:8000/cvmlp/vqa/mscoco/vqa/v2_Questions_Val_mscoco.zip"


@pytest.mark.parametrize("split", ["validation", "test-dev", ""])
def test_unknown_split_is_refused(split: str) -> None:
    with pytest.raises(DataError, match=f"split '{split}' cannot be downloaded; use one of train, val, test"):
        vqa_files(split)
