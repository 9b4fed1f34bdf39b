"""Counting scenes on disk, in the formats of VQA v2 and its edits, so that the same readers read them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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
from dair_hf.settings import Count, Range, Settings, Share
from dair_hf.vqa.readers.reading import Reported, read_edits, read_vqa
from dair_hf.vqa.scenes.scene import (
    MIN_SIZE,
    Correlations,
    Scene,
    SceneLayout,
    SceneQuestion,
    Sprites,
    draw_scene,
    edits_of,
    load_sprites,
    render_scenes,
)

ANNOTATORS = 10
SPLITS = ("train", "familiar", "validation", "test")
BIASED_SPLITS = ("train", "familiar")
MAX_SCENES = 1_000_000  # per split; scene numbers of different splits never overlap
NAMES = ("questions.json", "annotations.json", "images")  # of a split, and in its folder "edits"
ID_DIGITS = 12  # of an image id in a file name
SceneCount = Annotated[int, Range(low=1, high=MAX_SCENES)]


@dataclass
class SceneConfig(Settings):
    """Counting scenes: their number, objects, edits and spurious correlations."""

    PATH_FIELDS: ClassVar = ("sprite_folder",)  # not compared between runs: the scenes have a fingerprint

    edit: Literal["cv", "iv"] = field(
        default="cv",
        metadata={
            "help": "Edit that makes the partner: cv (covariant: remove one object of the queried kind, the answer "
            "changes) or iv (invariant: remove all objects of another kind, the answer stays)."
        },
    )
    sprites: Literal["shapes", "digits", "objects"] = field(
        default="shapes", metadata={"help": "Objects: shapes (drawn), digits (MNIST) or objects (CIFAR-10)."}
    )
    sprite_folder: str | None = field(
        default=None, metadata={"help": "Folder with the parquet files of MNIST or CIFAR-10, for digits and objects."}
    )
    train_scenes: SceneCount = field(
        default=8000, metadata={"help": "Number of training scenes, one question each; >= 1."}
    )
    test_scenes: SceneCount = field(
        default=2000, metadata={"help": "Number of scenes in each of the splits test, validation and familiar; >= 1."}
    )
    edits_per_scene: Count = field(default=2, metadata={"help": "Maximal number of edits of a training scene, >= 1."})
    scene_size: Count = field(default=64, metadata={"help": "Height and width of an image, in pixels."})
    scene_grid: Annotated[int, Range(low=2)] = field(
        default=4, metadata={"help": "Cells along a side, with at most one object each; must divide scene_size."}
    )
    most: Count = field(default=4, metadata={"help": "Largest count in an answer, >= 1."})
    co_occurrence: Share = field(
        default=0.9,
        metadata={
            "help": "Probability, in [0, 1], that the companion of a kind gives the same answer, in the splits train "
            "and familiar; 0 in validation and test."
        },
    )
    language_prior: Share = field(
        default=0.5,
        metadata={
            "help": "Probability, in [0, 1], that a kind has its usual answer, in train and familiar; 0 in validation "
            "and test."
        },
    )
    scene_seed: Annotated[int, Range(low=0)] = field(
        default=0, metadata={"help": "Seed of the scenes; the same for all runs of a comparison."}
    )

    def check(self) -> None:
        """Refuse a grid without room for the objects, and sprites without their images."""
        size, cells = self.layout.object_size, self.scene_grid**2
        if self.scene_size % self.scene_grid or size < MIN_SIZE:
            raise DataError(
                f"scene_size={self.scene_size}, scene_grid={self.scene_grid}: expected a grid that divides the size, "
                f"with objects of at least {MIN_SIZE} pixels, got {size}"
            )
        if 2 * self.most > cells:  # objects of a kind and of its companion
            raise DataError(f"most={self.most}: expected at most half of {cells} cells")
        if self.sprites != "shapes" and self.sprite_folder is None:
            raise DataError(f"sprite_folder: expected a folder with the images of {self.sprites}, got none")

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
        """Settings that determine the scenes, with the images of the sprites in place of their folder."""
        if self.sprites == "shapes":  # needs no folder
            return {**asdict(self), "sprite_folder": None}
        splits = {split: map(torch.from_numpy, self.sprites_of(split).images) for split in ("train", "test")}
        return {**asdict(self), "sprite_folder": {split: tensor_fingerprint(*of) for split, of in splits.items()}}


def read_scenes(folder: str | os.PathLike[str], split: str) -> tuple[Reported, Reported]:
    """Read the questions and the edits of a split that `write_scenes` wrote, each with its report."""
    files, edits = ([Path(folder, *of, name) for name in NAMES] for of in ((split,), (split, "edits")))
    rows = read_vqa(*files, strict=True)
    return rows, read_edits(rows[0], *edits, strict=True)


def write_scenes(config: SceneConfig, folder: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Draw and write all splits, atomically; an existing folder is kept unless `overwrite` is set.

    A split is a folder with `questions.json`, `annotations.json` and `images/` in the format of VQA v2, and `edits/`
    with the same three in the format of IV-VQA and CV-VQA. Every question has ten equal answers. The image id of an
    edit consists of its scene and what was removed. Training scenes have up to `edits_per_scene` edits, others at most
    one.

    Raises:
        DataError: The folder holds something else, the images of the sprites cannot be used, or no scene of a split
            has an edit.
    """
    target = Path(folder)
    if target.exists() and not overwrite:
        return target
    counts = {split: config.train_scenes if split == "train" else config.test_scenes for split in SPLITS}
    with (
        atomic_folder(target, [config.sprite_folder] if config.sprite_folder else [], overwrite) as scratch,
        tqdm(total=sum(counts.values()), desc="Drawing scenes", unit="scene", disable=None) as bar,
    ):
        for split, count in counts.items():
            _write_split(config, split, count, Path(scratch, split), bar)
        write_mark(scratch, "scenes", {"settings": asdict(config)})
    return target


def _write_split(config: SceneConfig, split: str, count: int, folder: Path, bar: Any) -> None:
    sprites, correlations = config.sprites_of(split), config.correlations(split)
    first = SPLITS.index(split) * MAX_SCENES + 1
    max_edits = config.edits_per_scene if split == "train" else 1
    originals, edited = _Records(folder), _Records(folder / "edits")
    for number in range(first, first + count):
        # Seeded by the number of the scene, so that more scenes leave the first ones unchanged.
        rng = np.random.default_rng([config.scene_seed, number])
        scene, question = draw_scene(number, rng, sprites, config.layout, correlations, config.most)
        edits = edits_of(scene, question, config.edit)
        edits = [edits[position] for position in sorted(rng.permutation(len(edits))[:max_edits])]
        scenes = [scene, *(edit.scene for edit in edits)]
        images = render_scenes(scenes, sprites, config.layout)
        originals.add(number, question, scene, sprites, images[0])
        for edit, image in zip(edits, images[1:], strict=True):
            image_id = f"{number:0{ID_DIGITS}}_{edit.removed:0{ID_DIGITS}}"
            edited.add(image_id, question, edit.scene, sprites, image)
        bar.update()
    if not edited.questions:
        raise DataError(f"split {split}: expected scenes with an edit ({config.edit}), got none in {count}; draw more")
    for records in (originals, edited):
        records.save(split)


class _Records:
    """Writer of a folder: images, and their questions and annotations, collected until the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.questions: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        (folder / "images").mkdir(parents=True)

    def add(
        self, image_id: int | str, question: SceneQuestion, scene: Scene, sprites: Sprites, image: NDArray[np.uint8]
    ) -> None:
        name = image_id if isinstance(image_id, str) else f"{image_id:0{ID_DIGITS}}"
        Image.fromarray(image).save(self.folder / "images" / f"{name}.png", compress_level=1)
        ids = {"image_id": image_id, "question_id": scene.number}
        self.questions.append({**ids, "question": question.text(sprites)})
        answer = question.answer(scene, sprites)
        answers = [{"answer": answer, "answer_confidence": "yes", "answer_id": i + 1} for i in range(ANNOTATORS)]
        types = {"question_type": question.question_type, "answer_type": question.answer_type}
        self.annotations.append({**ids, **types, "multiple_choice_answer": answer, "answers": answers})

    def save(self, split: str) -> None:
        header = {"info": {"description": "counting scenes"}, "license": {}, "data_type": "scenes"}
        header |= {"task_type": "Open-Ended", "data_subtype": split}
        for kind, records in (("questions", self.questions), ("annotations", self.annotations)):
            write_json(self.folder / f"{kind}.json", {**header, kind: records})
