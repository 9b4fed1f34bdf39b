"""Counting scenes on disk, in the public formats of VQA v2 and of its edits, so that the readers of those read them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.files import write_json
from dair_hf.io.folders import atomic_folder
from dair_hf.io.prepared import write_mark
from dair_hf.vqa.scenes.questions import EDITS, Correlations, SceneQuestion, draw_scene, edits_of
from dair_hf.vqa.scenes.scene import Scene, Stage, render, require_stage
from dair_hf.vqa.scenes.sprites import Sprites, load_sprites

ANNOTATORS = 10
SPLITS = ("train", "familiar", "validation", "test")
BIASED = ("train", "familiar")
NUMBERS = 1_000_000  # of scenes that a split may hold: no two splits share a scene
ID_DIGITS = 12  # of an image id in a file name


@dataclass
class SceneConfig:
    """Counting scenes: how many, of what, and what gives the answers away.

    Raises:
        DataError: A value out of range, or a grid too small for the counts.

    Example:
        >>> SceneConfig(edit="iv").co_occurrence
        0.9
    """

    edit: str = field(
        default="cv",
        metadata={
            "help": "What partners are: cv (one thing that is asked about is removed, the answer changes) or iv (all "
            "things of another kind are removed, it stays).",
            "choices": EDITS,
        },
    )
    sprites: str = field(
        default="shapes", metadata={"help": "Things: shapes (drawn), digits (MNIST) or objects (CIFAR-10)."}
    )
    sprite_folder: str | None = field(
        default=None, metadata={"help": "Folder with the parquet files of MNIST or CIFAR-10, for digits and objects."}
    )
    train_scenes: int = field(default=8000, metadata={"help": "Training scenes, one question each; >= 1."})
    test_scenes: int = field(
        default=2000, metadata={"help": "Scenes of each of the splits test, validation and familiar; >= 1."}
    )
    edits_per_scene: int = field(default=2, metadata={"help": "Largest number of edits of a training scene, >= 1."})
    scene_size: int = field(default=64, metadata={"help": "Side of a picture, pixels."})
    scene_grid: int = field(default=4, metadata={"help": "Cells along a side, one thing each; must divide scene_size."})
    most: int = field(default=4, metadata={"help": "Largest count that is asked about, >= 1."})
    co_occurrence: float = field(
        default=0.9,
        metadata={
            "help": "Probability, in [0, 1], that a kind's companion gives the same answer, in the splits train and "
            "familiar; 0 in validation and test."
        },
    )
    language_prior: float = field(
        default=0.5,
        metadata={
            "help": "Probability, in [0, 1], that a kind has its usual answer, in train and familiar; 0 in the others."
        },
    )
    scene_seed: int = field(default=0, metadata={"help": "Seed of the scenes; the same for all runs of a comparison."})

    def __post_init__(self) -> None:
        if self.edit not in EDITS:
            raise DataError(f"edit={self.edit!r} is unknown; use one of {', '.join(EDITS)}")
        for name in ("train_scenes", "test_scenes", "edits_per_scene", "most"):
            if (value := getattr(self, name)) < 1:
                raise DataError(f"{name}={value} must be at least 1")
        if self.scene_seed < 0:
            raise DataError(f"scene_seed={self.scene_seed} must be at least 0")
        if max(self.train_scenes, self.test_scenes) > NUMBERS:
            raise DataError(f"train_scenes and test_scenes must be at most {NUMBERS:,}")
        require_stage(self.stage)
        if 2 * self.most > self.scene_grid**2:
            raise DataError(
                f"most={self.most} of a kind and of its companion do not fit into {self.scene_grid**2} cells; "
                "raise scene_grid or lower most"
            )
        self.correlations("train")

    @property
    def stage(self) -> Stage:
        """The size of the pictures."""
        return Stage(self.scene_size, self.scene_grid, self.scene_seed)

    def correlations(self, split: str) -> Correlations:
        """What gives answers away in a split."""
        biased = split in BIASED
        return Correlations(self.co_occurrence if biased else 0.0, self.language_prior if biased else 0.0)

    def sprites_of(self, split: str) -> Sprites:
        """The things of a split: those to test with are other pictures."""
        file = "train" if split == "train" else "test"
        return load_sprites(self.sprites, self.sprite_folder, file, self.stage.thing_size)


class SceneFiles(NamedTuple):
    """Where a split lies.

    Attributes:
        questions: Questions file.
        annotations: Annotations file.
        images: Folder of the pictures.
        edits: Folder with `questions.json`, `annotations.json` and `images` of the edits.
    """

    questions: Path
    annotations: Path
    images: Path
    edits: Path


def scene_files(folder: str | os.PathLike[str], split: str) -> SceneFiles:
    """The files of a split below `folder`.

    Example:
        >>> scene_files("scenes", "test").questions.as_posix()
        'scenes/test/questions.json'
    """
    root = Path(folder) / split
    return SceneFiles(root / "questions.json", root / "annotations.json", root / "images", root / "edits")


def write_scenes(
    config: SceneConfig, folder: str | os.PathLike[str], progress: bool = True, overwrite: bool = False
) -> Path:
    """Draw all splits and write them, whole or not at all; without `overwrite` a folder that is there is left as it is.

    A split is a folder with `questions.json`, `annotations.json` and `images/` in the format of VQA v2, and `edits/`
    with the same three in the format of IV-VQA and CV-VQA: ten equal answers each, an edit under the id of its scene
    and of what was removed. A training scene has up to `edits_per_scene` edits, every other scene up to one.

    Args:
        config: What to draw.
        folder: Where to write.
        progress: Whether to show a progress bar, on a terminal.
        overwrite: Whether to replace scenes that an earlier call wrote there.

    Returns:
        `folder`.

    Raises:
        DataError: As `load_sprites` and `atomic_folder`; or so few scenes that none of a split has an edit.
    """
    target = Path(folder)
    if target.exists() and not overwrite:
        return target
    counts = {split: config.train_scenes if split == "train" else config.test_scenes for split in SPLITS}
    with (
        atomic_folder(target, [config.sprite_folder] if config.sprite_folder else [], overwrite) as scratch,
        tqdm(
            total=sum(counts.values()), desc="Drawing scenes", unit="scene", disable=None if progress else True
        ) as bar,
    ):
        for split, count in counts.items():
            _write_split(config, split, count, scene_files(scratch, split), bar)
        write_mark(scratch, "scenes", {"settings": asdict(config)})
    return target


def _write_split(config: SceneConfig, split: str, count: int, files: SceneFiles, bar: Any) -> None:
    sprites, correlations = config.sprites_of(split), config.correlations(split)
    first = SPLITS.index(split) * NUMBERS + 1
    most_edits = config.edits_per_scene if split == "train" else 1
    originals, edited = _Records(files.images), _Records(files.edits / "images")
    for number in range(first, first + count):
        # By the scene's number alone: more scenes leave those that there were as they are.
        draws = np.random.default_rng([config.scene_seed, number])
        scene, question = draw_scene(number, draws, sprites, config.stage, correlations, config.most)
        edits = edits_of(scene, question, config.edit)
        edits = [edits[place] for place in sorted(draws.permutation(len(edits))[:most_edits])]
        scenes = [scene, *(edit.scene for edit in edits)]
        pictures = render(scenes, sprites, config.stage)
        originals.add(number, question, scene, sprites, pictures[0])
        for edit, picture in zip(edits, pictures[1:], strict=True):
            name = f"{number:0{ID_DIGITS}}_{edit.removed:0{ID_DIGITS}}"
            edited.add(name, question, edit.scene, sprites, picture)
        bar.update()
    if not edited.questions:
        raise DataError(f"split {split}: none of its {count} scenes has an edit ({config.edit}); draw more scenes")
    info = {"info": {"description": "counting scenes"}, "license": {}}
    header = {**info, "data_type": "scenes", "data_subtype": split}
    write_json(files.questions, {**header, "task_type": "Open-Ended", "questions": originals.questions})
    write_json(files.annotations, {**header, "annotations": originals.annotations})
    write_json(files.edits / "questions.json", {"questions": edited.questions})
    write_json(files.edits / "annotations.json", {"annotations": edited.annotations})


class _Records:
    """Questions, annotations and pictures of one kind."""

    def __init__(self, images: Path) -> None:
        self.images = images
        self.questions: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        images.mkdir(parents=True)

    def add(
        self, image_id: int | str, question: SceneQuestion, scene: Scene, sprites: Sprites, picture: np.ndarray
    ) -> None:
        name = image_id if isinstance(image_id, str) else f"{image_id:0{ID_DIGITS}}"
        Image.fromarray(picture).save(self.images / f"{name}.png", compress_level=1)
        ids = {"image_id": image_id, "question_id": scene.number}
        self.questions.append({**ids, "question": question.text(sprites)})
        answer = question.answer(scene, sprites)
        self.annotations.append(
            {
                **ids,
                "question_type": question.question_type,
                "answer_type": question.answer_type,
                "multiple_choice_answer": answer,
                "answers": [
                    {"answer": answer, "answer_confidence": "yes", "answer_id": number + 1}
                    for number in range(ANNOTATORS)
                ],
            }
        )
