"""Reader of MNIST: parquet, IDX, the layout of the Hub, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dair_hf.vision.mnist.digits import Digits, load_mnist
from tests.fixtures.cpu_time import cpu_time
from tests.fixtures.digits import noise_digits, write_idx, write_parquet

DIGITS = noise_digits(20)


def same(found: Digits, expected: Digits) -> bool:
    assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
    return torch.equal(found.images, expected.images) and torch.equal(found.labels, expected.labels)


@pytest.mark.parametrize(
    "name", ["train.parquet", "mnist/train-00000-of-00001.parquet", "default/train/0000.parquet", "train_0.parquet"]
)
def test_parquet_in_layouts_of_the_hub(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / name, DIGITS)
    write_parquet(tmp_path / name.replace("train", "test"), noise_digits(7, seed=1))
    assert same(load_mnist(tmp_path, "train"), DIGITS)
    assert same(load_mnist(str(tmp_path), "test"), noise_digits(7, seed=1))


def test_parts_of_a_split_are_joined_in_order(tmp_path: Path) -> None:
    for part in range(3):
        write_parquet(tmp_path / f"train-0000{part}-of-00003.parquet", Digits(*(t[part::3] for t in DIGITS)))
    expected = Digits(*(torch.cat([t[part::3] for part in range(3)]) for t in DIGITS))
    assert same(load_mnist(tmp_path, "train"), expected)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dot", ["-", "."])
def test_idx(tmp_path: Path, compressed: bool, dot: str) -> None:
    write_idx(tmp_path, "train", DIGITS, compressed=compressed, dot=dot)
    write_idx(tmp_path, "t10k", noise_digits(3, seed=1), compressed=compressed, dot=dot)
    assert same(load_mnist(tmp_path, "train"), DIGITS)
    assert same(load_mnist(tmp_path, "test"), noise_digits(3, seed=1))


@pytest.mark.realdata
def test_the_real_digits(real_data: Path) -> None:
    with cpu_time() as spent:
        train, test = (load_mnist(real_data / "mnist", split) for split in ("train", "test"))
    assert spent.seconds < 20
    assert (train.images.shape, test.images.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    # The counts of each digit, as published.
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    # The statistics commonly used for normalization.
    pixels = train.images.double() / 255
    assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (0.1307, 0.3081)
