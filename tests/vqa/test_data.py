"""Data of an experiment: scenes and files, subsets, held-out images, and errors."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from PIL import Image

from dair_hf.config import DAIRConfig
from dair_hf.experiments.run_records import _is_same, _plain_config
from dair_hf.io.file_values import FileValueCache
from dair_hf.vqa import data
from dair_hf.vqa.data import VQAConfig, VQAData, load_vqa
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.task import NetworkConfig
from tests.fixtures.vqa_files import ASKED, CV_EDITS, write_cv, write_edited_images, write_images, write_vqa

IMAGE_FOLDERS = ("images", "edited_images")
SCENES = SceneConfig(train_scenes=30, test_scenes=12)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw scenes once and return their folder."""
    folder = tmp_path_factory.mktemp("scenes") / "cv"
    load_vqa(VQAConfig(), SCENES, folder)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Return settings for small VQA v2 and CV-VQA files of both splits."""
    for split in ("train", "val"):
        write_vqa(tmp_path / "vqa", split)
        write_cv(tmp_path / "cv", split)
    return {
        "source": "files",
        "questions": str(tmp_path / "vqa"),
        "images": [str(write_images(tmp_path / "images"))],
        "edits": str(tmp_path / "cv"),
        "edited_images": [str(write_edited_images(tmp_path / "edited", CV_EDITS))],
    }


def listed(file: Path, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())[kind]
    return found


def ids(rows: Dataset) -> list[int]:
    return list(rows["question_id"][:])


def is_one_experiment(found: VQAData) -> None:
    """Check the features, and that all edits belong to the questions."""
    for rows, edits in ((found.train, found.train_edits), (found.test, found.test_edits)):
        assert (rows.features, edits.features) == (ROW_FEATURES, EDIT_FEATURES)
        assert 0 < len(set(ids(edits))) <= len(rows)
        assert set(ids(edits)) <= set(ids(rows))
    assert not set(found.train["image"][:]) & set(found.test["image"][:])


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_scenes_match_their_files(scenes: Path, evaluate_on: str) -> None:
    found = load_vqa(VQAConfig(evaluate_on=evaluate_on), SCENES, scenes)
    is_one_experiment(found)
    assert found.name == f"counting scenes (CV), {evaluate_on}"
    assert list(found.reports) == ["train", "train, edits", "familiar", "familiar, edits"] + [
        evaluate_on, f"{evaluate_on}, edits",
    ]  # fmt: skip
    assert (len(found.train), len(found.test)) == (30, 12)
    assert found.familiar is not None and len(found.familiar) == 12
    for split, rows in (("train", found.train), ("familiar", found.familiar), (evaluate_on, found.test)):
        asked = listed(scenes / split / "questions.json", "questions")
        assert [(row["question_id"], row["question"]) for row in asked] == list(
            zip(ids(rows), rows["question"][:], strict=True)
        )
        answered = {a["question_id"]: a["answers"] for a in listed(scenes / split / "annotations.json", "annotations")}
        assert [[answer["answer"] for answer in answered[place]] for place in ids(rows)] == rows["answers"][:]
        assert all(Path(path).parent == scenes / split / "images" for path in rows["image"][:])
    for split, edits in (("train", found.train_edits), (evaluate_on, found.test_edits)):
        made = listed(scenes / split / "edits" / "questions.json", "questions")
        assert [(edit["question_id"], edit["image_id"]) for edit in made] == list(
            zip(ids(edits), edits["image_id"][:], strict=True)
        )


def test_drawn_scenes_are_kept(scenes: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in scenes.rglob("*")}
    first, second = (load_vqa(VQAConfig(), SCENES, scenes) for _ in range(2))
    assert {path: path.stat().st_mtime_ns for path in scenes.rglob("*")} == before
    # A comparison identifies its data by these.
    assert first.train._fingerprint == second.train._fingerprint
    assert first.train._fingerprint != first.test._fingerprint


@pytest.fixture
def apart(files: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Return the same with different images and ids in each split."""
    shift = 10**6
    for name, folder in (("vqa", files["questions"]), ("cv", files["edits"])):
        for path in Path(folder).glob("*val2014*"):
            text = re.sub(
                r'"question_id": (\d+)', lambda m: f'"question_id": {int(m[1]) + shift * 1000}', path.read_text()
            )
            text = re.sub(r'"image_id": (\d+)', lambda m: f'"image_id": {int(m[1]) + shift}', text)
            text = re.sub(r'"image_id": "(\d+)_', lambda m: f'"image_id": "{int(m[1]) + shift:012d}_', text)
            path.write_text(text)
        folders = files["images" if name == "vqa" else "edited_images"]
        for image in sorted(Path(folders[0]).iterdir()):
            stem, number, *rest = image.stem.rsplit("_", 2 if name == "cv" else 1)
            moved = "_".join([stem.replace("train", "val"), f"{int(number) + shift:012d}", *rest])
            target = tmp_path / f"{name}_val" / (moved + image.suffix)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(image.read_bytes())
        folders.append(str(tmp_path / f"{name}_val"))
    return files


def test_files_of_both_splits(apart: dict[str, Any], tmp_path: Path) -> None:
    found = load_vqa(VQAConfig(**apart), SceneConfig(), tmp_path / "unused")
    is_one_experiment(found)
    assert (found.name, found.familiar) == ("VQA v2 val", None)
    assert ids(found.train) == [asked.question_id for asked in ASKED]
    assert ids(found.test) == [asked.question_id + 10**9 for asked in ASKED]
    assert found.train["answers"][:] == found.test["answers"][:] == [asked.ten for asked in ASKED]
    edits = [question for question, removed in CV_EDITS.items() for _ in removed]
    assert ids(found.train_edits) == edits
    assert ids(found.test_edits) == [question + 10**9 for question in edits]
    assert list(found.reports) == ["train", "train, edits", "val", "val, edits"]
    assert found.reports["val, edits"].counts["edits with other answers"] == len(edits)
    assert not (tmp_path / "unused").exists()


def test_unreadable_images_are_reported_or_refused(files: dict[str, Any], tmp_path: Path) -> None:
    image = next(Path(files["images"][0]).glob("*000000000025*"))
    image.write_bytes(image.read_bytes()[:60])
    edited = sorted(Path(files["edited_images"][0]).iterdir())[0]
    edited.unlink()
    found = load_vqa(VQAConfig(**files), SceneConfig(), tmp_path)
    unreadable = found.reports["train"].skipped["unreadable_image"]
    assert [record["id"] for record in unreadable] == ["25000", "25001", "25002"]
    assert len(found.reports["val, edits"].skipped["missing_image"]) == 1
    assert 25000 not in ids(found.train) + ids(found.train_edits)


def test_validation_does_not_read_the_test_split(files: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    for folder in (files["questions"], files["edits"]):
        for path in Path(folder).glob("*val2014*"):
            path.unlink()
    monkeypatch.setattr(data, "HELD_OUT", 4)  # the small files have eight images
    found = load_vqa(VQAConfig(**files, evaluate_on="validation"), SceneConfig(), tmp_path)
    is_one_experiment(found)
    assert found.name.startswith("VQA v2 train, every tenth image")
    assert {int(name) for name in found.test["image_id"][:]} == {34, 581929}
    assert sorted(ids(found.train) + ids(found.test)) == sorted(asked.question_id for asked in ASKED)
    assert set(ids(found.test_edits)) == {34001, 581929002}
    assert set(ids(found.train_edits)) == {9000, 25000, 524286000}
    assert list(found.reports) == ["train", "train, edits"]


def test_all_questions_of_an_image_are_held_out() -> None:
    # 25 shuffled images; those from the thirteenth on have a second question at the end, the twentieth in row 32.
    names = [str(7 * number % 25) for number in range(25)]
    rows = Dataset.from_dict({"image_id": names + names[12:], "question_id": list(range(38))})
    kept, held = data._hold_out_images(rows)
    assert ids(held) == [9, 19, 32]
    assert ids(kept) == [question for question in range(38) if question not in (9, 19, 32)]
    assert not set(kept["image_id"][:]) & set(held["image_id"][:])


def test_fingerprints_follow_questions_and_images_and_not_their_place(files: dict[str, Any], tmp_path: Path) -> None:
    def fingerprints(folder: str) -> dict[str, str]:
        moved = {name: value.replace(str(tmp_path), folder) for name, value in files.items() if isinstance(value, str)}
        moved_lists = {name: [path.replace(str(tmp_path), folder) for path in files[name]] for name in IMAGE_FOLDERS}
        found = load_vqa(VQAConfig(**{**moved, **moved_lists}), SceneConfig(), "unused")
        return dict(found.fingerprints(FileValueCache.of_contents(tmp_path)))

    first = fingerprints(str(tmp_path))
    assert set(first) == {"train", "train_edits", "test", "test_edits"}
    moved = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}_moved")))
    assert fingerprints(str(moved)) == first
    edited = sorted(path for path in (moved / "edited").rglob("*") if path.is_file())
    for path in edited:
        Image.new("L", (8, 6), 77).save(path)
    changed = fingerprints(str(moved))
    assert {name for name in first if first[name] != changed[name]} == {"train_edits", "test_edits"}


def test_other_places_are_not_other_settings(files: dict[str, Any]) -> None:
    training, parts = DAIRConfig("out"), {"train": "a"}

    def settings(place: str) -> dict[str, Any]:
        folders = {**files, "questions": place, "edits": place, "images": [place], "edited_images": [place]}
        return {"data": VQAConfig(**folders), "network": NetworkConfig(features_folder=place)}

    record = json.loads(
        json.dumps({"config": _plain_config({**settings("here"), "training": training}), "data": parts})
    )
    assert _is_same(record, {**settings("there"), "training": training}, parts)
