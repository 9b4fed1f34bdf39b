"""Reader of CIFAR-10: each published format, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dair_hf.vision.cifar10 import CLASSES, load_cifar10
from dair_hf.vision.labeled_images import LabeledImages
from tests.fixtures.cifar import (
    noise_images,
    write_archive,
    write_batches,
    write_parquet,
)
from tests.fixtures.cpu_time import cpu_time

TRAIN, TEST = noise_images(17), noise_images(4, seed=1)
FOLDERS = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}
VERSIONS = pytest.mark.parametrize("version", list(FOLDERS))


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


@VERSIONS
@pytest.mark.parametrize("above", ["", "data"])
def test_the_original_batches(tmp_path: Path, version: str, above: str) -> None:
    folder = write_batches(tmp_path / above / FOLDERS[version], TRAIN, TEST, version)
    for source in (tmp_path, folder):
        assert same(load_cifar10(source, "train"), TRAIN)
        assert same(load_cifar10(source, "test"), TEST)


@VERSIONS
def test_the_published_archive(tmp_path: Path, version: str) -> None:
    folder = write_batches(tmp_path / "made" / FOLDERS[version], TRAIN, TEST, version)
    archive = write_archive(tmp_path / f"cifar-10-{version}.tar.gz", folder)
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
    # The copies are in another order than the original files. Airplanes are on blue sky, frogs are not.
    blue = [
        test.images[test.labels == CLASSES.index(name)].double().mean(dim=(0, 2, 3)) for name in ("airplane", "frog")
    ]
    assert blue[0][2] - blue[0][0] > 10 > 0 > blue[1][2] - blue[1][0]
    pixels = train.images.flatten(2).double() / 255
    assert (pixels.mean(dim=(0, 2)) - torch.tensor([0.4914, 0.4822, 0.4465])).abs().max() < 0.002
    assert (pixels.transpose(0, 1).flatten(1).std(dim=1) - torch.tensor([0.2470, 0.2435, 0.2616])).abs().max() < 0.002
