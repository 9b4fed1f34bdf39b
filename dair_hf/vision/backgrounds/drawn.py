"""A stand-in for ImageNet-9: foregrounds on textures that give their class away, in the same eight variants.

Class c usually stands on stripes of direction 20 c degrees. How often is known: `correlation`. So a classifier that
sees nothing but stripes is right as often on Original, M-Same and BG-T, with probability 1/9 on M-Rand, and
(1 - correlation) / 8 on M-Next; one that sees nothing but foregrounds is right on all of these except BG-T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dair_hf.data.counter_rng import subset
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.composites import Composites, VariantView
from dair_hf.vision.backgrounds.foregrounds import Foregrounds, digit_foregrounds, object_foregrounds, shape_foregrounds
from dair_hf.vision.backgrounds.variants import CLASSES, MIXED_RAND, ORIGINAL, VARIANTS
from dair_hf.vision.cifar10.images import CLASSES as OBJECTS
from dair_hf.vision.cifar10.images import load_cifar10
from dair_hf.vision.mnist.digits import load_mnist
from dair_hf.vision.settings import SPLITS, require_choice, require_fraction, require_rows

FOREGROUNDS = ("shapes", "digits", "objects")
SMALLEST = 16  # pixels; on smaller pictures neither stripes nor shapes can be told apart


@dataclass
class BackgroundsConfig:
    """Pictures of nine classes on correlated backgrounds.

    Raises:
        DataError: An unknown kind of foreground, one without its data or shapes with some, or a number out of range.

    Example:
        >>> BackgroundsConfig().test_each
        450
    """

    foreground: str = field(
        default="shapes",
        metadata={
            "help": "What is to be classified: shapes (drawn), digits (MNIST, 0 to 8) or objects (CIFAR-10, the first "
            "nine classes, as opaque squares).",
            "choices": FOREGROUNDS,
        },
    )
    foreground_source: str | None = field(
        default=None,
        metadata={"help": "Folder of MNIST or CIFAR-10, or its name on the Hub, for digits and objects."},
    )
    picture_size: int = field(default=32, metadata={"help": f"Side of a picture, pixels; >= {SMALLEST}."})
    correlation: float = field(
        default=0.95,
        metadata={
            "help": "Probability, in [0, 1], that a picture's background has the texture of its class, in training and "
            "test; else it has that of one of the other eight, each equally likely. 0.11 tells nothing."
        },
    )
    train_each: int = field(default=500, metadata={"help": "Training pictures of each of the nine classes, >= 1."})
    validation_each: int = field(
        default=100, metadata={"help": "Pictures of each class to choose lambda with, in no other split; >= 1."}
    )
    test_each: int = field(default=450, metadata={"help": "Test pictures of each class, >= 1; ImageNet-9 has 450."})
    partner_fraction: float = field(
        default=1.0,
        metadata={"help": "Share of the training pictures that have a partner, in [0, 1]; a larger share adds to it."},
    )
    fresh_backgrounds: bool = field(
        default=False,
        metadata={
            "help": "Draw the partners' backgrounds anew each epoch and for each seed of training; false keeps one for "
            "each picture, as the public training data of ImageNet-9 do."
        },
    )
    backgrounds_seed: int = field(
        default=0, metadata={"help": "Seed of the pictures; the same for all runs of a comparison."}
    )

    def __post_init__(self) -> None:
        require_choice("foreground", self.foreground, FOREGROUNDS)
        if self.foreground == "shapes" and self.foreground_source is not None:
            raise DataError(
                f"foreground_source={self.foreground_source!r} would not be read with foreground=shapes; set "
                "foreground to digits or objects, or leave it out"
            )
        if self.foreground != "shapes" and self.foreground_source is None:
            data = "MNIST" if self.foreground == "digits" else "CIFAR-10"
            raise DataError(f"foreground={self.foreground} needs foreground_source: a folder or Hub name of {data}")
        if self.picture_size < SMALLEST:
            raise DataError(f"picture_size={self.picture_size} must be at least {SMALLEST}")
        for name in ("train_each", "validation_each", "test_each"):
            require_rows(name, getattr(self, name))
        require_fraction("correlation", self.correlation)
        require_fraction("partner_fraction", self.partner_fraction)


def load_foregrounds(config: BackgroundsConfig) -> dict[str, Foregrounds]:
    """What stands in the pictures to train on and in those to test on.

    Args:
        config: Which things, and where their data are.

    Returns:
        "train" and "test"; of shapes they are the same, of digits and objects those of the two files.

    Raises:
        DataError: As the loader of the data, or a class has no picture.

    Example:
        >>> load_foregrounds(BackgroundsConfig())["test"].counts
        (1, 1, 1, 1, 1, 1, 1, 1, 1)
    """
    if config.foreground == "shapes":
        shapes = shape_foregrounds(config.picture_size // 2)
        return {"train": shapes, "test": shapes}
    source = config.foreground_source
    assert source is not None
    if config.foreground == "digits":
        return {split: digit_foregrounds(*load_mnist(source, split)) for split in ("train", "test")}
    return {split: object_foregrounds(*load_cifar10(source, split), OBJECTS) for split in ("train", "test")}


def pictures_of(things: Mapping[str, Foregrounds], config: BackgroundsConfig, split: str) -> Composites:
    """The pictures of a split.

    Args:
        things: What `load_foregrounds` found.
        config: The experiment.
        split: "train", "validation" or "test".

    Returns:
        The pictures; no thing stands in two of them, other than shapes.

    Raises:
        DataError: There are too few things.
    """
    each = {"train": config.train_each, "validation": config.validation_each, "test": config.test_each}[split]
    first = config.train_each if split == "validation" else 0
    found = things["test" if split == "test" else "train"]
    if config.foreground != "shapes" and first + each > min(found.counts):
        fewest = min(range(CLASSES), key=found.counts.__getitem__)
        raise DataError(
            f"{split}: {first + each} pictures of each class asked for, but there are {found.counts[fewest]} of "
            f"{found.names[fewest]}; use fewer"
        )
    return Composites(found, split, each, first, config.picture_size, config.correlation, config.backgrounds_seed)


def train_pairs(things: Mapping[str, Foregrounds], config: BackgroundsConfig, seed: int) -> TensorPairs:
    """The training pairs: pictures, and the same foregrounds on the background of a picture of any class.

    Args:
        things: What `load_foregrounds` found.
        config: The experiment.
        seed: Seed of the choice of pictures with partner, and of fresh backgrounds.

    Returns:
        `pixel_values` `[3, size, size]` and `labels`.

    Raises:
        DataError: There are too few things.

    Example:
        >>> config = BackgroundsConfig(train_each=1)
        >>> train_pairs(load_foregrounds(config), config, seed=0).__getitems__([0, 4])["pixel_values"].shape
        torch.Size([2, 2, 3, 32, 32])
    """
    pictures = pictures_of(things, config, "train")
    donor_seed = seed if config.fresh_backgrounds else config.backgrounds_seed
    return TensorPairs(
        VariantView(pictures, ORIGINAL, config.backgrounds_seed),
        VariantView(pictures, MIXED_RAND, donor_seed, config.fresh_backgrounds),
        rows=len(pictures),
        has_partner=subset(torch.arange(len(pictures)), config.partner_fraction, seed, "backgrounds/partner"),
        row_ids=[f"train/{row}" for row in range(len(pictures))],
    )


def evaluation_sets(
    things: Mapping[str, Foregrounds], config: BackgroundsConfig, split: str = "test"
) -> dict[str, TensorPairs]:
    """The pictures of a split in all eight variants, for `variants.evaluate_variants`; drawn once.

    Args:
        things: What `load_foregrounds` found.
        config: The experiment.
        split: "test", or "validation": other things of the train file.

    Returns:
        Variant -> its pictures, without partners, the same foregrounds in the same order.

    Raises:
        DataError: There are too few things, or the split does not exist.

    Example:
        >>> config = BackgroundsConfig(test_each=1)
        >>> sets = evaluation_sets(load_foregrounds(config), config)
        >>> sets["only_bg_t"].__getitems__([0, 4])["labels"].tolist()
        [[0], [4]]
    """
    require_choice("split", split, SPLITS)
    pictures = pictures_of(things, config, split)
    row_ids = [f"{split}/{row}" for row in range(len(pictures))]
    return {
        variant: TensorPairs(
            VariantView(pictures, variant, config.backgrounds_seed), rows=len(pictures), row_ids=row_ids
        )
        for variant in VARIANTS
    }
