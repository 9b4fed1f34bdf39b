"""Counting scenes on disk, in the formats of VQA v2 and its edits, so that the same readers read them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tqdm.auto import tqdm

from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.errors import DataError
from dair_hf.io.files import write_json
from dair_hf.io.folders import atomic_folder
from dair_hf.io.prepared import write_mark
from dair_hf.vqa.scenes.questions import EDITS, Correlations, SceneQuestion, draw_scene, edits_of
from dair_hf.vqa.scenes.scene import Scene, SceneLayout, render
from dair_hf.vqa.scenes.sprites import Sprites, load_sprites

ANNOTATORS = 10
SPLITS = ("train", "familiar", "validation", "test")
BIASED_SPLITS = ("train", "familiar")
MAX_SCENES = 1_000_000  # per split; scene numbers of different splits never overlap
ID_DIGITS = 12  # of an image id in a file name


@dataclass
class SceneConfig:
    """Counting scenes: their number, objects, edits and spurious correlations.

    Raises:
        DataError: A value is out of range, or the grid is too small for the counts.

    Example:
        >>> SceneConfig(edit="iv").co_occurrence
        0.9
    """

    PATH_FIELDS: ClassVar = ("sprite_folder",)  # not compared between runs: the scenes have a fingerprint

    edit: str = field(
        default="cv",
        metadata={
            "help": "Edit that makes the partner: cv (covariant: remove one object of the queried kind, the answer "
            "changes) or iv (invariant: remove all objects of another kind, the answer stays).",
            "choices": EDITS,
        },
    )
    sprites: str = field(
        default="shapes", metadata={"help": "Objects: shapes (drawn), digits (MNIST) or objects (CIFAR-10)."}
    )
    sprite_folder: str | None = field(
        default=None, metadata={"help": "Folder with the parquet files of MNIST or CIFAR-10, for digits and objects."}
    )
    train_scenes: int = field(default=8000, metadata={"help": "Number of training scenes, one question each; >= 1."})
    test_scenes: int = field(
        default=2000, metadata={"help": "Number of scenes in each of the splits test, validation and familiar; >= 1."}
    )
    edits_per_scene: int = field(default=2, metadata={"help": "Maximal number of edits of a training scene, >= 1."})
    scene_size: int = field(default=64, metadata={"help": "Height and width of an image, in pixels."})
    scene_grid: int = field(
        default=4, metadata={"help": "Cells along a side, with at most one object each; must divide scene_size."}
    )
    most: int = field(default=4, metadata={"help": "Largest count in an answer, >= 1."})
    co_occurrence: float = field(
        default=0.9,
        metadata={
            "help": "Probability, in [0, 1], that the companion of a kind gives the same answer, in the splits train "
            "and familiar; 0 in validation and test."
        },
    )
    language_prior: float = field(
        default=0.5,
        metadata={
            "help": "Probability, in [0, 1], that a kind has its usual answer, in train and familiar; 0 in validation "
            "and test."
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
        if max(self.train_scenes, self.test_scenes) > MAX_SCENES:
            raise DataError(f"train_scenes and test_scenes must be at most {MAX_SCENES:,}")
        cells = self.layout.grid**2
        if 2 * self.most > cells:
            raise DataError(
                f"most={self.most} objects of a kind and of its companion do not fit into {cells} cells; raise "
                "scene_grid or lower most"
            )
        self.correlations("train")

    @property
    def layout(self) -> SceneLayout:
        """Size of the scenes."""
        return SceneLayout(self.scene_size, self.scene_grid, self.scene_seed)

    def correlations(self, split: str) -> Correlations:
        """Return the spurious correlations in a split."""
        is_biased = split in BIASED_SPLITS
        return Correlations(self.co_occurrence if is_biased else 0.0, self.language_prior if is_biased else 0.0)

    def sprites_of(self, split: str) -> Sprites:
        """Return the objects of a split; all splits but `train` use the test images."""
        file = "train" if split == "train" else "test"
        return load_sprites(self.sprites, self.sprite_folder, file, self.layout.object_size)

    @property
    def content(self) -> dict[str, Any]:
        """Settings that determine the scenes: those of the dataclass, with the images of the sprites for their folder.

        Example:
            >>> SceneConfig(sprite_folder="elsewhere").content["sprite_folder"] is None
            True
        """
        if self.sprites == "shapes":  # needs no folder
            return {**asdict(self), "sprite_folder": None}
        splits = {split: map(torch.from_numpy, self.sprites_of(split).images) for split in ("train", "test")}
        return {**asdict(self), "sprite_folder": {split: tensor_fingerprint(*of) for split, of in splits.items()}}


class SceneFiles(NamedTuple):
    """Files of a split."""

    questions: Path
    annotations: Path
    images: Path
    edits: Path


def scene_files(folder: str | os.PathLike[str], split: str) -> SceneFiles:
    """Return the files of a split below `folder`.

    Example:
        >>> scene_files("scenes", "test").questions.as_posix()
        'scenes/test/questions.json'
    """
    root = Path(folder) / split
    return SceneFiles(root / "questions.json", root / "annotations.json", root / "images", root / "edits")


def write_scenes(
    config: SceneConfig, folder: str | os.PathLike[str], progress: bool = True, overwrite: bool = False
) -> Path:
    """Draw and write all splits, atomically; an existing folder is kept unless `overwrite` is set.

    A split is a folder with `questions.json`, `annotations.json` and `images/` in the format of VQA v2, and `edits/`
    with the same three in the format of IV-VQA and CV-VQA. Every question has ten equal answers. The image id of an
    edit consists of its scene and what was removed. Training scenes have up to `edits_per_scene` edits, others at most
    one.

    Args:
        config: Scenes to draw.
        folder: Folder to write.
        progress: Whether to show a progress bar on a terminal.
        overwrite: Whether to replace scenes that an earlier call wrote there.

    Returns:
        `folder`.

    Raises:
        DataError: As `load_sprites` and `atomic_folder`; or no scene of a split has an edit.
    """
    target = Path(folder)
    if target.exists() and not overwrite:
        return target
    counts = {split: config.train_scenes if split == "train" else config.test_scenes for split in SPLITS}
    disable = None if progress else True
    with (
        atomic_folder(target, [config.sprite_folder] if config.sprite_folder else [], overwrite) as scratch,
        tqdm(total=sum(counts.values()), desc="Drawing scenes", unit="scene", disable=disable) as bar,
    ):
        for split, count in counts.items():
            _write_split(config, split, count, scene_files(scratch, split), bar)
        write_mark(scratch, "scenes", {"settings": asdict(config)})
    return target


def _write_split(config: SceneConfig, split: str, count: int, files: SceneFiles, bar: Any) -> None:
    sprites, correlations = config.sprites_of(split), config.correlations(split)
    first = SPLITS.index(split) * MAX_SCENES + 1
    max_edits = config.edits_per_scene if split == "train" else 1
    originals, edited = _Records(files.images), _Records(files.edits / "images")
    for number in range(first, first + count):
        # Seeded by the number of the scene, so that more scenes leave the first ones unchanged.
        rng = np.random.default_rng([config.scene_seed, number])
        scene, question = draw_scene(number, rng, sprites, config.layout, correlations, config.most)
        edits = edits_of(scene, question, config.edit)
        edits = [edits[position] for position in sorted(rng.permutation(len(edits))[:max_edits])]
        scenes = [scene, *(edit.scene for edit in edits)]
        images = render(scenes, sprites, config.layout)
        originals.add(number, question, scene, sprites, images[0])
        for edit, image in zip(edits, images[1:], strict=True):
            image_id = f"{number:0{ID_DIGITS}}_{edit.removed:0{ID_DIGITS}}"
            edited.add(image_id, question, edit.scene, sprites, image)
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
    """Writer of images that collects their questions and annotations."""

    def __init__(self, images: Path) -> None:
        self.images = images
        self.questions: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        images.mkdir(parents=True)

    def add(
        self, image_id: int | str, question: SceneQuestion, scene: Scene, sprites: Sprites, image: NDArray[np.uint8]
    ) -> None:
        name = image_id if isinstance(image_id, str) else f"{image_id:0{ID_DIGITS}}"
        Image.fromarray(image).save(self.images / f"{name}.png", compress_level=1)
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
