"""The rows and edits of a VQA experiment: counting scenes, or VQA v2 with edited images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, Features

from dair_hf.errors import DataError
from dair_hf.io.files import read_json
from dair_hf.io.prepared import is_prepared, load_split, read_mark
from dair_hf.io.processes import gather_results, rank_and_size
from dair_hf.vqa.readers.images import ImageFolder, verified_images
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES, read_edits, read_vqa
from dair_hf.vqa.readers.report import Skipped, VQAReport
from dair_hf.vqa.scenes.files import SceneConfig, scene_files, write_scenes

SOURCES = ("scenes", "files")
EVALUATED = ("test", "validation")
SplitReader = Callable[[str], tuple[Dataset, VQAReport, Dataset, VQAReport]]
HELD_OUT = 10  # of the training images every tenth is held out to choose lambda with


@dataclass
class VQAConfig:
    """Data of an experiment on visual question answering.

    Raises:
        DataError: An unknown source, a folder that the source needs is not given or one that it does not read is, or a
            number below 1.

    Example:
        >>> VQAConfig().source
        'scenes'
    """

    source: str = field(
        default="scenes", metadata={"help": "scenes (counting scenes, drawn) or files (VQA v2).", "choices": SOURCES}
    )
    questions: str | None = field(
        default=None,
        metadata={
            "help": "Folder or archive with the questions and annotations of VQA v2, under their public names; or the "
            "folder written by data_scripts/prepare_vqa.py, which also holds the edits and the paths of all images."
        },
    )
    images: list[str] | None = field(default=None, metadata={"help": "Folders with their images."})
    edits: str | None = field(
        default=None, metadata={"help": "Folder or archive with questions and annotations of IV-VQA or CV-VQA."}
    )
    edited_images: list[str] | None = field(default=None, metadata={"help": "Folders with the edited images."})
    scene_folder: str | None = field(
        default=None,
        metadata={
            "help": "Folder written by data_scripts/prepare_counting_scenes.py with the same scene settings; None "
            "draws the scenes beside the output folder."
        },
    )
    strict: bool = field(default=False, metadata={"help": "Refuse data where anything would be left out."})
    train_questions: int | None = field(
        default=None, metadata={"help": "Training questions, the first of the file; None takes all."}
    )
    test_questions: int | None = field(
        default=None, metadata={"help": "Test questions, the first of the file; None takes all."}
    )
    evaluate_on: str = field(
        default="test",
        metadata={
            "help": "test (VQA v2: its split val), or validation to choose lambda with: scenes drawn for it, or every "
            "tenth image of the training split, which then is not trained on.",
            "choices": EVALUATED,
        },
    )
    answers: int = field(default=3000, metadata={"help": "Answers of the vocabulary: the most frequent ones, >= 1."})
    word_count: int = field(
        default=1, metadata={"help": "Words of fewer training questions are unknown to SAAA; >= 1."}
    )

    def __post_init__(self) -> None:
        for name, choices in (("source", SOURCES), ("evaluate_on", EVALUATED)):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        for name in ("train_questions", "test_questions", "answers", "word_count"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise DataError(f"{name}={value} must be at least 1")
        folders = ("questions", "images", "edits", "edited_images")
        given = [f"--{name}" for name in folders if getattr(self, name)]
        if self.source == "scenes" and given:
            raise DataError(f"{', '.join(given)} would not be read with source=scenes; set --source files")
        if self.source == "files" and self.scene_folder:
            raise DataError("--scene_folder would not be read with source=files; set --source scenes")
        if self.source == "files" and self.questions and is_prepared(self.questions):
            if given[1:]:
                raise DataError(f"{self.questions}: prepared data; leave out {', '.join(given[1:])}, which it holds")
        elif self.source == "files" and (missing := [f"--{name}" for name in folders if f"--{name}" not in given]):
            raise DataError(
                f"source=files needs {', '.join(missing)}: folders with VQA v2, COCO and the edits; or --questions "
                "alone with a folder written by data_scripts/prepare_vqa.py"
            )


class VQAData(NamedTuple):
    """Rows (`reading.ROW_FEATURES`) and edits (`reading.EDIT_FEATURES`) of an experiment.

    Attributes:
        name: Of the data, for tables and model cards.
        train: Training questions.
        train_edits: Their edits.
        test: Questions to evaluate on.
        test_edits: Their edits.
        familiar: Questions like the training ones, correlations included, to compare `test` with; None where there are
            none.
        reports: What was read and left out, by heading.
    """

    name: str
    train: Dataset
    train_edits: Dataset
    test: Dataset
    test_edits: Dataset
    familiar: Dataset | None
    reports: dict[str, VQAReport]


def load_vqa(
    config: VQAConfig,
    scenes: SceneConfig,
    folder: str | os.PathLike[str],
    verified: str | os.PathLike[str] | None = None,
) -> VQAData:
    """Draw or read the rows and edits of an experiment.

    On several processes the first draws the scenes, and all share out the images of files to decode them once: each
    must call it.

    Args:
        config: What to read.
        scenes: What to draw, with `source="scenes"`.
        folder: Where counting scenes are kept, or are drawn to if they are not there yet.
        verified: With `source="files"`, JSON file that keeps which images were decoded without complaint: those that
            have not changed are not decoded again. None: all are decoded.

    Returns:
        The same data for every method and seed.

    Raises:
        DataError: As the readers do.
    """
    if config.source == "scenes":
        if config.scene_folder:
            _require_scenes(config.scene_folder, scenes)
        return _scenes(config, scenes, Path(config.scene_folder or folder))
    return _files(config, verified)


def _require_scenes(folder: str, scenes: SceneConfig) -> None:
    """Raise DataError unless a prepared folder was drawn with these settings."""
    drawn = read_mark(folder, "scenes").get("settings", {})
    for name, value in asdict(scenes).items():
        if name != "sprite_folder" and (name not in drawn or drawn[name] != value):
            raise DataError(
                f"{folder}: drawn with {name}={drawn.get(name)!r}, the run has {name}={value!r}; give the run the same "
                "scene settings, or prepare the scenes anew"
            )


def _scenes(config: VQAConfig, scenes: SceneConfig, folder: Path) -> VQAData:
    gather_results(lambda: write_scenes(scenes, folder) if rank_and_size()[0] == 0 else None)
    found: dict[str, Dataset] = {}
    reports: dict[str, VQAReport] = {}
    for split in ("train", "familiar", config.evaluate_on):
        files = scene_files(folder, split)
        rows, reports[split] = read_vqa(files.questions, files.annotations, files.images, strict=True)
        edited = (files.edits / "questions.json", files.edits / "annotations.json", files.edits / "images")
        edits, reports[f"{split}, edits"] = read_edits(rows, *edited, strict=True)
        found |= {split: rows, f"{split}_edits": edits}
    name = config.evaluate_on
    train, test = _first(found["train"], config.train_questions), _first(found[name], config.test_questions)
    return VQAData(
        f"counting scenes ({scenes.edit.upper()}), {name}",
        train,
        _edits_of(train, found["train_edits"]),
        test,
        _edits_of(test, found[f"{name}_edits"]),
        _first(found["familiar"], config.test_questions),
        reports,
    )


def _files(config: VQAConfig, record: str | os.PathLike[str] | None) -> VQAData:
    assert config.questions
    reports: dict[str, VQAReport] = {}
    read_split = _prepared_reader(config) if is_prepared(config.questions) else _raw_reader(config, record)

    def read(split: str) -> tuple[Dataset, Dataset]:
        rows, reports[split], edits, reports[f"{split}, edits"] = read_split(split)
        return rows, edits

    train, train_edits = read("train")
    if config.evaluate_on == "validation":
        train, test = hold_out_images(train)
        test_edits, name = train_edits, "VQA v2 train, every tenth image"
    else:
        (test, test_edits), name = read("val"), "VQA v2 val"
    train, test = _first(train, config.train_questions), _first(test, config.test_questions)
    return VQAData(name, train, _edits_of(train, train_edits), test, _edits_of(test, test_edits), None, reports)


def _raw_reader(config: VQAConfig, record: str | os.PathLike[str] | None) -> SplitReader:
    assert config.questions and config.images and config.edits and config.edited_images
    questions, edited = config.questions, config.edits
    verified = verified_images(record)
    images, edited_images = (
        ImageFolder(*folders, verified=verified) for folders in (config.images, config.edited_images)
    )

    def read(split: str) -> tuple[Dataset, VQAReport, Dataset, VQAReport]:
        checks: dict[str, Any] = {"split": split, "strict": config.strict, "verify": True}
        rows, report = read_vqa(questions, questions, images, **checks)
        return rows, report, *read_edits(rows, edited, edited, edited_images, **checks)

    return read


def _prepared_reader(config: VQAConfig) -> SplitReader:
    assert config.questions
    folder = Path(config.questions)

    def load(name: str, split: str, features: Features) -> tuple[Dataset, VQAReport]:
        rows = load_split(folder, "vqa", f"{name}/{split}", features)
        try:
            content = read_json(folder / "report.json")[name][split]
            report = VQAReport(
                content["counts"],
                {problem: [Skipped(**entry) for entry in entries] for problem, entries in content["skipped"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder / 'report.json'}: lacks {name} of split {split!r}; prepare the data anew"
            ) from error
        report.check(f"{folder}: {name} of split {split!r}", len(rows), strict=config.strict)
        return rows, report

    return lambda split: (*load("rows", split, ROW_FEATURES), *load("edits", split, EDIT_FEATURES))


def hold_out_images(rows: Dataset) -> tuple[Dataset, Dataset]:
    """The questions of nine images in ten, and those of every tenth; an image is on one side with all its questions.

    Args:
        rows: Questions with `image_id`.

    Returns:
        Those to train on, and those to choose with.

    Raises:
        DataError: There are fewer than ten images.

    Example:
        >>> kept, held = hold_out_images(Dataset.from_dict({"image_id": [str(i) for i in range(20)]}))
        >>> len(kept), held["image_id"][:]
        (18, ['9', '19'])
    """
    ids = rows["image_id"][:]
    images = list(dict.fromkeys(ids))
    if len(images) < HELD_OUT:
        raise DataError(
            f"evaluate_on=validation holds out every tenth image, but the training questions have {len(images)}; "
            "read more, or evaluate on test"
        )
    held = set(images[HELD_OUT - 1 :: HELD_OUT])
    return (
        rows.select([row for row, name in enumerate(ids) if name not in held]),
        rows.select([row for row, name in enumerate(ids) if name in held]),
    )


def _first(rows: Dataset, count: int | None) -> Dataset:
    return rows if count is None else rows.select(range(min(count, len(rows))))


def _edits_of(rows: Dataset, edits: Dataset) -> Dataset:
    """The edits of these questions: the images of all others would be run through the backbone for nothing."""
    asked = set(rows["question_id"][:])
    kept = [place for place, question_id in enumerate(edits["question_id"][:]) if question_id in asked]
    if not kept:
        raise DataError(
            f"none of the {len(edits)} edits belongs to one of the {len(rows)} questions that are taken; take more by "
            "train_questions and test_questions"
        )
    return edits if len(kept) == len(edits) else edits.select(kept)
