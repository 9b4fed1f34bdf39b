"""Drawn stand-in for ImageNet-9: foregrounds on textures correlated with the class, in the same eight variants.

Class c usually stands on stripes of direction 20 c degrees, with known probability `correlation`. So a classifier of
stripes alone reaches this accuracy on Original, M-Same and BG-T, 1/9 on M-Rand and (1 - correlation) / 8 on M-Next. A
classifier of foregrounds alone is correct on all of these but BG-T.
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
from dair_hf.vision.image_pairs import SPLITS, require_choice, require_fraction, require_rows
from dair_hf.vision.mnist.digits import load_mnist

FOREGROUNDS = ("shapes", "digits", "objects")
SMALLEST = 16  # pixels; stripes and shapes are indistinguishable on smaller images


@dataclass
class BackgroundsConfig:
    """Images of nine classes on correlated backgrounds.

    Raises:
        DataError: An unknown kind of foreground, a missing or superfluous source, or a number out of range.

    Example:
        >>> BackgroundsConfig().test_each
        450
    """

    foreground: str = field(
        default="shapes",
        metadata={
            "help": "Foregrounds to classify: shapes (drawn), digits (MNIST, 0 to 8) or objects (CIFAR-10, the first "
            "nine classes, as opaque squares).",
            "choices": FOREGROUNDS,
        },
    )
    foreground_source: str | None = field(
        default=None,
        metadata={"help": "MNIST or CIFAR-10, for digits or objects: a folder, or its name on the Hub."},
    )
    picture_size: int = field(default=32, metadata={"help": f"Side of an image in pixels; >= {SMALLEST}."})
    correlation: float = field(
        default=0.95,
        metadata={
            "help": "Probability, in [0, 1], that the background of an image has the texture of its class, in training "
            "and test; otherwise that of another class, chosen uniformly. 0.11 is uninformative."
        },
    )
    train_each: int = field(default=500, metadata={"help": "Training images of each of the nine classes, >= 1."})
    validation_each: int = field(
        default=100, metadata={"help": "Images of each class to choose lambda with, in no other split; >= 1."}
    )
    test_each: int = field(default=450, metadata={"help": "Test images of each class, >= 1; ImageNet-9 has 450."})
    partner_fraction: float = field(
        default=1.0,
        metadata={
            "help": "Share of the training images that have a partner, in [0, 1]; larger shares include smaller ones."
        },
    )
    fresh_backgrounds: bool = field(
        default=False,
        metadata={
            "help": "Redraw the partners' backgrounds for each epoch and training seed; false keeps one per image, as "
            "in the public training data of ImageNet-9."
        },
    )
    backgrounds_seed: int = field(
        default=0, metadata={"help": "Seed of the images; the same for all runs of a comparison."}
    )

    def __post_init__(self) -> None:
        require_choice("foreground", self.foreground, FOREGROUNDS)
        if self.foreground == "shapes" and self.foreground_source is not None:
            raise DataError(
                f"foreground_source={self.foreground_source!r} is not used with foreground=shapes; set foreground to "
                "digits or objects, or leave it out"
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
    """Draw or read the foregrounds of the training and test images."""
    if config.foreground == "shapes":
        shapes = shape_foregrounds(config.picture_size // 2)
        return {"train": shapes, "test": shapes}
    source = config.foreground_source
    assert source is not None
    if config.foreground == "digits":
        return {split: digit_foregrounds(*load_mnist(source, split)) for split in ("train", "test")}
    return {split: object_foregrounds(*load_cifar10(source, split), OBJECTS) for split in ("train", "test")}


def composites_of(foregrounds: Mapping[str, Foregrounds], config: BackgroundsConfig, split: str) -> Composites:
    """Return the images of a split; no foreground except shapes occurs in two of them."""
    each = {"train": config.train_each, "validation": config.validation_each, "test": config.test_each}[split]
    first = config.train_each if split == "validation" else 0
    available = foregrounds["test" if split == "test" else "train"]
    if config.foreground != "shapes" and first + each > min(available.counts):
        fewest = min(range(CLASSES), key=available.counts.__getitem__)
        raise DataError(
            f"{split}: needs {first + each} foregrounds of each class, but there are {available.counts[fewest]} of "
            f"{available.names[fewest]}; use fewer"
        )
    return Composites(available, split, each, first, config.picture_size, config.correlation, config.backgrounds_seed)


def train_pairs(foregrounds: Mapping[str, Foregrounds], config: BackgroundsConfig, seed: int) -> TensorPairs:
    """Return the training pairs: images, and the same foregrounds on the background of an image of any class.

    Args:
        seed: Seed of the choice of images with partners, and of fresh backgrounds.

    Returns:
        `pixel_values` `[3, size, size]` and `labels`.

    Raises:
        DataError: There are too few foregrounds.

    Example:
        >>> config = BackgroundsConfig(train_each=1)
        >>> train_pairs(load_foregrounds(config), config, seed=0).__getitems__([0, 4])["pixel_values"].shape
        torch.Size([2, 2, 3, 32, 32])
    """
    composites = composites_of(foregrounds, config, "train")
    donor_seed = seed if config.fresh_backgrounds else config.backgrounds_seed
    return TensorPairs(
        VariantView(composites, ORIGINAL, config.backgrounds_seed),
        VariantView(composites, MIXED_RAND, donor_seed, config.fresh_backgrounds),
        rows=len(composites),
        has_partner=subset(torch.arange(len(composites)), config.partner_fraction, seed, "backgrounds/partner"),
        row_ids=[f"train/{row}" for row in range(len(composites))],
    )


def evaluation_sets(
    foregrounds: Mapping[str, Foregrounds], config: BackgroundsConfig, split: str = "test"
) -> dict[str, TensorPairs]:
    """Return the images of a split in all eight variants, for `evaluate_variants`; drawn once."""
    require_choice("split", split, SPLITS)
    composites = composites_of(foregrounds, config, split)
    row_ids = [f"{split}/{row}" for row in range(len(composites))]
    return {
        variant: TensorPairs(
            VariantView(composites, variant, config.backgrounds_seed), rows=len(composites), row_ids=row_ids
        )
        for variant in VARIANTS
    }
