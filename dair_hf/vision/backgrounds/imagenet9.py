"""ImageNet-9 and its variants with other backgrounds, read from folders."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable
from PIL import Image
from torch import Tensor

from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.counter_rng import uniform
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.view_columns import AUGMENTED_PREFIX
from dair_hf.errors import DataError
from dair_hf.io.file_values import FileValueCache
from dair_hf.settings import Count, Settings
from dair_hf.vision.backgrounds.variants import CLASSES, MIXED_RAND, ORIGINAL, VARIANTS

IMAGE = "image"
SUFFIXES = (".jpeg", ".jpg", ".png")
_CLASS = re.compile(r"(?P<label>\d\d)_(?P<name>.+)")
_MIXED = re.compile(r"fg_(?P<foreground>.+?)_bg_.+")
HELD_OUT = 10  # every tenth training image is held out for validation
CROP, MIRRORED = "crop", "mirrored"
# Channel statistics of ImageNet-9 in 0..1, as published with it.
MEAN, STD = (0.4717, 0.4499, 0.3837), (0.2600, 0.2516, 0.2575)
SMALLEST_CROP = 0.08  # area of a training crop, as a share of the image
MAX_ASPECT = 4 / 3  # of a crop, longer over shorter side
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, zlib.error, Image.DecompressionBombError)


def _read_variants(
    folder: str | os.PathLike[str], split: str, variants: Sequence[str] = tuple(VARIANTS)
) -> dict[str, Dataset]:
    """List the images of several variants, for `evaluate_variants`, without opening them."""
    rows = {variant: _read_variant(Path(folder) / variant / split) for variant in variants}
    ids = {variant: set(dataset[ROW_ID][:]) for variant, dataset in rows.items()}
    all_ids = set().union(*ids.values())
    if missing := {variant: sorted(all_ids - present) for variant, present in ids.items() if all_ids - present}:
        found = "; ".join(
            f"{len(names)} of {variant}/{split}: {', '.join(names[:5])}" for variant, names in missing.items()
        )
        raise DataError(f"{folder}: expected the same foregrounds in every variant, missing {found}")
    return rows


def _pair_variants(originals: Dataset, partners: Dataset) -> Dataset:
    """Pair each image with the image of the same foreground in another variant."""
    index_of = {row_id: index for index, row_id in enumerate(partners[ROW_ID][:])}
    indices = [index_of.get(row_id) for row_id in originals[ROW_ID][:]]
    for name in (IMAGE, LABELS):
        values = partners[name][:]
        column = [None if index is None else values[index] for index in indices]
        originals = originals.add_column(AUGMENTED_PREFIX + name, column, feature=partners.features[name])
    return originals


def _select_rows(rows: Dataset, row_ids: Collection[str]) -> Dataset:
    """Select rows by their ids, in the order of the data set."""
    return rows.select([index for index, row_id in enumerate(rows[ROW_ID][:]) if row_id in row_ids])


def _read_variant(root: Path) -> Dataset:
    root = root.absolute()  # files may be opened from elsewhere
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    classes = [match for folder in folders if (match := _CLASS.fullmatch(folder))]
    if [match["label"] for match in classes] != [f"{label:02d}" for label in range(CLASSES)] or len(folders) != CLASSES:
        raise DataError(
            f"{root}: expected nine folders of classes, such as 00_dog to 08_fish, got {', '.join(folders)}"
        )
    columns: dict[str, list[str | int]] = {ROW_ID: [], IMAGE: [], LABELS: []}
    for label, folder in enumerate(folders):
        for foreground, path in sorted(_images(root / folder).items()):
            columns[ROW_ID].append(f"{folder}/{foreground}")
            columns[IMAGE].append(path)
            columns[LABELS].append(label)
    names = [match["name"] for match in classes]
    features = Features({ROW_ID: Value("string"), IMAGE: Value("string"), LABELS: ClassLabel(names=names)})
    return Dataset.from_dict(columns, features=features)


def _images(folder: Path) -> dict[str, str]:
    """Return foreground -> path."""
    paths: dict[str, str] = {}
    for file in folder.iterdir():
        # macOS stores metadata as `._name.jpg` next to `name.jpg`.
        if file.name.startswith(".") or file.suffix.lower() not in SUFFIXES:
            continue
        mixed = _MIXED.fullmatch(file.stem)
        foreground = mixed["foreground"] if mixed else file.stem
        if foreground in paths:
            raise DataError(f"{folder}: expected one image of {foreground}, got {paths[foreground]} and {file.name}")
        paths[foreground] = str(file)
    return paths


@dataclass
class ImageNet9Config(Settings):
    """Folders of ImageNet-9, and crops of its images."""

    PATH_FIELDS: ClassVar = ("train_folder", "test_folder")  # not compared between runs: the images have a fingerprint

    train_folder: str | None = field(
        default=None,
        metadata={"help": "Folder of the training data: original/train and mixed_rand/train, nine classes in each."},
    )
    test_folder: str | None = field(
        default=None, metadata={"help": "Folder of the public test data, bg_challenge: original/val and so on."}
    )
    evaluate_on: Literal["test", "validation"] = field(
        default="test",
        metadata={
            "help": "test, or validation to choose lambda with: every tenth training image, which is then not trained "
            "on, in the variants of the training data."
        },
    )
    input_size: Count = field(default=224, metadata={"help": "Side of the model's input images in pixels."})


class _ImageNet9Data(NamedTuple):
    """Rows of an experiment."""

    classes: tuple[str, ...]
    train: Dataset
    tests: dict[str, Dataset]

    def fingerprints(self, hashes: FileValueCache) -> dict[str, str]:
        """Return "train" and each variant -> fingerprint of its rows and of the content of their images.

        All processes of a run must call this method.
        """
        tests = {name: hashes.fingerprint(rows, [IMAGE]) for name, rows in self.tests.items()}
        return {"train": hashes.fingerprint(self.train, [IMAGE, AUGMENTED_PREFIX + IMAGE]), **tests}


def load_imagenet9(config: ImageNet9Config) -> _ImageNet9Data:
    """List the rows of an experiment, without opening images."""
    train_folder, test_folder = config.train_folder, config.test_folder
    if train_folder is None or (test_folder is None and config.evaluate_on == "test"):
        raise DataError(
            f"train_folder={train_folder}, test_folder={test_folder}: expected the folders of the unpacked ImageNet-9"
        )
    train = _read_variants(train_folder, "train", (ORIGINAL, MIXED_RAND))
    pairs = _pair_variants(train[ORIGINAL], train[MIXED_RAND])
    if config.evaluate_on == "test":
        tests = _read_variants(str(test_folder), "val")
    else:
        pairs, tests = _hold_out(train_folder, pairs)
    classes, test_classes = (tuple(rows.features[LABELS].names) for rows in (pairs, tests[ORIGINAL]))
    if classes != test_classes:
        raise DataError(f"{test_folder}: expected the classes of {train_folder}, {classes}, got {test_classes}")
    return _ImageNet9Data(classes, pairs, tests)


def imagenet9_train_pairs(data: _ImageNet9Data, seed: int, partners: bool = True) -> EpochPairs:
    """Return the training pairs for `CropCollator`: both views of a pair have the same crop, redrawn in each epoch."""
    names = list(data.train.column_names)
    if not partners:
        names = [name for name in names if not name.startswith(AUGMENTED_PREFIX)]
    rows = data.train.select_columns(names)
    table = rows.with_format("arrow")[:]
    prefixes = ("", AUGMENTED_PREFIX) if partners else ("",)
    added = {CROP: List(Value("float32")), MIRRORED: Value("bool")}
    features = Features(
        {**rows.features, **{prefix + name: feature for prefix in prefixes for name, feature in added.items()}}
    )

    def draw(epoch: int) -> Dataset:
        crops, mirrored = _draw_crops(torch.arange(len(rows)), seed, epoch)
        pairs = table
        for prefix in prefixes:
            pairs = pairs.append_column(prefix + CROP, pa.array(crops.tolist(), pa.list_(pa.float32())))
            pairs = pairs.append_column(prefix + MIRRORED, pa.array(mirrored.numpy()))
        # The settings identify the content; the default fingerprint would hash all of it.
        return Dataset(
            InMemoryTable(pairs.cast(features.arrow_schema)),
            info=DatasetInfo(features=features.copy()),
            fingerprint=Hasher.hash((rows._fingerprint, seed, epoch, SMALLEST_CROP)),
        )

    return EpochPairs(draw)


class CropCollator:
    """Collator of single views of rows with image paths; `PairCollator` wraps it for pairs.

    The `crop` (left, top, right, bottom, as shares of the central square) of the file in the column `image` is resized
    (Pillow, bilinear), flipped horizontally if `mirrored`, and normalized: `(pixel / 255 - mean) / std`. Without these
    columns the crop is the central square. Orientation metadata are ignored, as by the authors of the variants.
    """

    columns = (IMAGE, CROP, MIRRORED, LABELS)

    def __init__(self, size: int = 224, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        self.size = size
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)

    def __call__(self, views: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate views."""
        pixels = torch.stack([self._pixels(view) for view in views])
        batch = {"pixel_values": pixels.float().div_(255).sub_(self.mean).div_(self.std)}
        if LABELS in views[0]:
            batch[LABELS] = torch.tensor([view[LABELS] for view in views])
        return batch

    def _pixels(self, view: Mapping[str, Any]) -> Tensor:
        """Return `[3, size, size]` uint8."""
        path, crop = view[IMAGE], view.get(CROP) or (0.0, 0.0, 1.0, 1.0)
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except _DAMAGED as error:  # in the middle of training; Pillow's errors do not name the file
            raise DataError(f"{path}: not a readable image ({error})") from error
        box = _pixel_box(image.size, crop)
        resized = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
        return pixels.flip(2) if view.get(MIRRORED) else pixels


def _draw_crops(rows: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """Draw a crop of each image, `[B, 4]` (left, top, right, bottom, as shares), and whether it is flipped, `[B]`.

    Its area a is uniform in `SMALLEST_CROP`..1. The logarithm of its aspect ratio (width over height) is uniform
    between log(3/4) and log(4/3), restricted to a..1/a so that the crop fits. Its position is uniform.
    """
    drawn = uniform(rows, seed, epoch, "imagenet9/crop", count=5)
    area = SMALLEST_CROP + (1 - SMALLEST_CROP) * drawn[:, 0]
    log_limit = area.reciprocal().clamp_(max=MAX_ASPECT).log()
    aspect = ((2 * drawn[:, 1] - 1) * log_limit).exp()
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], dim=1).clamp_(max=1.0)
    corner = drawn[:, 2:4] * (1 - sides)
    # Rounding to float32 may exceed 1.
    return torch.cat([corner, corner + sides], dim=1).float().clamp_(max=1.0), drawn[:, 4] < 0.5


def _pixel_box(size: tuple[int, int], crop: Sequence[float]) -> tuple[float, float, float, float]:
    """Convert shares of the central square to pixels."""
    width, height = size
    side = min(size)
    left, top = (width - side) // 2, (height - side) // 2
    return left + crop[0] * side, top + crop[1] * side, left + crop[2] * side, top + crop[3] * side


def _hold_out(folder: str, pairs: Dataset) -> tuple[Dataset, dict[str, Dataset]]:
    """Split into training pairs and validation rows."""
    present = [variant for variant in VARIANTS if (Path(folder) / variant / "train").is_dir()]
    row_ids = pairs[ROW_ID][:]
    held_out = set(row_ids[::HELD_OUT])
    variants = _read_variants(folder, "train", present)
    tests = {variant: _select_rows(rows, held_out) for variant, rows in variants.items()}
    return _select_rows(pairs, set(row_ids) - held_out), tests
