"""Counting scenes on disk: format, answers compared with the images, reproducibility, and atomic writing."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dair_hf.io.files import MANIFEST
from dair_hf.io.prepared import MARK
from dair_hf.vqa.scenes import files
from dair_hf.vqa.scenes.files import SPLITS, SceneConfig, write_scenes
from dair_hf.vqa.scenes.scene import background
from tests.fixtures.counting_scenes import cells_of, shapes_in

TRAIN, TEST = 24, 12
COUNTS = {split: TRAIN if split == "train" else TEST for split in SPLITS}
PLURALS = {"crosses": "cross"}


def small(edit: str = "cv", **settings: Any) -> SceneConfig:
    return SceneConfig(edit=edit, **{"train_scenes": TRAIN, "test_scenes": TEST, **settings})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Scenes with covariant and with invariant edits."""
    folder = tmp_path_factory.mktemp("scenes")
    return {edit: write_scenes(small(edit), folder / edit) for edit in ("cv", "iv")}


def parsed(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def pixels(path: str | Path) -> NDArray[np.uint8]:
    return np.array(Image.open(path))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def seen_answer(question: str, objects: list[tuple[str, str]]) -> str:
    """Return the answer to a question about the shapes and colors in an image."""
    if found := re.fullmatch(r"How many (\w+) are there\?", question):
        one = PLURALS.get(found[1], found[1].removesuffix("s"))
        return str(sum(shape == one for shape, _ in objects))
    if found := re.fullmatch(r"Is there an? (\w+)\?", question):
        return "yes" if any(shape == found[1] for shape, _ in objects) else "no"
    found = re.fullmatch(r"What color is the (\w+)\?", question)
    assert found, question
    (color,) = [color for shape, color in objects if shape == found[1]]
    return color


def kind_asked(question: str) -> str:
    """Return the kind that a question is about."""
    word = question.rstrip("?").split()[2 if question.startswith("How") else -1]
    return PLURALS.get(word, word.removesuffix("s")) if question.startswith("How") else word


@pytest.mark.parametrize(("edit", "split"), [("cv", "train"), ("iv", "familiar"), ("cv", "validation"), ("iv", "test")])
def test_files_have_the_public_format(written: dict[str, Path], edit: str, split: str) -> None:
    header = {"info", "license", "task_type", "data_type", "data_subtype"}
    keys = {"question_type", "multiple_choice_answer", "answers", "image_id", "answer_type", "question_id"}
    for of in ("", "edits"):
        folder = written[edit] / split / of
        asked, answered = (parsed(folder / f"{name}.json") for name in ("questions", "annotations"))
        assert (set(asked), set(answered)) == ({*header, "questions"}, {*header, "annotations"})
        assert (asked["task_type"], asked["data_subtype"], answered["data_subtype"]) == ("Open-Ended", split, split)
        assert of or len(asked["questions"]) == COUNTS[split]
        names = set()
        for question, annotation in zip(asked["questions"], answered["annotations"], strict=True):
            assert set(question) == {"image_id", "question", "question_id"} and set(annotation) == keys
            assert all(annotation[name] == question[name] for name in ("question_id", "image_id"))
            assert type(question["question_id"]) is int and type(question["image_id"]) is (str if of else int)
            names.add(f"{question['image_id']}.png" if of else f"{question['image_id']:012}.png")
            if of:
                original, removed = re.fullmatch(r"(\d{12})_(\d{12})", question["image_id"]).groups()
                assert int(original) == question["question_id"] and int(removed) > 0
            answer = annotation["multiple_choice_answer"]
            assert annotation["answers"] == [
                {"answer": answer, "answer_confidence": "yes", "answer_id": number} for number in range(1, 11)
            ]
            assert question["question"].lower().startswith(annotation["question_type"])
            answer_type = "number" if answer.isdigit() else "yes/no" if answer in ("yes", "no") else "other"
            assert annotation["answer_type"] == answer_type
        assert {path.name for path in (folder / "images").iterdir()} == names


def originals_and_edits(folder: Path, split: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return each question of the files with its edits: question, answer and path of the image."""

    def records(root: Path) -> list[dict[str, Any]]:
        answers = [record["multiple_choice_answer"] for record in parsed(root / "annotations.json")["annotations"]]
        questions = parsed(root / "questions.json")["questions"]
        for question, answer in zip(questions, answers, strict=True):
            name = question["image_id"] if isinstance(question["image_id"], str) else f"{question['image_id']:012}"
            question |= {"answer": answer, "image": root / "images" / f"{name}.png"}
        return questions

    edits = records(folder / split / "edits")
    return [
        (question, [edit for edit in edits if edit["question_id"] == question["question_id"]])
        for question in records(folder / split)
    ]


@pytest.mark.parametrize("edit", ["cv", "iv"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_answers_match_the_images(written: dict[str, Path], edit: str, split: str) -> None:
    removed = Counter[str]()
    for question, edits in originals_and_edits(written[edit], split):
        whole = pixels(question["image"])
        objects = shapes_in(whole, 4)
        assert question["answer"] == seen_answer(question["question"], list(objects.values()))
        assert len(edits) <= (2 if split == "train" else 1)
        asked = kind_asked(question["question"])
        for edited in edits:
            assert edited["question"] == question["question"]
            image = pixels(edited["image"])
            left = shapes_in(image, 4)
            assert edited["answer"] == seen_answer(question["question"], list(left.values()))
            gone = objects.keys() - left.keys()
            assert left == {cell: item for cell, item in objects.items() if cell not in gone}
            changed = {
                cell
                for cell, (one, other) in enumerate(zip(cells_of(whole, 4), cells_of(image, 4), strict=True))
                if (one != other).any()
            }
            assert changed == gone
            kinds = {objects[cell][0] for cell in gone}
            if edit == "cv":
                assert len(gone) == 1 and kinds == {asked}
                assert edited["answer"] != question["answer"]
                if question["answer"].isdigit():
                    assert int(edited["answer"]) == int(question["answer"]) - 1
            else:
                assert len(kinds) == 1 and asked not in kinds
                assert gone == {cell for cell, (shape, _) in objects.items() if {shape} == kinds}
                assert edited["answer"] == question["answer"]
            removed[question["answer"]] += 1
    assert len(removed) >= 3, "edits with several answers"


def test_the_background_does_not_tell_the_answer(tmp_path: Path) -> None:
    """The texture without the objects is independent of question and answer."""
    folder = write_scenes(small("iv", train_scenes=100), tmp_path / "scenes")
    records = [question for question, _ in originals_and_edits(folder, "train")]
    textures = np.stack([background(record["question_id"]) for record in records])
    blocks = textures.reshape(len(records), 8, 8, 8, 8, 3).mean(axis=(2, 4)).reshape(len(records), -1)
    counted = np.array([record["question"].startswith("How") for record in records])
    for name, values, rows in (
        ("type", counted, slice(None)),
        ("kind", np.unique([kind_asked(r["question"]) for r in records], return_inverse=True)[1], slice(None)),
        ("count", np.array([int(r["answer"]) if r["answer"].isdigit() else 0 for r in records]), counted),
    ):
        of_rows, seen = values[rows].astype(float), blocks[rows]
        correlations = [np.corrcoef(column, of_rows)[0, 1] for column in seen.T]
        # The largest of 192 correlations may be up to five standard errors.
        assert max(map(abs, correlations)) < 5 / np.sqrt(len(of_rows)), name


def test_the_same_settings_give_the_same_bytes(written: dict[str, Path], tmp_path: Path) -> None:
    again = write_scenes(small("cv"), tmp_path / "again")
    assert digests(again) == digests(written["cv"])
    # Both kinds of edits have the same scenes.
    cv, iv = (
        {n: d for n, d in digests(folder).items() if "/edits/" not in n and n not in (MANIFEST, MARK)}
        for folder in written.values()
    )
    assert cv == iv


def test_more_scenes_leave_the_first_ones_unchanged(written: dict[str, Path], tmp_path: Path) -> None:
    config = small("cv", train_scenes=TRAIN + 7, test_scenes=TEST + 3)
    more = write_scenes(config, tmp_path / "more")
    few, many = digests(written["cv"]), digests(more)
    images = {name for name in few if name.endswith(".png")}
    assert all(many[name] == few[name] for name in images)
    for split in SPLITS:
        for name in ("questions", "edits/questions"):
            first, second = (parsed(folder / split / f"{name}.json")["questions"] for folder in (written["cv"], more))
            assert second[: len(first)] == first
    assert len([name for name in many if re.fullmatch(r"train/images/.*", name)]) == TRAIN + 7


def test_counts_are_usual_in_training_and_familiar_scenes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, set[files.Correlations]] = {split: set() for split in SPLITS}
    draw = files.draw_scene

    def recorded(number: int, rng: Any, correlations: files.Correlations) -> Any:
        found[SPLITS[(number - 1) // files.MAX_SCENES]].add(correlations)
        return draw(number, rng, correlations)

    monkeypatch.setattr(files, "draw_scene", recorded)
    write_scenes(small(train_scenes=8, test_scenes=8), tmp_path / "scenes")
    fair, biased = {files.Correlations(0.0, 0.0)}, {files.Correlations(0.9, 0.5)}
    assert found == {"train": biased, "familiar": biased, "validation": fair, "test": fair}


def test_splits_share_no_scene(written: dict[str, Path]) -> None:
    ids, images = Counter[int](), Counter[str]()
    for split in SPLITS:
        ids.update(record["question_id"] for record in parsed(written["cv"] / split / "questions.json")["questions"])
    images.update(digest for name, digest in digests(written["cv"]).items() if name.endswith(".png"))
    assert len(ids) == sum(COUNTS.values()) and set(ids.values()) == {1}
    assert set(images.values()) == {1}, "no two images are equal, edits included"
    # The largest possible split does not reach the numbers of the next one.
    starts = [parsed(written["cv"] / split / "questions.json")["questions"][0]["question_id"] for split in SPLITS]
    assert all(later - earlier >= 1_000_000 for earlier, later in zip(starts, starts[1:], strict=False))
