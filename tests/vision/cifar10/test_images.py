"""CIFAR-10: each published format, rows of each split, and crops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.data.counter_rng import uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.vision.cifar10 import Cifar10Config, cifar10_evaluation_pairs, cifar10_train_pairs, load_cifar10
from dair_hf.vision.labeled_images import LabeledImages
from tests.fixtures.cifar import noise_images, write_archive, write_batches, write_parquet
from tests.fixtures.cpu_time import cpu_time
from tests.fixtures.digits import whole

TRAIN, TEST = noise_images(17), noise_images(4, seed=1)


def same(found: LabeledImages, expected: LabeledImages) -> bool:
    assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
    assert found.images.is_contiguous()
    return torch.equal(found.images, expected.images) and torch.equal(found.labels, expected.labels)


@pytest.mark.parametrize("column", ["img", "image"])
@pytest.mark.parametrize("name", ["train.parquet", "plain_text/train-00000-of-00001.parquet"])
def test_parquet(tmp_path: Path, name: str, column: str) -> None:
    write_parquet(tmp_path / name, TRAIN, column=column)
    write_parquet(tmp_path / name.replace("train", "test"), TEST, column=column)
    assert same(load_cifar10(tmp_path, "train"), TRAIN)
    assert same(load_cifar10(str(tmp_path), "test"), TEST)


@pytest.mark.parametrize("above", ["", "data"])
def test_the_original_batches(tmp_path: Path, above: str) -> None:
    folder = write_batches(tmp_path / above / "cifar-10-batches-bin", TRAIN, TEST)
    for source in (tmp_path, folder):
        assert same(load_cifar10(source, "train"), TRAIN)
        assert same(load_cifar10(source, "test"), TEST)
    archive = write_archive(tmp_path / "cifar-10-binary.tar.gz", folder)
    assert same(load_cifar10(archive, "train"), TRAIN)
    assert same(load_cifar10(str(archive), "test"), TEST)


@pytest.mark.realdata
def test_the_real_images(real_data: Path) -> None:
    """The local copies are compressed, so check statistics over all pixels."""
    with cpu_time() as spent:
        train, test = (load_cifar10(real_data / "cifar10", split) for split in ("train", "test"))
    assert spent.seconds < 30
    assert (train.images.shape, test.images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert train.labels.bincount().tolist() == [5_000] * 10
    assert test.labels.bincount().tolist() == [1_000] * 10
    pixels = train.images.flatten(2).double() / 255
    assert (pixels.mean(dim=(0, 2)) - torch.tensor([0.4914, 0.4822, 0.4465])).abs().max() < 0.002
    assert (pixels.transpose(0, 1).flatten(1).std(dim=1) - torch.tensor([0.2470, 0.2435, 0.2616])).abs().max() < 0.002


CIFAR = {"train": noise_images(120), "test": noise_images(30, seed=1)}


def small(**settings: Any) -> Cifar10Config:
    return Cifar10Config(**{"train_rows": 80, "validation_rows": 25, "test_rows": 20, **settings})


def plain(file: str, start: int, stop: int) -> torch.Tensor:
    return CIFAR[file].images[start:stop].float() / 255


def by_hand(image: np.ndarray, drawn: np.ndarray, padding: int, flip: bool) -> np.ndarray:
    """Pad with black, crop to 32 x 32 at a random position, flip."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    top, left = (int(number * (2 * padding + 1)) for number in drawn[:2])
    cut = padded[:, top : top + 32, left : left + 32]
    return cut[:, :, ::-1] if flip and drawn[2] < 0.5 else cut


@pytest.mark.parametrize(("padding", "flip"), [(4, False), (0, True), (31, True)])
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
    more = Cifar10Config(train_rows=47_000, validation_rows=1_000)
    assert ends(cifar10_evaluation_pairs(big, more, "validation")) == [49_000, 49_999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config())) == [0, 9_999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config(test_rows=1_000))) == [0, 999]
    assert ends(cifar10_evaluation_pairs(big, Cifar10Config(test_rows=20_000))) == [0, 9_999]
