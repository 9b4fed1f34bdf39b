"""Data of a VQA experiment: counting scenes, or VQA v2 with edited images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from datasets import Dataset, Features

from dair_hf.errors import DataError
from dair_hf.io.file_values import FileValueCache, content_fingerprint
from dair_hf.io.files import read_json
from dair_hf.io.prepared import is_prepared, load_split, read_mark
from dair_hf.io.processes import on_first_rank
from dair_hf.vqa.readers.images import ImageFolder, verified_images
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES, read_edits, read_vqa
from dair_hf.vqa.readers.report import VQAReport
from dair_hf.vqa.scenes.files import SceneConfig, scene_files, write_scenes

SOURCES = ("scenes", "files")
EVALUATED = ("test", "validation")
PARTS = ("train", "train_edits", "test", "test_edits")
HELD_OUT = 10  # every tenth training image is held out for validation
SplitReader = Callable[[str], tuple[Dataset, VQAReport, Dataset, VQAReport]]


@dataclass
class VQAConfig:
    """Data of an experiment on visual question answering.

    Raises:
        DataError: The source is unknown, a folder is missing or unused, or a number is below 1.

    Example:
        >>> VQAConfig().source
        'scenes'
    """

    # Not compared between runs: questions, answers and images have a fingerprint.
    PATH_FIELDS: ClassVar = ("questions", "images", "edits", "edited_images", "scene_folder")

    source: str = field(
        default="scenes",
        metadata={"help": "scenes (generated counting scenes) or files (VQA v2).", "choices": SOURCES},
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
            "default scenes are drawn beside the output folder."
        },
    )
    strict: bool = field(default=False, metadata={"help": "Stop if any record of the files cannot be used."})
    train_questions: int | None = field(
        default=None, metadata={"help": "Number of training questions, from the start of the file; all by default."}
    )
    test_questions: int | None = field(
        default=None, metadata={"help": "Number of test questions, from the start of the file; all by default."}
    )
    evaluate_on: str = field(
        default="test",
        metadata={
            "help": "test (VQA v2: split val), or validation to choose lambda: separate scenes, or every tenth image "
            "of the training split, which is then excluded from training.",
            "choices": EVALUATED,
        },
    )
    answers: int = field(default=3000, metadata={"help": "Size of the vocabulary of most frequent answers; >= 1."})
    word_count: int = field(
        default=1, metadata={"help": "Words that occur less often in the training questions are unknown to SAAA; >= 1."}
    )

    def __post_init__(self) -> None:
        for name, choices in (("source", SOURCES), ("evaluate_on", EVALUATED)):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        for name in ("train_questions", "test_questions", "answers", "word_count"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise DataError(f"{name}={value} must be at least 1")
        folders = ("questions", "images", "edits", "edited_images")
        present = [f"--{name}" for name in folders if getattr(self, name)]
        if self.source == "scenes" and present:
            raise DataError(f"source=scenes does not use {', '.join(present)}; set --source files")
        if self.source == "files" and self.scene_folder:
            raise DataError("source=files does not use --scene_folder; set --source scenes")
        if self.source == "files" and self.questions and is_prepared(self.questions):
            if present[1:]:
                raise DataError(f"{self.questions} already contains prepared data; omit {', '.join(present[1:])}")
        elif self.source == "files" and (missing := [f"--{name}" for name in folders if f"--{name}" not in present]):
            raise DataError(
                f"source=files needs {', '.join(missing)}: folders with VQA v2, COCO and the edits; or only "
                "--questions with a folder written by data_scripts/prepare_vqa.py"
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
        return {part: content_fingerprint(getattr(self, part), ["image"], hashes) for part in PARTS}


def load_vqa(
    config: VQAConfig,
    scenes: SceneConfig,
    folder: str | os.PathLike[str],
    verified: str | os.PathLike[str] | None = None,
) -> VQAData:
    """Load the rows and edits of an experiment, generating the scenes if necessary.

    All processes of a run must call this function. The first one generates the scenes; the decoding of image files is
    split among all.
    """
    if config.source == "files":
        return _load_files(config, verified)
    if config.scene_folder:
        _require_settings(config.scene_folder, scenes)
    return _load_scenes(config, scenes, Path(config.scene_folder or folder))


def _require_settings(folder: str, scenes: SceneConfig) -> None:
    """Raise DataError unless the scenes in a prepared folder were drawn with the given settings."""
    drawn = read_mark(folder, "scenes").get("settings", {})
    for name, value in asdict(scenes).items():
        if name != "sprite_folder" and (name not in drawn or drawn[name] != value):
            raise DataError(
                f"{folder}: drawn with {name}={drawn.get(name)!r}, but the run has {name}={value!r}; use the same "
                "scene settings, or prepare the scenes again"
            )


def _load_scenes(config: VQAConfig, scenes: SceneConfig, folder: Path) -> VQAData:
    on_first_rank(lambda: write_scenes(scenes, folder))
    splits: dict[str, tuple[Dataset, Dataset]] = {}
    reports: dict[str, VQAReport] = {}
    for split in ("train", "familiar", config.evaluate_on):
        files = scene_files(folder, split)
        rows, reports[split] = read_vqa(files.questions, files.annotations, files.images, strict=True)
        edit_files = (files.edits / "questions.json", files.edits / "annotations.json", files.edits / "images")
        edits, reports[f"{split}, edits"] = read_edits(rows, *edit_files, strict=True)
        splits[split] = rows, edits
    name = f"counting scenes ({scenes.edit.upper()}), {config.evaluate_on}"
    familiar = _first(splits["familiar"][0], config.test_questions)
    return _truncated(config, name, splits["train"], splits[config.evaluate_on], familiar, reports)


def _load_files(config: VQAConfig, verified: str | os.PathLike[str] | None) -> VQAData:
    assert config.questions
    reports: dict[str, VQAReport] = {}
    read_split = _prepared_reader(config) if is_prepared(config.questions) else _raw_reader(config, verified)

    def read(split: str) -> tuple[Dataset, Dataset]:
        rows, reports[split], edits, reports[f"{split}, edits"] = read_split(split)
        return rows, edits

    train = read("train")
    if config.evaluate_on == "validation":
        train_rows, test_rows = hold_out_images(train[0])
        train, test = (train_rows, train[1]), (test_rows, train[1])
        name = "VQA v2 train, every tenth image"
    else:
        test, name = read("val"), "VQA v2 val"
    return _truncated(config, name, train, test, None, reports)


def _raw_reader(config: VQAConfig, verified: str | os.PathLike[str] | None) -> SplitReader:
    assert config.questions and config.images and config.edits and config.edited_images
    questions, edited = config.questions, config.edits
    cache = verified_images(verified)
    images, edited_images = (ImageFolder(*folders, verified=cache) for folders in (config.images, config.edited_images))

    def read(split: str) -> tuple[Dataset, VQAReport, Dataset, VQAReport]:
        options: dict[str, Any] = {"split": split, "strict": config.strict, "verify": True}
        rows, report = read_vqa(questions, questions, images, **options)
        return rows, report, *read_edits(rows, edited, edited, edited_images, **options)

    return read


def _prepared_reader(config: VQAConfig) -> SplitReader:
    assert config.questions
    folder = Path(config.questions)

    def load(name: str, split: str, features: Features) -> tuple[Dataset, VQAReport]:
        rows = load_split(folder, "vqa", f"{name}/{split}", features)
        try:
            report = VQAReport.from_dict(read_json(folder / "report.json")[name][split])
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder / 'report.json'}: {name} of split {split!r} are missing; prepare the data again"
            ) from error
        report.check(f"{folder}: {name} of split {split!r}", len(rows), strict=config.strict)
        return rows, report

    return lambda split: (*load("rows", split, ROW_FEATURES), *load("edits", split, EDIT_FEATURES))


def _truncated(
    config: VQAConfig,
    name: str,
    train: tuple[Dataset, Dataset],
    test: tuple[Dataset, Dataset],
    familiar: Dataset | None,
    reports: dict[str, VQAReport],
) -> VQAData:
    train_rows, test_rows = _first(train[0], config.train_questions), _first(test[0], config.test_questions)
    train_edits, test_edits = _edits_of(train_rows, train[1]), _edits_of(test_rows, test[1])
    return VQAData(name, train_rows, train_edits, test_rows, test_edits, familiar, reports)


def hold_out_images(rows: Dataset) -> tuple[Dataset, Dataset]:
    """Split questions by their images: those of nine images in ten, and those of every tenth."""
    ids = rows["image_id"][:]
    images = list(dict.fromkeys(ids))
    if len(images) < HELD_OUT:
        raise DataError(
            f"evaluate_on=validation holds out every tenth image, but the training questions have only {len(images)} "
            "images; read more, or evaluate on test"
        )
    held_out = set(images[HELD_OUT - 1 :: HELD_OUT])
    return (
        rows.select([row for row, image in enumerate(ids) if image not in held_out]),
        rows.select([row for row, image in enumerate(ids) if image in held_out]),
    )


def _first(rows: Dataset, count: int | None) -> Dataset:
    return rows if count is None else rows.select(range(min(count, len(rows))))


def _edits_of(rows: Dataset, edits: Dataset) -> Dataset:
    """Return the edits of the given questions, so that no features of other edits are computed."""
    questions = set(rows["question_id"][:])
    positions = [position for position, question_id in enumerate(edits["question_id"][:]) if question_id in questions]
    if not positions:
        raise DataError(
            f"none of the {len(edits)} edits belongs to one of the {len(rows)} selected questions; raise "
            "train_questions and test_questions"
        )
    return edits if len(positions) == len(edits) else edits.select(positions)
