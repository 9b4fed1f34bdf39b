"""Rotated MNIST, and rotated 6 and 9: angles, labels, and rows of each split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.vision.mnist.rotated import (
    SCHEMES,
    RotatedConfig,
    _randomized_labels,
    draw_angles,
    rotated_evaluation_pairs,
    rotated_train_pairs,
)
from dair_hf.vision.mnist.six_nine import SixNineConfig, six_nine_evaluation_pairs, six_nine_train_pairs
from tests.fixtures.digits import noise_digits, numbered_digits, numbers_in, whole

MANY = torch.arange(100_000)
MNIST = {"train": noise_digits(500), "test": noise_digits(200, seed=1)}
UPRIGHT = MNIST["train"].images[:300].float() / 255


def small(**settings: Any) -> RotatedConfig:
    return RotatedConfig(**{"train_rows": 300, "validation_rows": 100, **settings})


def quarter_turns(found: torch.Tensor, upright: torch.Tensor) -> torch.Tensor:
    """Quarter turns between each image and its upright version; -1 for other angles."""
    quarters = torch.full((len(found),), -1)
    for k in range(4):
        quarters[(found[:, 0] == torch.rot90(upright, k, dims=(1, 2))).flatten(1).all(1)] = k
    return quarters


@pytest.mark.parametrize(
    ("scheme", "angles"), [("R1", [0.0]), ("R2", [90.0]), ("R3", [0.0, 180.0]), ("R4", [90.0, 270.0])]
)
def test_schemes_of_single_angles(scheme: str, angles: list[float]) -> None:
    drawn = draw_angles(SCHEMES[scheme], MANY, 0, 0, "test")
    assert (drawn.shape, drawn.dtype) == ((100_000,), torch.float64)
    found, counts = drawn.unique(return_counts=True)
    assert found.tolist() == angles
    assert (counts / 100_000 - 1 / len(angles)).abs().max() < 0.0064  # four standard deviations


@pytest.mark.parametrize(("scheme", "arcs"), [("R5", [(0, 360)]), ("R6", [(22.5, 67.5), (202.5, 247.5)])])
def test_schemes_of_arcs(scheme: str, arcs: list[tuple[float, float]]) -> None:
    """Chi-square on each arc with 49 degrees of freedom; the 0.999 quantile is 85.4."""
    drawn = draw_angles(SCHEMES[scheme], MANY, 0, 0, "test").numpy()
    inside = [(low <= drawn) & (drawn < high) for low, high in arcs]
    assert sum(int(one.sum()) for one in inside) == 100_000
    for (low, high), one in zip(arcs, inside, strict=True):
        assert abs(one.mean() - 1 / len(arcs)) < 0.0064
        counts, _ = np.histogram(drawn[one], bins=50, range=(low, high))
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 85.4


def test_weak_training_pairs() -> None:
    pairs = rotated_train_pairs(MNIST, small(), seed=0)
    batch = whole(pairs)
    images, labels = batch["pixel_values"], batch["labels"]
    assert (images.shape, images.dtype, labels.dtype) == ((300, 2, 1, 28, 28), torch.float32, torch.int64)
    assert labels.tolist() == [[digit, digit] for digit in MNIST["train"].labels[:300].tolist()]
    quarters = quarter_turns(images[:, 0], UPRIGHT)
    assert set(quarters.tolist()) == {1, 3}
    assert 110 < int((quarters == 1).sum()) < 190
    # Partners match PIL at angles of R6.
    angles = draw_angles(SCHEMES["R6"], torch.arange(300), 0, 0, "rotated/train/augmented").tolist()
    digits = [Image.fromarray(image) for image in MNIST["train"].images[:300].numpy()]
    expected = [np.asarray(image.rotate(angle)) for image, angle in zip(digits, angles, strict=True)]
    assert np.abs(images[:, 1, 0].numpy() - np.stack(expected) / 255).max() < 1e-6
    assert pairs.row_ids[[0, 299]].tolist() == ["train/0", "train/299"]
    assert pairs.columns["digit"] == MNIST["train"].labels[:300].tolist()


@pytest.mark.parametrize("setup", ["weak", "strong"])
def test_angles_of_both_views_change_with_the_epoch(setup: str) -> None:
    pairs = rotated_train_pairs(MNIST, small(setup=setup, label_noise=0.5), seed=0)
    first, second = whole(pairs, 0), whole(pairs, 1)
    changed = [not torch.equal(first["pixel_values"][:, v], second["pixel_values"][:, v]) for v in (0, 1)]
    assert changed == [setup == "weak", True]
    assert torch.equal(first["labels"], second["labels"])
    assert torch.equal(whole(pairs, 0)["pixel_values"], first["pixel_values"])
    other = whole(rotated_train_pairs(MNIST, small(setup=setup), seed=1))
    assert not torch.equal(other["pixel_values"][:, 1], first["pixel_values"][:, 1])


def test_label_noise() -> None:
    digits = MANY % 10
    noisy = _randomized_labels(digits, MANY, noise=0.4, seed=0)
    # One in ten replacements is the true digit: 0.4 * 0.9 = 0.36 differ.
    assert float((noisy != digits).double().mean()) == pytest.approx(0.36, abs=0.0061)
    wrong = noisy[noisy != digits].bincount(minlength=10).double()
    assert (wrong / wrong.sum() - 0.1).abs().max() < 0.007
    assert torch.equal(_randomized_labels(digits, MANY, noise=0.0, seed=0), digits)
    assert not torch.equal(noisy, _randomized_labels(digits, MANY, noise=0.4, seed=1))
    # Labels replaced at 0.2 are replaced by the same digit at 0.4.
    less = _randomized_labels(digits, MANY, noise=0.2, seed=0)
    assert torch.equal(less[less != digits], noisy[less != digits])


def test_label_noise_is_shared_by_both_views_and_absent_in_evaluation() -> None:
    config = small(label_noise=0.5)
    labels = whole(rotated_train_pairs(MNIST, config, seed=0))["labels"]
    assert torch.equal(labels[:, 0], labels[:, 1])
    assert 100 < int((labels[:, 0] != MNIST["train"].labels[:300]).sum()) < 170  # 135 expected
    for split, expected in (("test", MNIST["test"].labels), ("validation", MNIST["train"].labels[400:])):
        assert torch.equal(whole(rotated_evaluation_pairs(MNIST, config, 0, split))["labels"][:, 0], expected)


@pytest.mark.parametrize(
    ("setup", "scheme", "quarters"),
    [("weak", None, {0}), ("strong", None, {1}), ("strong", "R1", {0}), ("weak", "R3", {0, 2}), ("weak", "R4", {1, 3})],
)
def test_evaluation_partners_are_rotated_by_180_degrees(setup: str, scheme: str | None, quarters: set[int]) -> None:
    pairs = rotated_evaluation_pairs(MNIST, small(setup=setup), 0, scheme=scheme)
    batch = whole(pairs)
    assert len(pairs) == 200
    upright = MNIST["test"].images.float() / 255
    original, partner = (quarter_turns(batch["pixel_values"][:, view], upright) for view in (0, 1))
    assert set(original.tolist()) == quarters
    assert torch.equal(partner, (original + 2) % 4)
    assert torch.equal(batch["labels"], MNIST["test"].labels[:, None].expand(200, 2))
    assert torch.equal(batch["pixel_values"], whole(pairs, 4)["pixel_values"])
    assert pairs.row_ids[0] == "test/0"


def test_rows_of_each_split() -> None:
    big = {"train": numbered_digits(60_000), "test": numbered_digits(10_000, seed=1)}
    upright = {"scheme": "R1"}
    validation = rotated_evaluation_pairs(big, RotatedConfig(), 0, "validation", **upright)
    assert len(validation) == 10_000
    assert numbers_in(validation.__getitems__([0, 9_999])["pixel_values"][:, 0]) == [50_000, 59_999]
    assert validation.row_ids[0] == "train/50000"
    train = rotated_train_pairs(big, RotatedConfig(setup="strong"), 0)
    assert numbers_in(train.__getitems__([0, 19_999])["pixel_values"][:, 0]) == [0, 19_999]
    assert len(rotated_evaluation_pairs(big, RotatedConfig(), 0)) == 10_000
    assert len(rotated_train_pairs(big, RotatedConfig(train_rows=60_000), 0)) == 60_000


SIX_NINE = SixNineConfig(train_rows=60, validation_rows=20)


def chosen(file: str) -> list[int]:
    return [row for row, label in enumerate(MNIST[file].labels.tolist()) if label in (6, 9)]


def test_training_partners_are_rotated_by_180_degrees_with_the_other_label() -> None:
    pairs = six_nine_train_pairs(MNIST, SIX_NINE, seed=0)
    rows = chosen("train")[:60]
    batch = pairs.__getitems__(range(60))
    images = MNIST["train"].images[rows].float() / 255
    assert torch.equal(batch["pixel_values"][:, 0, 0], images)
    assert torch.equal(batch["pixel_values"][:, 1, 0], images.flip(1, 2))
    nine = [int(MNIST["train"].labels[row] == 9) for row in rows]
    assert batch["labels"].tolist() == [[label, 1 - label] for label in nine]
    assert batch["labels"].dtype == torch.int64
    assert pairs.row_ids.tolist() == [f"train/{row}" for row in rows]
    assert set(pairs.columns["digit"]) == {6, 9}
    assert 20 < sum(nine) < 40


@pytest.mark.parametrize("theta", [0.0, 37.5, 60.0, 90.0])
@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluation_pairs_at_an_angle(theta: float, split: str) -> None:
    pairs = six_nine_evaluation_pairs(MNIST, SIX_NINE, theta, split)
    file = "test" if split == "test" else "train"
    rows = chosen(file) if split == "test" else chosen(file)[-20:]
    assert pairs.row_ids.tolist() == [f"{file}/{row}" for row in rows]
    batch = pairs.__getitems__(range(len(pairs)))
    for view, angle in ((0, theta), (1, theta + 180)):
        rotated = [np.asarray(Image.fromarray(MNIST[file].images[row].numpy()).rotate(angle)) / 255 for row in rows]
        assert np.abs(batch["pixel_values"][:, view, 0].numpy() - np.stack(rotated)).max() < 1e-6
    nine = [int(MNIST[file].labels[row] == 9) for row in rows]
    assert batch["labels"].tolist() == [[label, 1 - label] for label in nine]


def test_training_and_validation_rows_are_disjoint() -> None:
    validation = six_nine_evaluation_pairs(MNIST, SIX_NINE, 0.0, "validation")
    rest = len(chosen("train")) - 20
    train = six_nine_train_pairs(MNIST, SixNineConfig(train_rows=rest, validation_rows=20), 0)
    assert len(train) == rest and not set(train.row_ids) & set(validation.row_ids)
