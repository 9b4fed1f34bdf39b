"""Reader of MNIST (parquet files, IDX files or the Hub), and settings shared by its experiments."""

from __future__ import annotations

import gzip
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.settings import Count, Settings, Share
from dair_hf.vision.labeled_images import ImageLayout, LabeledImages, checked, load_images

DIGITS = 10
MNIST = ImageLayout(columns=("image",), mode="L", side=28, classes=DIGITS)

Digits = LabeledImages  # images `[N, 28, 28]` and labels 0 to 9


@dataclass
class DigitPairsConfig(Settings):
    """Rows of an experiment on digits."""

    PATH_FIELDS: ClassVar = ("mnist",)  # not compared between runs: the digits have a fingerprint

    mnist: str = field(
        default="ylecun/mnist",
        metadata={"help": "MNIST: folder with parquet or IDX files, or name on the Hub."},
    )
    train_rows: Count = field(
        default=20_000, metadata={"help": "Training rows, from the start of the train file. Paper: 20,000."}
    )
    validation_rows: Count = field(
        default=10_000, metadata={"help": "Other rows of the train file, to choose lambda with."}
    )
    partner_fraction: Share = field(
        default=1.0,
        metadata={
            "help": "Share of the training rows that have a partner, 0 to 1; larger shares include smaller ones."
        },
    )


def load_mnist(source: str | os.PathLike[str], split: str) -> Digits:
    """Read one split of MNIST, or of a data set in its format (Fashion-MNIST, KMNIST, your own digits).

    Args:
        source: A folder with parquet files (columns `image`, a struct with the bytes of a PNG, and `label`; files may
            be in subfolders, and the name of a file or of its folder begins with the split); a folder with IDX files
            (`train-images-idx3-ubyte` and so on, plain or `.gz`); or a name on the Hub such as `ylecun/mnist`.
        split: "train" or "test".

    Returns:
        Images and labels in the order of the files.

    Raises:
        DataError: The source or split does not exist, or holds anything but gray images of 28 x 28 pixels and labels
            from 0 to 9.

    Example:
        >>> load_mnist("ylecun/mnist", "train").images.shape  # doctest: +SKIP
        torch.Size([60000, 28, 28])
    """
    return load_images(source, split, MNIST, _from_idx)


def _from_idx(folder: Path, split: str) -> Digits:
    prefix = {"train": "train", "test": "t10k"}[split]
    images, labels = _read_idx(folder, f"{prefix}-images", 3), _read_idx(folder, f"{prefix}-labels", 1)
    return checked(images, labels, MNIST, str(folder))


def _read_idx(folder: Path, prefix: str, dimensions: int) -> NDArray[np.uint8]:
    """Read zeros, type and number of dimensions in 4 bytes, the shape in 4 bytes per dimension, and the values."""
    name = re.compile(rf"{prefix}[-.]idx{dimensions}-ubyte(\.gz)?")
    files = [file for file in folder.iterdir() if name.fullmatch(file.name)]
    if not files:
        raise DataError(f"{folder}: expected parquet files or {prefix}-idx{dimensions}-ubyte, found neither")
    content = files[0].read_bytes()
    if files[0].suffix == ".gz":
        content = gzip.decompress(content)
    shape = np.frombuffer(content, dtype=">i4", count=dimensions, offset=4).tolist()
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)
