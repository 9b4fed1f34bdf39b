"""Drawn stand-in for ImageNet-9: pairs, splits, and accuracy of a classifier of stripes alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.vision.backgrounds import drawn
from dair_hf.vision.backgrounds.composites import shape_foregrounds
from dair_hf.vision.backgrounds.drawn import (
    BackgroundsConfig,
    _composites_of,
    background_tests,
    background_train_pairs,
)
from dair_hf.vision.backgrounds.variants import _variant_metrics

SMALL = {"train_each": 12, "test_each": 6}
SHAPES = shape_foregrounds(16)


def small(**settings: Any) -> BackgroundsConfig:
    return BackgroundsConfig(**{**SMALL, **settings})


def whole(pairs: TensorPairs, epoch: int = 0) -> dict[str, torch.Tensor]:
    pairs.set_epoch(epoch)
    return pairs.__getitems__(range(len(pairs)))


def class_of_stripes(images: torch.Tensor) -> np.ndarray:
    """Classify images by their stripes alone, from the mean direction of the gradient."""
    gray = images.sum(1).numpy()
    dy, dx = np.gradient(gray, axis=(1, 2))
    # Double the angle, so that opposite gradients agree, and limit the weight of the steep edges of foregrounds.
    strength = np.minimum(np.hypot(dx, dy), 0.3)
    twice = (strength * np.exp(2j * np.arctan2(dy, dx))).sum((1, 2))
    return np.round(np.degrees(np.angle(twice)) / 2 % 180 / 20).astype(int) % 9


def test_accuracy_of_a_classifier_of_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "PICTURE_SIZE", 64)
    sets = background_tests(SHAPES, BackgroundsConfig(correlation=0.9, test_each=40))
    correct = {}
    for variant, pairs in sets.items():
        batch = whole(pairs)
        correct[variant] = class_of_stripes(batch["pixel_values"][:, 0]) == batch["labels"][:, 0].numpy()
    found = _variant_metrics(correct, intervals=False)
    assert found["rows"] == 360
    assert found["accuracy_only_bg_t"] == pytest.approx(0.9, abs=0.04)
    for variant in ("original", "mixed_same"):
        assert found[f"accuracy_{variant}"] > 0.75
    assert found["accuracy_mixed_rand"] == pytest.approx(1 / 9, abs=0.05)
    assert found["accuracy_mixed_next"] < 0.06  # 0.1 / 8 plus classification errors
    assert found["accuracy_only_fg"] < 0.25
    assert found["background_gap"] > 0.6 and found["cm"] < 0.2


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
