"""Data of a VQA experiment: counting scenes, or VQA v2 with edited images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from datasets import Dataset, Features

from dair_hf.errors import DataError
from dair_hf.io.file_values import FileValueCache
from dair_hf.io.files import read_json
from dair_hf.io.prepared import is_prepared, load_split, read_mark
from dair_hf.io.processes import on_first_rank
from dair_hf.settings import Count, Settings
from dair_hf.vqa.readers.images import ImageFolder, verified_images
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES, Reported, VQAReport, read_edits, read_vqa
from dair_hf.vqa.scenes.files import SceneConfig, read_scenes, write_scenes

PARTS = ("train", "train_edits", "test", "test_edits")
HELD_OUT = 10  # every tenth training image is held out for validation
RowsAndEdits = tuple[Dataset, Dataset]
SplitReader = Callable[[str], tuple[Reported, Reported]]  # split -> rows and edits


@dataclass
class VQAConfig(Settings):
    """Data of an experiment on visual question answering."""

    # Not compared between runs: questions, answers and images have a fingerprint.
    PATH_FIELDS: ClassVar = ("questions", "images", "edits", "edited_images", "scene_folder")

    source: Literal["scenes", "files"] = field(
        default="scenes", metadata={"help": "scenes (generated counting scenes) or files (VQA v2)."}
    )
    questions: str | None = field(
        default=None,
        metadata={
            "help": "Folder or archive with the questions and annotations of VQA v2, under their public names; or the "
            "folder written by data_scripts/prepare_vqa.py, which also contains the edits and the paths of all images."
        },
    )
    images: list[str] | None = field(default=None, metadata={"help": "Folders with the images of VQA v2."})
    edits: str | None = field(
        default=None, metadata={"help": "Folder or archive with the questions and annotations of IV-VQA or CV-VQA."}
    )
    edited_images: list[str] | None = field(default=None, metadata={"help": "Folders with the edited images."})
    scene_folder: str | None = field(
        default=None,
        metadata={
            "help": "Folder written by data_scripts/prepare_counting_scenes.py with the same scene settings. By "
            "default scenes are drawn next to the output folder."
        },
    )
    evaluate_on: Literal["test", "validation"] = field(
        default="test",
        metadata={
            "help": "test (VQA v2: split val), or validation to choose lambda: separate scenes, or every tenth image "
            "of the training split, which is then excluded from training."
        },
    )
    answers: Count = field(default=3000, metadata={"help": "Size of the vocabulary of most frequent answers; >= 1."})

    def check(self) -> None:
        """Refuse folders that the source would ignore, and raw files without their edits."""
        needed = ("questions", "images", "edits", "edited_images")
        given = [name for name in (*needed, "scene_folder") if getattr(self, name)]
        if self.source == "scenes":
            expected = [name for name in given if name == "scene_folder"]
        elif self.questions and is_prepared(self.questions):
            expected = ["questions"]
        else:
            expected = list(needed)
        if given != expected:
            raise DataError(
                f"source={self.source}: expected {', '.join(expected) or 'no folders'}, got "
                f"{', '.join(given) or 'no folders'}"
            )


class VQAData(NamedTuple):
    """Rows (`reading.ROW_FEATURES`) and edits (`reading.EDIT_FEATURES`) of an experiment."""

    name: str
    train: Dataset
    train_edits: Dataset
    test: Dataset
    test_edits: Dataset
    familiar: Dataset | None
    reports: dict[str, VQAReport]

    def fingerprints(self, hashes: FileValueCache) -> dict[str, str]:
        """Return part -> fingerprint of its rows and of the content of their images, for records of runs.

        All processes of a run must call this method.
        """
        return {part: hashes.fingerprint(getattr(self, part), ["image"]) for part in PARTS}


def load_vqa(
    config: VQAConfig,
    scenes: SceneConfig,
    folder: str | os.PathLike[str],
    verified: str | os.PathLike[str] | None = None,
) -> VQAData:
    """Load the rows and edits of an experiment, drawing the scenes in `folder` unless prepared ones are named.

    All processes of a run must call this function. The first one draws the scenes; the decoding of image files is
    split among all, and remembered in the JSON file `verified`.
    """
    if config.source == "files":
        return _load_files(config, verified)
    if config.scene_folder:
        drawn = read_mark(config.scene_folder, "scenes").get("settings")
        if drawn != asdict(scenes):
            raise DataError(f"{config.scene_folder}: expected scenes drawn with {asdict(scenes)}, got {drawn}")
    return _load_scenes(config, scenes, Path(config.scene_folder or folder))


def _load_scenes(config: VQAConfig, scenes: SceneConfig, folder: Path) -> VQAData:
    on_first_rank(lambda: write_scenes(scenes, folder))
    splits: dict[str, RowsAndEdits] = {}
    reports: dict[str, VQAReport] = {}
    for split in ("train", "familiar", config.evaluate_on):
        (rows, reports[split]), (edits, reports[f"{split}, edits"]) = read_scenes(folder, split)
        splits[split] = rows, edits
    name = f"counting scenes ({scenes.edit.upper()}), {config.evaluate_on}"
    return _experiment(name, splits["train"], splits[config.evaluate_on], splits["familiar"][0], reports)


def _load_files(config: VQAConfig, verified: str | os.PathLike[str] | None) -> VQAData:
    assert config.questions
    reports: dict[str, VQAReport] = {}
    read_split = _prepared_reader(config) if is_prepared(config.questions) else _raw_reader(config, verified)

    def read(split: str) -> RowsAndEdits:
        (rows, reports[split]), (edits, reports[f"{split}, edits"]) = read_split(split)
        return rows, edits

    train = read("train")
    if config.evaluate_on == "validation":
        train_rows, test_rows = _hold_out_images(train[0])
        train, test = (train_rows, train[1]), (test_rows, train[1])
        name = "VQA v2 train, every tenth image"
    else:
        test, name = read("val"), "VQA v2 val"
    return _experiment(name, train, test, None, reports)


def _raw_reader(config: VQAConfig, verified: str | os.PathLike[str] | None) -> SplitReader:
    assert config.questions and config.images and config.edits and config.edited_images
    questions, edited = config.questions, config.edits
    cache = verified_images(verified)
    images, edited_images = (ImageFolder(*folders, verified=cache) for folders in (config.images, config.edited_images))

    def read(split: str) -> tuple[Reported, Reported]:
        options: dict[str, Any] = {"split": split, "verify": True}
        rows = read_vqa(questions, questions, images, **options)
        return rows, read_edits(rows[0], edited, edited, edited_images, **options)

    return read


def _prepared_reader(config: VQAConfig) -> SplitReader:
    folder = Path(config.questions or "")

    def load(name: str, split: str, features: Features) -> Reported:
        rows = load_split(folder, "vqa", f"{name}/{split}", features)
        report = VQAReport(**read_json(folder / "report.json")[name][split])
        report.check(f"{folder}: {name} of split {split!r}", len(rows))
        return rows, report

    return lambda split: (load("rows", split, ROW_FEATURES), load("edits", split, EDIT_FEATURES))


def _experiment(
    name: str, train: RowsAndEdits, test: RowsAndEdits, familiar: Dataset | None, reports: dict[str, VQAReport]
) -> VQAData:
    return VQAData(name, train[0], _edits_of(*train), test[0], _edits_of(*test), familiar, reports)


def _hold_out_images(rows: Dataset) -> tuple[Dataset, Dataset]:
    """Split questions by image: nine images in ten for training, every tenth held out."""
    ids = rows["image_id"][:]
    held_out = set(list(dict.fromkeys(ids))[HELD_OUT - 1 :: HELD_OUT])
    return (
        rows.select([row for row, image in enumerate(ids) if image not in held_out]),
        rows.select([row for row, image in enumerate(ids) if image in held_out]),
    )


def _edits_of(rows: Dataset, edits: Dataset) -> Dataset:
    """Return the edits of the given questions, so that no features of other edits are computed."""
    questions = set(rows["question_id"][:])
    positions = [position for position, question_id in enumerate(edits["question_id"][:]) if question_id in questions]
    if not positions:  # would fail only after the features of all images
        raise DataError(f"expected edits of the {len(rows)} questions, got none of {len(edits)} edits")
    return edits if len(positions) == len(edits) else edits.select(positions)
