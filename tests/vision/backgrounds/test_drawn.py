"""Drawn stand-in for ImageNet-9: pairs, splits and variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.drawn import (
    BackgroundsConfig,
    _composites_of,
    background_tests,
    background_train_pairs,
    load_foregrounds,
)
from dair_hf.vision.backgrounds.variants import VARIANTS
from tests.fixtures.counting_scenes import write_digits
from tests.fixtures.digits import whole

SMALL = {"train_each": 12, "validation_each": 4, "test_each": 6}
SHAPES = load_foregrounds(BackgroundsConfig())


def small(**settings: Any) -> BackgroundsConfig:
    return BackgroundsConfig(**{**SMALL, **settings})


def test_the_test_images_in_every_variant() -> None:
    composites = _composites_of(SHAPES, small(), "test")
    sets = background_tests(SHAPES, small())
    assert list(sets) == list(VARIANTS)
    for variant, pairs in sets.items():
        batch, rows = whole(pairs), torch.arange(54)
        assert torch.equal(batch["pixel_values"][:, 0], composites.render(variant, rows, 0))
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
    foreground, cut_out = composites.render("only_fg", rows, 0), composites.render("no_fg", rows, 0)
    behind = [images[:, view] - foreground for view in (0, 1)]
    assert (behind[0] - cut_out).abs().max() < 1e-6
    uncovered = (foreground == 0).all(1, keepdim=True).expand_as(foreground)
    backgrounds = composites.backgrounds(rows)
    for row in range(108):
        inside = uncovered[row]
        same = ((behind[1][row] - backgrounds).abs()[:, inside] < 1e-6).all(1)
        assert int(same.sum()) == 1, "the whole background of one training image"


def test_only_fresh_partners_change_with_the_epoch() -> None:
    for fresh in (False, True):
        config = small(fresh_backgrounds=fresh)
        pairs = background_train_pairs(SHAPES, config, seed=0)
        first, second = whole(pairs, 0)["pixel_values"], whole(pairs, 1)["pixel_values"]
        assert torch.equal(first[:, 0], second[:, 0])
        assert torch.equal(first[:, 1], second[:, 1]) != fresh
        assert torch.equal(whole(pairs, 0)["pixel_values"], first)
        other = whole(background_train_pairs(SHAPES, config, seed=1))["pixel_values"]
        assert torch.equal(first[:, 0], other[:, 0]), "originals are the same for all training seeds"
        assert torch.equal(first[:, 1], other[:, 1]) != fresh


def test_no_digit_is_used_twice(tmp_path: Path) -> None:
    write_digits(tmp_path, each=16)
    config = small(foreground="digits", foreground_source=str(tmp_path))
    foregrounds = load_foregrounds(config)
    assert [part.counts for part in foregrounds.values()] == [(16,) * 9] * 2
    shown = {}
    for split, each in (("train", 12), ("validation", 4), ("test", 6)):
        composites = _composites_of(foregrounds, config, split)
        rows = torch.arange(9 * each)
        assert len(composites) == len(rows)
        shown[split] = composites.foregrounds.indices(rows % 9, composites.first + rows // 9).tolist()
        assert composites.foregrounds is foregrounds["test" if split == "test" else "train"]
    assert len(set(shown["train"] + shown["validation"])) == 9 * 16
    assert len(set(shown["test"])) == 9 * 6


def test_too_few_foregrounds_are_refused(tmp_path: Path) -> None:
    write_digits(tmp_path, each=15)
    config = small(foreground="digits", foreground_source=str(tmp_path))
    foregrounds = load_foregrounds(config)
    background_train_pairs(foregrounds, config, 0)
    with pytest.raises(DataError, match="validation.*16"):
        background_tests(foregrounds, config, "validation")
    with pytest.raises(DataError, match="train.*20"):
        background_train_pairs(
            foregrounds, small(foreground="digits", foreground_source=str(tmp_path), train_each=20), 0
        )
