"""An experiment on ImageNet-9 (paper, section 8): training pairs with mixed backgrounds, and the eight test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.data.collator import AUGMENTED_PREFIX, LABELS, ROW_ID
from dair_hf.data.sampling import EpochPairs
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.pictures import CROP, MIRRORED, draw_crops
from dair_hf.vision.backgrounds.variant_folders import VariantRows, chosen_rows, pair_variants, read_variants
from dair_hf.vision.backgrounds.variants import MIXED_RAND, ORIGINAL, VARIANTS
from dair_hf.vision.settings import SPLITS, require_choice

HELD_OUT = 10  # of the training pictures every tenth is held out to choose lambda with


@dataclass
class ImageNet9Config:
    """Where ImageNet-9 is and how its pictures are cut.

    Raises:
        DataError: An unknown split, or a number out of range.

    Example:
        >>> ImageNet9Config(train_folder="in9", test_folder="bg_challenge").input_size
        224
    """

    train_folder: str | None = field(
        default=None,
        metadata={"help": "Folder of the training data: original/train and mixed_rand/train, nine classes in each."},
    )
    test_folder: str | None = field(
        default=None, metadata={"help": "Folder of the public test data, bg_challenge: original/val and so on."}
    )
    evaluate_on: str = field(
        default="test",
        metadata={
            "help": "test, or validation to choose lambda with: every tenth training picture, which then is not "
            "trained on, in the variants that the training data have.",
            "choices": SPLITS,
        },
    )
    input_size: int = field(
        default=224, metadata={"help": "Side of the pictures as the model gets them, pixels; >= 1."}
    )
    smallest_crop: float = field(
        default=0.08,
        metadata={
            "help": "Smallest part of a training picture, as a share of its area, in (0, 1]: parts and their mirror "
            "images are drawn anew each epoch; 1 leaves pictures whole."
        },
    )
    shared_crop: bool = field(
        default=True,
        metadata={
            "help": "Cut both views of a pair alike, so that they differ in their background only; false draws a part "
            "for each. The paper does not say."
        },
    )
    strict: bool = field(
        default=True,
        metadata={"help": "Refuse data with missing files; false leaves their foregrounds out of every variant."},
    )

    def __post_init__(self) -> None:
        require_choice("evaluate_on", self.evaluate_on, SPLITS)
        if self.input_size < 1:
            raise DataError(f"input_size={self.input_size} must be at least 1")
        if not 0.0 < self.smallest_crop <= 1.0:
            raise DataError(f"smallest_crop={self.smallest_crop} must be above 0 and at most 1")


class ImageNet9Data(NamedTuple):
    """Rows of an experiment.

    Attributes:
        classes: Names of the nine classes.
        train: Pairs of an original and a mixed background: `row_id`, `image`, `labels`, `augmented_image`,
            `augmented_labels`.
        tests: Variant -> rows to test on, for `variants.evaluate_variants`.
        missing: "train/<variant>" and so on -> the rows that this variant lacks, and which were left out.
    """

    classes: tuple[str, ...]
    train: Dataset
    tests: dict[str, Dataset]
    missing: dict[str, list[str]]


def load_imagenet9(config: ImageNet9Config) -> ImageNet9Data:
    """Read the rows of an experiment; no picture is opened.

    Args:
        config: Where they are.

    Returns:
        The same rows for every method and seed.

    Raises:
        DataError: A folder is not given or cannot be used, files are missing (with `strict`), or the classes of
            training and test differ.

    Example:
        >>> data = load_imagenet9(ImageNet9Config(train_folder="in9", test_folder="bg_challenge"))  # doctest: +SKIP
        >>> data.classes[2], len(data.tests["mixed_rand"])  # doctest: +SKIP
        ('wheeled vehicle', 4050)
    """
    needed = {"train_folder": config.train_folder}
    if config.evaluate_on == "test":
        needed["test_folder"] = config.test_folder
    if unset := [name for name, folder in needed.items() if folder is None]:
        raise DataError(f"{', '.join(unset)} not set; give the folders in which ImageNet-9 was unpacked")
    assert config.train_folder is not None
    train = read_variants(config.train_folder, "train", (ORIGINAL, MIXED_RAND), config.strict)
    missing = {f"train/{variant}": rows for variant, rows in train.missing.items()}
    pairs = pair_variants(train.rows[ORIGINAL], train.rows[MIXED_RAND])
    if config.evaluate_on == "test":
        assert config.test_folder is not None
        tests = read_variants(config.test_folder, "val", tuple(VARIANTS), config.strict)
    else:
        pairs, tests = _held_out(config.train_folder, pairs, config.strict)
    missing |= {f"{config.evaluate_on}/{variant}": rows for variant, rows in tests.missing.items()}
    classes, tested = (tuple(rows.features[LABELS].names) for rows in (pairs, tests.rows[ORIGINAL]))
    if classes != tested:
        raise DataError(
            f"{config.test_folder}: the classes are {', '.join(tested)}, those of {config.train_folder} "
            f"{', '.join(classes)}; give two parts of one data set"
        )
    return ImageNet9Data(classes, pairs, tests.rows, missing)


def train_pairs(data: ImageNet9Data, config: ImageNet9Config, seed: int, partners: bool = True) -> EpochPairs:
    """The training pairs, cut and mirrored anew each epoch; for `PictureCollator`.

    Args:
        data: What `load_imagenet9` read.
        config: How they are cut.
        seed: Seed of the draws.
        partners: Whether pairs are wanted; ERM needs none.

    Returns:
        The columns of `data.train`, and `crop` and `mirrored` for each view.

    Example:
        >>> train_pairs(data, config, seed=0)[0]["augmented_crop"]  # doctest: +SKIP
        [0.125, 0.25, 0.875, 0.75]
    """
    names = list(data.train.column_names)
    if not partners:
        names = [name for name in names if not name.startswith(AUGMENTED_PREFIX)]
    rows = data.train.select_columns(names)
    table = rows.with_format("arrow")[:]
    views = {"": "imagenet9/crop"}
    if partners:
        views[AUGMENTED_PREFIX] = views[""] if config.shared_crop else "imagenet9/augmented_crop"
    added = {CROP: List(Value("float32")), MIRRORED: Value("bool")}
    features = Features(
        {**rows.features, **{prefix + name: feature for prefix in views for name, feature in added.items()}}
    )

    def draw(epoch: int) -> Dataset:
        pairs = table
        for prefix, stream in views.items():
            crops, mirrored = draw_crops(torch.arange(len(rows)), seed, epoch, stream, config.smallest_crop)
            pairs = pairs.append_column(prefix + CROP, pa.array(crops.tolist(), pa.list_(pa.float32())))
            pairs = pairs.append_column(prefix + MIRRORED, pa.array(mirrored.numpy()))
        # The fingerprint says how they were made; the default would hash all of their content.
        made_of = (rows._fingerprint, seed, epoch, config.smallest_crop, config.shared_crop)
        return Dataset(
            InMemoryTable(pairs.cast(features.arrow_schema)),
            info=DatasetInfo(features=features.copy()),
            fingerprint=Hasher.hash(made_of),
        )

    return EpochPairs(draw)


def _held_out(folder: str, pairs: Dataset, strict: bool) -> tuple[Dataset, VariantRows]:
    """Pairs to train on, and the rows to choose lambda with."""
    present = [variant for variant in VARIANTS if (Path(folder) / variant / "train").is_dir()]
    found = read_variants(folder, "train", present, strict)
    row_ids = pairs[ROW_ID][:]
    held_out = set(row_ids[::HELD_OUT])
    tests = {variant: chosen_rows(rows, held_out) for variant, rows in found.rows.items()}
    return chosen_rows(pairs, set(row_ids) - held_out), VariantRows(tests, found.missing)
