"""Counting scenes on disk, in the formats of VQA v2 and its edits, so that the same readers read them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.files import atomic_folder, write_json
from dair_hf.io.prepared import write_mark
from dair_hf.settings import Range, Settings
from dair_hf.vqa.readers.reading import Reported, read_edits, read_vqa
from dair_hf.vqa.scenes.scene import SEED, Correlations, Scene, SceneQuestion, draw_scene, edits_of, render_scenes

ANNOTATORS = 10
SPLITS = ("train", "familiar", "validation", "test")
# Spurious correlations in train and familiar: the companion of a kind gives the same answer, a kind its usual answer.
BIASED, FAIR = Correlations(co_occurrence=0.9, language_prior=0.5), Correlations(0.0, 0.0)
MAX_EDITS = 2  # of a training scene; others have at most one
MAX_SCENES = 1_000_000  # per split; scene numbers of different splits never overlap
NAMES = ("questions.json", "annotations.json", "images")  # of a split, and in its folder "edits"
ID_DIGITS = 12  # of an image id in a file name
SceneCount = Annotated[int, Range(low=1, high=MAX_SCENES)]


@dataclass
class SceneConfig(Settings):
    """Counting scenes: their number and their edits."""

    edit: Literal["cv", "iv"] = field(
        default="cv",
        metadata={
            "help": "Edit that makes the partner: cv (covariant: remove one object of the queried kind, the answer "
            "changes) or iv (invariant: remove all objects of another kind, the answer stays)."
        },
    )
    train_scenes: SceneCount = field(
        default=8000, metadata={"help": "Number of training scenes, one question each; >= 1."}
    )
    test_scenes: SceneCount = field(
        default=2000, metadata={"help": "Number of scenes in each of the splits test, validation and familiar; >= 1."}
    )


def read_scenes(folder: str | os.PathLike[str], split: str) -> tuple[Reported, Reported]:
    """Read the questions and the edits of a split that `write_scenes` wrote, each with its report."""
    files, edits = ([Path(folder, *of, name) for name in NAMES] for of in ((split,), (split, "edits")))
    rows = read_vqa(*files, strict=True)
    return rows, read_edits(rows[0], *edits, strict=True)


def write_scenes(config: SceneConfig, folder: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Draw and write all splits, atomically; an existing folder is kept unless `overwrite` is set.

    A split is a folder with `questions.json`, `annotations.json` and `images/` in the format of VQA v2, and `edits/`
    with the same three in the format of IV-VQA and CV-VQA. Every question has ten equal answers. The image id of an
    edit consists of its scene and what was removed. Training scenes have up to two edits, others at most one.

    Raises:
        DataError: The folder holds something else, or no scene of a split has an edit.
    """
    target = Path(folder)
    if target.exists() and not overwrite:
        return target
    counts = {split: config.train_scenes if split == "train" else config.test_scenes for split in SPLITS}
    with (
        atomic_folder(target, overwrite=overwrite) as scratch,
        tqdm(total=sum(counts.values()), desc="Drawing scenes", unit="scene", disable=None) as bar,
    ):
        for split, count in counts.items():
            _write_split(config, split, count, Path(scratch, split), bar)
        write_mark(scratch, "scenes", {"settings": asdict(config)})
    return target


def _write_split(config: SceneConfig, split: str, count: int, folder: Path, bar: Any) -> None:
    correlations = BIASED if split in ("train", "familiar") else FAIR
    first = SPLITS.index(split) * MAX_SCENES + 1
    max_edits = MAX_EDITS if split == "train" else 1
    originals, edited = _Records(folder), _Records(folder / "edits")
    for number in range(first, first + count):
        # Seeded by the number of the scene, so that more scenes leave the first ones unchanged.
        rng = np.random.default_rng([SEED, number])
        scene, question = draw_scene(number, rng, correlations)
        edits = edits_of(scene, question, config.edit)
        edits = [edits[position] for position in sorted(rng.permutation(len(edits))[:max_edits])]
        images = render_scenes([scene, *(edit.scene for edit in edits)])
        originals.add(number, question, scene, images[0])
        for edit, image in zip(edits, images[1:], strict=True):
            image_id = f"{number:0{ID_DIGITS}}_{edit.removed:0{ID_DIGITS}}"
            edited.add(image_id, question, edit.scene, image)
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

    def add(self, image_id: int | str, question: SceneQuestion, scene: Scene, image: NDArray[np.uint8]) -> None:
        name = image_id if isinstance(image_id, str) else f"{image_id:0{ID_DIGITS}}"
        Image.fromarray(image).save(self.folder / "images" / f"{name}.png", compress_level=1)
        ids = {"image_id": image_id, "question_id": scene.number}
        self.questions.append({**ids, "question": question.text})
        answer = question.answer(scene)
        answers = [{"answer": answer, "answer_confidence": "yes", "answer_id": i + 1} for i in range(ANNOTATORS)]
        types = {"question_type": question.question_type, "answer_type": question.answer_type}
        self.annotations.append({**ids, **types, "multiple_choice_answer": answer, "answers": answers})

    def save(self, split: str) -> None:
        header = {"info": {"description": "counting scenes"}, "license": {}, "data_type": "scenes"}
        header |= {"task_type": "Open-Ended", "data_subtype": split}
        for kind, records in (("questions", self.questions), ("annotations", self.annotations)):
            write_json(self.folder / f"{kind}.json", {**header, kind: records})
