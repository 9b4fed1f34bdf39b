"""Colored MNIST: shares of colors and flipped labels, redraws, and rows of each split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.vision.mnist.colored import (
    ColoredConfig,
    _draw_colors,
    _flipped_labels,
    colored_evaluation_pairs,
    colored_train_pairs,
)
from tests.fixtures.digits import noise_digits, numbered_digits, numbers_in, whole

MANY = torch.arange(100_000)
LABELS = torch.arange(100_000) % 2
SIGMA = 0.5 / np.sqrt(100_000)  # of a share, at most
SMALL = {"train_rows": 300, "validation_rows": 100, "test_source": "test", "test_rows": 200}
MNIST = {"train": noise_digits(500), "test": noise_digits(200, seed=1)}


def small(**settings: Any) -> ColoredConfig:
    return ColoredConfig(**{**SMALL, **settings})


def share_agreeing(colors: torch.Tensor, labels: torch.Tensor = LABELS) -> float:
    """Red is index 0, green 1."""
    assert torch.equal(colors.sum(1), torch.ones(len(colors)))
    assert not colors[:, 2].any()
    return float((colors[:, 1].long() == labels).double().mean())


@pytest.mark.parametrize(("scheme", "agreement"), [("C1", 0.8), ("C2", 0.9), ("C3", 0.1)])
def test_colors_agree_with_the_probability_of_the_scheme(scheme: str, agreement: float) -> None:
    colors = _draw_colors(scheme, LABELS, MANY, seed=0)
    assert share_agreeing(colors) == pytest.approx(agreement, abs=4 * SIGMA)
    for label in (0, 1):
        chosen = label == LABELS
        assert share_agreeing(colors[chosen], LABELS[chosen]) == pytest.approx(agreement, abs=6 * SIGMA)


def test_independent_draws_of_c1_and_c2() -> None:
    """They differ if exactly one of them agrees: 0.8 * 0.1 + 0.2 * 0.9 = 0.26."""
    first, second = (_draw_colors(scheme, LABELS, MANY, seed=0) for scheme in ("C1", "C2"))
    assert float((first != second).any(1).double().mean()) == pytest.approx(0.26, abs=4 * SIGMA)


def test_dependent_draws_of_c1_and_c2() -> None:
    """C2 makes a tenth of C1 wrong: it agrees in 0.8 * 0.9 = 0.72 and differs in 0.8 * 0.1 = 0.08."""
    first = _draw_colors("C1", LABELS, MANY, seed=0, color_draws="dependent")
    second = _draw_colors("C2", LABELS, MANY, seed=0, color_draws="dependent")
    assert torch.equal(first, _draw_colors("C1", LABELS, MANY, seed=0))
    assert share_agreeing(second) == pytest.approx(0.72, abs=4 * SIGMA)
    differs = (first != second).any(1)
    assert float(differs.double().mean()) == pytest.approx(0.08, abs=4 * SIGMA)
    assert share_agreeing(second[differs], LABELS[differs]) == 0.0
    # Redrawing C2 keeps C1.
    later = _draw_colors("C2", LABELS, MANY, seed=0, epoch=3, color_draws="dependent")
    assert float((first != later).any(1).double().mean()) == pytest.approx(0.08, abs=4 * SIGMA)
    assert not torch.equal(second, later)


def test_random_colors_are_three_independent_uniform_factors() -> None:
    colors = _draw_colors("C4", LABELS, MANY, seed=0).double().numpy()
    assert colors.min() >= 0
    assert colors.max() <= 1
    assert np.abs(colors.mean(axis=0) - 0.5).max() < 4 * SIGMA
    assert np.abs(colors.var(axis=0) - 1 / 12).max() < 0.001
    assert np.abs(np.corrcoef(colors.T)[np.triu_indices(3, 1)]).max() < 0.013
    assert abs(np.corrcoef(colors[:, 0], LABELS)[0, 1]) < 0.013


def test_label_noise() -> None:
    digits = MANY % 10
    clean = _flipped_labels(digits, MANY, noise=0.0, seed=0)
    assert clean[:10].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    noisy = _flipped_labels(digits, MANY, noise=0.25, seed=0)
    assert float((noisy != clean).double().mean()) == pytest.approx(0.25, abs=4 * SIGMA)
    assert not torch.equal(noisy, _flipped_labels(digits, MANY, noise=0.25, seed=1))
    assert torch.equal(_flipped_labels(digits, MANY, noise=1.0, seed=0), 1 - clean)
    assert float((noisy != _flipped_labels(digits, MANY, 0.25, 0, "test")).double().mean()) > 0.3


def test_a_training_pair_is_one_digit_in_two_colors() -> None:
    pairs = colored_train_pairs(MNIST, small(), seed=0)
    assert len(pairs) == 300
    batch = whole(pairs)
    images, labels = batch["pixel_values"], batch["labels"]
    assert (images.shape, images.dtype) == ((300, 2, 3, 28, 28), torch.float32)
    assert (labels.shape, labels.dtype) == ((300, 2), torch.int64)
    assert torch.equal(labels[:, 0], labels[:, 1])
    expected = MNIST["train"].images[:300].numpy() / 255.0
    for view in (0, 1):
        # One channel shows the digit, the others are empty.
        assert np.abs(images[:, view].amax(1).numpy() - expected).max() < 1e-6
        assert bool(((images[:, view].flatten(2) != 0).any(2).sum(1) == 1).all())
        assert not images[:, view, 2].any()
    assert pairs.columns["digit"] == MNIST["train"].labels[:300].tolist()
    assert pairs.row_ids[299] == "train/299"
    clean = (MNIST["train"].labels[:300] <= 4).long()
    assert 45 < int((labels[:, 0] != clean).sum()) < 105  # 75 expected
    assert 210 < int((images[:, 0, 1].flatten(1).any(1).long() == labels[:, 0]).sum()) < 270  # 240 expected


def test_random_colors_scale_the_gray_image() -> None:
    pairs = colored_train_pairs(MNIST, small(setup="rnd"), seed=0)
    images = whole(pairs)["pixel_values"]
    gray = torch.from_numpy(MNIST["train"].images[:300].numpy() / 255.0)
    factors = (images[:, 1].double() * gray[:, None]).sum((2, 3)) / (gray**2).sum((1, 2))[:, None]
    assert (images[:, 1] - factors[:, :, None, None] * gray[:, None]).abs().max() < 1e-6
    assert 0.4 < float(factors.mean()) < 0.6


@pytest.mark.parametrize("setup", ["adv", "rnd"])
@pytest.mark.parametrize("fresh", [True, False])
def test_only_fresh_partner_colors_change_with_the_epoch(setup: str, fresh: bool) -> None:
    pairs = colored_train_pairs(MNIST, small(setup=setup, fresh_colors=fresh), seed=0)
    first, second = whole(pairs, 0), whole(pairs, 1)
    assert torch.equal(first["pixel_values"][:, 0], second["pixel_values"][:, 0])
    assert torch.equal(first["labels"], second["labels"])
    assert torch.equal(first["pixel_values"][:, 1], second["pixel_values"][:, 1]) != fresh
    assert torch.equal(whole(pairs, 0)["pixel_values"], first["pixel_values"])


def test_partial_augmentation() -> None:
    masks = [colored_train_pairs(MNIST, small(partner_fraction=f), seed=0).partner_mask for f in (0.1, 0.3, 1.0, 0.0)]
    assert [int(mask.sum()) for mask in masks] == [30, 90, 300, 0]
    assert bool((masks[1] | ~masks[0]).all())
    few = colored_train_pairs(MNIST, small(partner_fraction=0.3), seed=0)
    every = colored_train_pairs(MNIST, small(), seed=0)
    chosen = torch.from_numpy(masks[1])
    assert torch.equal(whole(few)["pixel_values"][chosen], whole(every)["pixel_values"][chosen])


def test_test_pairs_for_both_definitions_of_cm() -> None:
    config = small()
    c3, augmented = (colored_evaluation_pairs(MNIST, config, 0, augmented=name) for name in ("C3", config.augmentation))
    assert len(c3) == len(augmented) == 200
    first, second = whole(c3), whole(augmented)
    assert torch.equal(first["labels"], second["labels"])
    assert torch.equal(first["pixel_values"][:, 0], second["pixel_values"][:, 0])
    assert torch.equal(first["pixel_values"], whole(c3, 5)["pixel_values"])
    labels = first["labels"][:, 0]
    green = [batch["pixel_values"][:, view, 1].flatten(1).any(1).long() for batch in (first, second) for view in (0, 1)]
    agreeing = [int((one == labels).sum()) for one in green]
    assert 135 < agreeing[0] == agreeing[2] < 185  # 160 expected
    assert 5 < agreeing[1] < 40  # 20
    assert 160 < agreeing[3] < 199  # 180
    assert c3.row_ids[0] == "test/0"


BIG = {"train": numbered_digits(60_000), "test": numbered_digits(10_000, seed=1)}


@pytest.mark.parametrize(
    ("settings", "split", "first", "count"),
    [
        ({}, "train", 0, 20_000),
        ({}, "validation", 20_000, 10_000),
        ({}, "test", 40_000, 20_000),
        ({"test_source": "test"}, "test", 0, 10_000),
        ({"train_rows": 1000, "validation_rows": 39_000, "test_rows": 5}, "validation", 1000, 39_000),
        ({"test_rows": 5}, "test", 40_000, 5),
    ],
)
def test_rows_of_each_split(settings: dict[str, Any], split: str, first: int, count: int) -> None:
    config = ColoredConfig(**settings)
    pairs = colored_train_pairs(BIG, config, 0) if split == "train" else colored_evaluation_pairs(BIG, config, 0, split)
    assert len(pairs) == count
    images = pairs.__getitems__([0, count - 1])["pixel_values"][:, 0]
    assert numbers_in(images.amax(1, keepdim=True)) == [first, first + count - 1]
    file = "test" if settings.get("test_source") == "test" else "train"
    assert pairs.row_ids[[0, -1]].tolist() == [f"{file}/{first}", f"{file}/{first + count - 1}"]
    assert pairs.columns["digit"] == BIG[file].labels[first : first + count].tolist()
