"""Pairs of CIFAR-10: rows of each split, and crops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.data.counter_rng import uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.vision.cifar10 import Cifar10Config, cifar10_evaluation_pairs, cifar10_train_pairs
from dair_hf.vision.labeled_images import LabeledImages
from tests.fixtures.cifar import noise_images

CIFAR = {"train": noise_images(120), "test": noise_images(30, seed=1)}


def small(**settings: Any) -> Cifar10Config:
    return Cifar10Config(**{"train_rows": 80, "validation_rows": 25, "test_rows": 20, **settings})


def whole(pairs: TensorPairs, epoch: int = 0) -> dict[str, Any]:
    pairs.set_epoch(epoch)
    return pairs.__getitems__(range(len(pairs)))


def plain(file: str, start: int, stop: int) -> torch.Tensor:
    return CIFAR[file].images[start:stop].float() / 255


def by_hand(image: np.ndarray, drawn: np.ndarray, padding: int, flip: bool) -> np.ndarray:
    """Pad with black, crop to 32 x 32 at a random position, flip."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    top, left = (int(number * (2 * padding + 1)) for number in drawn[:2])
    cut = padded[:, top : top + 32, left : left + 32]
    return cut[:, :, ::-1] if flip and drawn[2] < 0.5 else cut


@pytest.mark.parametrize(("padding", "flip"), [(4, True), (4, False), (0, True), (31, True)])
def test_originals_are_cropped_and_flipped(padding: int, flip: bool) -> None:
    pairs = cifar10_train_pairs(CIFAR, small(crop_padding=padding, flip=flip), seed=5)
    batch = whole(pairs, epoch=3)
    assert (batch["pixel_values"].shape, batch["pixel_values"].dtype) == ((80, 1, 3, 32, 32), torch.float32)
    assert batch["labels"].tolist() == CIFAR["train"].labels[:80, None].tolist()
    drawn = uniform(torch.arange(80), 5, 3, "cifar10/train/original", count=3).numpy()
    for found, image, numbers in zip(batch["pixel_values"][:, 0], CIFAR["train"].images, drawn, strict=False):
        expected = by_hand(image.numpy(), numbers, padding, flip).astype(np.float32) / np.float32(255)
        assert np.array_equal(found.numpy(), expected)
    assert pairs.row_ids[[0, 79]].tolist() == ["train/0", "train/79"]
    assert batch["view_mask"].tolist() == [[True]] * 80


@pytest.mark.parametrize(
    ("split", "file", "start", "stop"), [("test", "test", 0, 20), ("validation", "train", 95, 120)]
)
def test_evaluation_images_are_unchanged(split: str, file: str, start: int, stop: int) -> None:
    pairs = cifar10_evaluation_pairs(CIFAR, small(), split)
    batch = whole(pairs, epoch=2)
    assert torch.equal(batch["pixel_values"][:, 0], plain(file, start, stop))
    assert batch["pixel_values"].shape[1] == 1
    assert batch["labels"][:, 0].tolist() == CIFAR[file].labels[start:stop].tolist()
    assert pairs.row_ids[[0, -1]].tolist() == [f"{file}/{start}", f"{file}/{stop - 1}"]


def test_rows_of_each_split() -> None:
    count = torch.arange(50_000)
    marked = torch.zeros(50_000, 3, 1, 1, dtype=torch.uint8)
    for channel in range(3):  # each image encodes its number
        marked[:, channel, 0, 0] = count // 256**channel % 256
    big = {"train": LabeledImages(marked, count % 10), "test": LabeledImages(marked[:10_000], count[:10_000] % 10)}

    def ends(pairs: TensorPairs) -> list[int]:
        pixels = (pairs.__getitems__([0, len(pairs) - 1])["pixel_values"][:, 0, :, 0, 0] * 255).round().long()
        return (pixels * torch.tensor([1, 256, 256**2])).sum(dim=1).tolist()

    unchanged = {"crop_padding": 0, "flip": False}
    assert ends(cifar10_train_pairs(big, Cifar10Config(**unchanged), 0)) == [0, 44_999]
    assert ends(cifar10_train_pairs(big, Cifar10Config(train_rows=50_000, **unchanged), 0)) == [0, 49_999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config(), "validation")) == [45_000, 49_999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config(train_rows=1_000), "validation")) == [45_000, 49_999]
    assert ends(
        cifar10_evaluation_pairs(big, Cifar10Config(train_rows=47_000, validation_rows=1_000), "validation")
    ) == [
        49_000,
        49_999,
    ]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config())) == [0, 9_999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config(test_rows=1_000))) == [0, 999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config(test_rows=20_000))) == [0, 9_999]
