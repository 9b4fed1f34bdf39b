"""Drawn stand-in for ImageNet-9: pairs, splits and variants."""

from __future__ import annotations

from typing import Any

import torch

from dair_hf.vision.backgrounds.composites import shape_foregrounds
from dair_hf.vision.backgrounds.drawn import (
    BackgroundsConfig,
    _composites_of,
    background_tests,
    background_train_pairs,
)
from dair_hf.vision.backgrounds.variants import VARIANTS
from tests.fixtures.digits import whole

SMALL = {"train_each": 12, "test_each": 6}
SHAPES = shape_foregrounds(16)


def small(**settings: Any) -> BackgroundsConfig:
    return BackgroundsConfig(**{**SMALL, **settings})


def test_the_test_images_in_every_variant() -> None:
    composites = _composites_of(SHAPES, small(), "test")
    sets = background_tests(SHAPES, small())
    assert list(sets) == list(VARIANTS)
    for variant, pairs in sets.items():
        batch, rows = whole(pairs), torch.arange(54)
        assert torch.equal(batch["pixel_values"][:, 0], composites.render(variant, rows))
        assert torch.equal(batch["labels"][:, 0], rows % 9)
        assert (pairs.row_ids[0], pairs.row_ids[-1]) == ("test/0", "test/53")


def test_a_training_pair_is_one_foreground_on_two_backgrounds() -> None:
    config = small()
    pairs = background_train_pairs(SHAPES, config, seed=0)
    assert len(pairs) == 108
    assert (pairs.row_ids[0], pairs.row_ids[-1]) == ("train/0", "train/107")
    batch = whole(pairs)
    images, labels = batch["pixel_values"], batch["labels"]
    assert (images.shape, images.dtype) == ((108, 2, 3, 32, 32), torch.float32)
    assert labels.tolist() == [[row % 9, row % 9] for row in range(108)]
    rows = torch.arange(108)
    composites = _composites_of(SHAPES, config, "train")
    foreground, cut_out = composites.render("only_fg", rows), composites.render("no_fg", rows)
    behind = [images[:, view] - foreground for view in (0, 1)]
    assert (behind[0] - cut_out).abs().max() < 1e-6
    uncovered = (foreground == 0).all(1, keepdim=True).expand_as(foreground)
    backgrounds = composites.backgrounds(rows)
    for row in range(108):
        inside = uncovered[row]
        same = ((behind[1][row] - backgrounds).abs()[:, inside] < 1e-6).all(1)
        assert int(same.sum()) == 1, "the whole background of one training image"


def test_images_are_the_same_in_all_epochs_and_for_all_training_seeds() -> None:
    pairs = background_train_pairs(SHAPES, small(), seed=0)
    first = whole(pairs, 0)["pixel_values"]
    assert torch.equal(first, whole(pairs, 1)["pixel_values"])
    assert torch.equal(first, whole(background_train_pairs(SHAPES, small(), seed=1))["pixel_values"])


def test_splits_have_their_own_numbers_of_rows() -> None:
    splits = {split: _composites_of(SHAPES, small(), split) for split in ("train", "validation", "test")}
    assert {split: len(part) for split, part in splits.items()} == {"train": 108, "validation": 900, "test": 54}
