"""Drawn stand-in for ImageNet-9: foregrounds on textures correlated with the class, in the same eight variants.

Class c usually stands on stripes of direction 20 c degrees, with known probability `correlation`. So a classifier of
stripes alone reaches this accuracy on Original, M-Same and BG-T, 1/9 on M-Rand and (1 - correlation) / 8 on M-Next. A
classifier of foregrounds alone is correct on all of these but BG-T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch

from dair_hf.data.counter_rng import subset
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.settings import Count, Range, Settings, Share
from dair_hf.vision.backgrounds.composites import (
    Composites,
    Foregrounds,
    VariantView,
    digit_foregrounds,
    object_foregrounds,
    shape_foregrounds,
)
from dair_hf.vision.backgrounds.variants import MIXED_RAND, ORIGINAL, VARIANTS
from dair_hf.vision.cifar10 import CLASSES as OBJECTS
from dair_hf.vision.cifar10 import load_cifar10
from dair_hf.vision.mnist.digits import load_mnist


@dataclass
class BackgroundsConfig(Settings):
    """Images of nine classes on correlated backgrounds."""

    foreground: Literal["shapes", "digits", "objects"] = field(
        default="shapes",
        metadata={
            "help": "Foregrounds to classify: shapes (drawn), digits (MNIST, 0 to 8) or objects (CIFAR-10, the first "
            "nine classes, as opaque squares)."
        },
    )
    foreground_source: str | None = field(
        default=None,
        metadata={"help": "MNIST or CIFAR-10, for digits or objects: a folder, or its name on the Hub."},
    )
    # Stripes and shapes are indistinguishable on smaller images.
    picture_size: Annotated[int, Range(low=16)] = field(
        default=32, metadata={"help": "Side of an image in pixels, at least 16."}
    )
    correlation: Share = field(
        default=0.95,
        metadata={
            "help": "Probability that the background of an image has the texture of its class, in training and test; "
            "otherwise the texture of another class, chosen uniformly. 0.11 is uninformative."
        },
    )
    train_each: Count = field(default=500, metadata={"help": "Training images of each of the nine classes."})
    validation_each: Count = field(
        default=100, metadata={"help": "Images of each class to choose lambda with, in no other split."}
    )
    test_each: Count = field(default=450, metadata={"help": "Test images of each class; ImageNet-9 has 450."})
    partner_fraction: Share = field(
        default=1.0,
        metadata={
            "help": "Share of the training images that have a partner, 0 to 1; larger shares include smaller ones."
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

    def check(self) -> None:
        """Refuse a source that is missing or would be ignored."""
        if (self.foreground == "shapes") != (self.foreground_source is None):
            raise DataError(
                f"foreground={self.foreground}, foreground_source={self.foreground_source}: expected a source for "
                "digits and objects, and none for shapes"
            )


def load_foregrounds(config: BackgroundsConfig) -> dict[str, Foregrounds]:
    """Draw or read the foregrounds of the training and test images."""
    if config.foreground == "shapes":
        shapes = shape_foregrounds(config.picture_size // 2)
        return {"train": shapes, "test": shapes}
    source = str(config.foreground_source)
    if config.foreground == "digits":
        return {split: digit_foregrounds(*load_mnist(source, split)) for split in ("train", "test")}
    return {split: object_foregrounds(*load_cifar10(source, split), OBJECTS) for split in ("train", "test")}


def _composites_of(foregrounds: Mapping[str, Foregrounds], config: BackgroundsConfig, split: str) -> Composites:
    """Return the images of a split; no foreground except shapes occurs in two of them."""
    each = {"train": config.train_each, "validation": config.validation_each, "test": config.test_each}[split]
    first = config.train_each if split == "validation" else 0
    available = foregrounds["test" if split == "test" else "train"]
    if config.foreground != "shapes" and first + each > min(available.counts):
        raise DataError(
            f"{split}: expected {first + each} foregrounds of each class, got {min(available.counts)} of the rarest"
        )
    return Composites(available, split, each, first, config.picture_size, config.correlation, config.backgrounds_seed)


def background_train_pairs(foregrounds: Mapping[str, Foregrounds], config: BackgroundsConfig, seed: int) -> TensorPairs:
    """Return the training pairs: images, and the same foregrounds on the background of an image of any class."""
    composites = _composites_of(foregrounds, config, "train")
    donor_seed = seed if config.fresh_backgrounds else config.backgrounds_seed
    return TensorPairs(
        VariantView(composites, ORIGINAL, config.backgrounds_seed),
        VariantView(composites, MIXED_RAND, donor_seed, config.fresh_backgrounds),
        rows=len(composites),
        has_partner=subset(torch.arange(len(composites)), config.partner_fraction, seed, "backgrounds/partner"),
        row_ids=[f"train/{row}" for row in range(len(composites))],
    )


def background_tests(
    foregrounds: Mapping[str, Foregrounds], config: BackgroundsConfig, split: str = "test"
) -> dict[str, TensorPairs]:
    """Return the images of a split in all eight variants, for `evaluate_variants`; drawn once."""
    composites = _composites_of(foregrounds, config, split)
    row_ids = [f"{split}/{row}" for row in range(len(composites))]
    return {
        variant: TensorPairs(
            VariantView(composites, variant, config.backgrounds_seed), rows=len(composites), row_ids=row_ids
        )
        for variant in VARIANTS
    }
