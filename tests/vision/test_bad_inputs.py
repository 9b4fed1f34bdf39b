"""Settings, rows and files of images that would train nonsense: class of the error and name of the setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.imagenet9 import ImageNet9Config, _read_variants, load_imagenet9
from dair_hf.vision.cifar10 import Cifar10Config, cifar10_evaluation_pairs, cifar10_train_pairs, load_cifar10
from dair_hf.vision.mnist.colored import ColoredConfig, colored_evaluation_pairs, colored_train_pairs
from dair_hf.vision.mnist.digits import load_mnist
from dair_hf.vision.mnist.rotated import RotatedConfig, rotated_evaluation_pairs, rotated_train_pairs
from dair_hf.vision.mnist.six_nine import SixNineConfig, six_nine_train_pairs
from dair_hf.vision.networks import ImageNetworkConfig
from tests.fixtures.cifar import noise_images, write_batches
from tests.fixtures.digits import idx, noise_digits, png, write_idx, write_parquet
from tests.fixtures.variant_images import CLASSES, VARIANTS, write_variants

STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (ColoredConfig, {"train_rows": 35_000}),  # trains on test rows
        (ImageNetworkConfig, {"hidden_sizes": [8, 0], "depths": [1, 1]}),
        (ImageNetworkConfig, {"hidden_sizes": [8], "depths": [1, 1]}),
        (ImageNetworkConfig, {**STAGES, "network": "digit_cnn"}),
    ],
    ids=str,
)
def test_settings(settings: Callable[..., Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        settings(**wrong)


DIGITS = {"train": noise_digits(50), "test": noise_digits(20, seed=1)}
IMAGES = {"train": noise_images(50), "test": noise_images(20, seed=1)}


@pytest.mark.parametrize(
    "pairs",
    [
        lambda: colored_train_pairs(DIGITS, ColoredConfig(train_rows=51), 0),
        lambda: colored_evaluation_pairs(DIGITS, ColoredConfig(), 0),  # the released test starts at row 40,000
        lambda: colored_evaluation_pairs(DIGITS, ColoredConfig(train_rows=45), 0, "validation"),
        lambda: rotated_train_pairs(DIGITS, RotatedConfig(train_rows=51), 0),
        lambda: rotated_evaluation_pairs(DIGITS, RotatedConfig(train_rows=45, validation_rows=6), 0, "validation"),
        lambda: six_nine_train_pairs(DIGITS, SixNineConfig(train_rows=45), 0),
        lambda: cifar10_train_pairs(IMAGES, Cifar10Config(), 0),
        lambda: cifar10_evaluation_pairs(IMAGES, Cifar10Config(train_rows=45, validation_rows=6), "validation"),
        lambda: cifar10_evaluation_pairs(IMAGES, Cifar10Config(), partners=torch.zeros(19, 3, 32, 32)),
    ],
)
def test_too_few_rows(pairs: Callable[[], Any]) -> None:
    with pytest.raises(DataError, match="rows"):
        pairs()


IMAGE = {"bytes": png(DIGITS["train"].images[0].numpy()), "path": None}


def image(pixels: np.ndarray) -> dict[str, Any]:
    return {"bytes": png(pixels), "path": None}


@pytest.mark.parametrize(
    "columns",
    [
        {"image": [IMAGE] * 2, "label": [9, 10]},
        {"image": [IMAGE] * 2, "label": [-1, 0]},
        {"image": [image(np.zeros((14, 28), np.uint8))], "label": [1]},
        {"image": [image(np.zeros((28, 28, 3), np.uint8))], "label": [1]},
    ],
)
def test_parquet_files(tmp_path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(DataError):
        load_mnist(tmp_path, "train")


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    for name in ("digits", "fashion"):
        write_parquet(tmp_path / name / "train.parquet", DIGITS["train"])
    with pytest.raises(DataError, match="digits, .*fashion"):
        load_mnist(tmp_path, "train")


@pytest.mark.parametrize("labels", [np.zeros(49), np.full(50, 11)])
def test_idx_files(tmp_path: Path, labels: np.ndarray) -> None:
    write_idx(tmp_path, "train", DIGITS["train"])
    next(tmp_path.glob("train-labels*")).write_bytes(idx(labels))
    with pytest.raises(DataError):
        load_mnist(tmp_path, "train")


@pytest.mark.parametrize("load", [load_mnist, load_cifar10])
def test_missing_files(tmp_path: Path, load: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match="nowhere"):
        load(tmp_path / "nowhere", "train")
    with pytest.raises(DataError, match="expected"):
        load(tmp_path, "train")
    write_parquet(tmp_path / "test.parquet", DIGITS["test"])
    write_parquet(tmp_path / "trained.parquet", DIGITS["test"])  # another word that begins with the split
    with pytest.raises(DataError, match="expected"):
        load(tmp_path, "train")


def test_cifar10_batches(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(DataError):
        load_cifar10(tmp_path, "test")


def test_missing_and_duplicate_batches(tmp_path: Path) -> None:
    folder = write_batches(tmp_path / "one", IMAGES["train"], IMAGES["test"])
    write_batches(tmp_path / "two", IMAGES["train"], IMAGES["test"])
    with pytest.raises(DataError, match="one/data_batch_1.*two/data_batch_1"):
        load_cifar10(tmp_path, "train")
    next(folder.glob("data_batch_2*")).unlink()
    with pytest.raises(DataError, match="data_batch_1"):
        load_cifar10(folder, "train")


@pytest.mark.parametrize("wrong", ["9_cat", "09_cat", "08_whale", "n02085620"])
def test_folders_other_than_nine_classes(tmp_path: Path, wrong: str) -> None:
    write_variants(tmp_path, variants=("original",))
    (tmp_path / "original/val" / wrong).mkdir()
    with pytest.raises(DataError, match=wrong):
        _read_variants(tmp_path, "val", ("original",))


def test_two_images_of_one_foreground(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original",))
    (tmp_path / "original/val/00_dog/fg_n02085620_00001_bg_x.png").touch()
    with pytest.raises(DataError, match="n02085620_00001"):
        _read_variants(tmp_path, "val", ("original",))


def test_variants_of_two_data_sets(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original", "no_fg"))
    (tmp_path / "no_fg/val/00_dog").rename(tmp_path / "no_fg/val/00_wolf")
    with pytest.raises(DataError, match="00_wolf"):
        _read_variants(tmp_path, "val", ("original", "no_fg"))


def test_training_and_test_folders(tmp_path: Path) -> None:
    train, test = tmp_path / "in9", tmp_path / "bg_challenge"
    with pytest.raises(DataError, match="train_folder"):
        load_imagenet9(ImageNet9Config())
    with pytest.raises(DataError, match="test_folder"):
        load_imagenet9(ImageNet9Config(train_folder=str(train)))
    write_variants(train, "train", ("original", "mixed_rand"))
    write_variants(test)
    for variant in VARIANTS:
        (test / variant / "val" / CLASSES[0]).rename(test / variant / "val" / "00_wolf")
    with pytest.raises(DataError, match="'wolf'"):
        load_imagenet9(ImageNet9Config(train_folder=str(train), test_folder=str(test)))
