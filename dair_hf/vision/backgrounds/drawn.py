"""Drawn stand-in for ImageNet-9: foregrounds on textures correlated with the class, in the same eight variants.

Class c usually stands on stripes of direction 20 c degrees, with known probability `correlation`. So a classifier of
stripes alone reaches this accuracy on Original, M-Same and BG-T, 1/9 on M-Rand and (1 - correlation) / 8 on M-Next. A
classifier of foregrounds alone is correct on all of these but BG-T.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dair_hf.data.counter_rng import subset
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.settings import Count, Settings, Share
from dair_hf.vision.backgrounds.composites import Composites, VariantView
from dair_hf.vision.backgrounds.variants import MIXED_RAND, ORIGINAL, VARIANTS

PICTURE_SIZE = 32  # side in pixels; below 16, stripes and shapes are indistinguishable
VALIDATION_EACH = 100  # images of each class to choose lambda with, in no other split


@dataclass
class BackgroundsConfig(Settings):
    """Images of nine classes on correlated backgrounds."""

    correlation: Share = field(
        default=0.95,
        metadata={
            "help": "Probability that the background of an image has the texture of its class, in training and test; "
            "otherwise the texture of another class, chosen uniformly. 0.11 is uninformative."
        },
    )
    train_each: Count = field(default=500, metadata={"help": "Training images of each of the nine classes."})
    test_each: Count = field(default=450, metadata={"help": "Test images of each class; ImageNet-9 has 450."})
    partner_fraction: Share = field(
        default=1.0,
        metadata={
            "help": "Share of the training images that have a partner, 0 to 1; larger shares include smaller ones."
        },
    )


def _composites_of(foregrounds: Tensor, config: BackgroundsConfig, split: str) -> Composites:
    """Return the images of a split."""
    each = {"train": config.train_each, "validation": VALIDATION_EACH, "test": config.test_each}[split]
    return Composites(foregrounds, split, each, PICTURE_SIZE, config.correlation)


def background_train_pairs(foregrounds: Tensor, config: BackgroundsConfig, seed: int) -> TensorPairs:
    """Return the training pairs: images, and the same foregrounds on the background of an image of any class."""
    composites = _composites_of(foregrounds, config, "train")
    return TensorPairs(
        VariantView(composites, ORIGINAL),
        VariantView(composites, MIXED_RAND),
        rows=len(composites),
        has_partner=subset(torch.arange(len(composites)), config.partner_fraction, seed, "backgrounds/partner"),
        row_ids=[f"train/{row}" for row in range(len(composites))],
    )


def background_tests(foregrounds: Tensor, config: BackgroundsConfig, split: str = "test") -> dict[str, TensorPairs]:
    """Return the images of a split in all eight variants, for `evaluate_variants`; drawn once."""
    composites = _composites_of(foregrounds, config, split)
    row_ids = [f"{split}/{row}" for row in range(len(composites))]
    return {
        variant: TensorPairs(VariantView(composites, variant), rows=len(composites), row_ids=row_ids)
        for variant in VARIANTS
    }
