"""Reader of MNIST (parquet files, IDX files or the Hub), and settings shared by its experiments."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.image_pairs import ImageView, file_pairs, require_fraction, require_rows
from dair_hf.vision.labeled_images import GRAY, ImageLayout, LabeledImages, checked, load_images

SIDE = 28  # pixels
DIGITS = 10
IDX_PREFIXES = {"train": "train", "test": "t10k"}
IDX_UBYTE = 0x08
MNIST = ImageLayout(
    name="MNIST",
    hub_name="ylecun/mnist",
    loader="load_mnist",
    own_files="IDX files",
    columns=("image",),
    mode=GRAY,
    side=SIDE,
    classes=DIGITS,
    label="digit",
)

Digits = LabeledImages  # images `[N, 28, 28]` and labels 0 to 9


@dataclass
class DigitPairsConfig:
    """Rows of an experiment on digits.

    Raises:
        DataError: A number of rows below 1, or a fraction outside [0, 1].

    Example:
        >>> DigitPairsConfig(partner_fraction=0.2).train_rows
        20000
    """

    PATH_FIELDS: ClassVar = ("mnist",)  # not compared between runs: the digits have a fingerprint

    mnist: str = field(
        default="ylecun/mnist",
        metadata={"help": "MNIST: folder with parquet or IDX files, or name on the Hub."},
    )
    train_rows: int = field(
        default=20_000, metadata={"help": "Training rows, from the start of the train file; >= 1. Paper: 20,000."}
    )
    validation_rows: int = field(
        default=10_000,
        metadata={"help": "Other rows of the train file, to choose lambda with; >= 1."},
    )
    partner_fraction: float = field(
        default=1.0,
        metadata={
            "help": "Share of the training rows that have a partner, in [0, 1]; larger shares include smaller ones."
        },
    )

    def __post_init__(self) -> None:
        for name in ("train_rows", "validation_rows"):
            require_rows(name, getattr(self, name))
        require_fraction("partner_fraction", self.partner_fraction)


def digit_pairs(
    file: str, digits: Digits, original: ImageView, augmented: ImageView, has_partner: Tensor | None = None
) -> TensorPairs:
    """Return pairs as `file_pairs`, with the column `digit` of true labels."""
    return file_pairs(file, original, augmented, has_partner, {"digit": digits.labels[original.rows].tolist()})


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
        DataError: The source does not exist, or a file is empty, damaged, lacks a column or holds anything but gray
            images of 28 x 28 pixels and labels from 0 to 9. The message names file and row.

    Example:
        >>> load_mnist("ylecun/mnist", "train").images.shape  # doctest: +SKIP
        torch.Size([60000, 28, 28])
    """
    return load_images(source, split, MNIST, _from_idx)


def _from_idx(folder: Path, split: str) -> Digits:
    images, labels = (_idx_file(folder, IDX_PREFIXES[split], kind) for kind in ("images", "labels"))
    if images and labels:
        return _read_digits(images, labels)
    found = sorted(item.name for item in folder.iterdir())[:8]
    raise DataError(
        f"{folder}: no {split} split: neither {split}*.parquet nor both of {IDX_PREFIXES[split]}-images-idx3-ubyte and "
        f"-labels-idx1-ubyte (found {', '.join(found) or 'nothing'})"
    )


def _idx_file(folder: Path, prefix: str, kind: str) -> Path | None:
    dimensions = 3 if kind == "images" else 1
    names = [f"{prefix}-{kind}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_digits(images: Path, labels: Path) -> Digits:
    pixels, values = _read_idx(images, 3), _read_idx(labels, 1)
    if len(pixels) != len(values):
        raise DataError(f"{images}: {len(pixels)} images, but {labels.name} has {len(values)} labels; fetch both again")
    if not len(pixels):
        raise DataError(f"{images}: holds no images; fetch it again")
    if pixels.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{images}: images of {pixels.shape[2]} x {pixels.shape[1]} pixels; all must be {SIDE} x {SIDE}"
        )
    return checked(pixels, values, MNIST, str(labels))


def _read_idx(file: Path, dimensions: int) -> NDArray[np.uint8]:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read ({error}); fetch it again") from error
    magic, start = bytes([0, 0, IDX_UBYTE, dimensions]), 4 + 4 * dimensions
    if content[:4] != magic:
        raise DataError(
            f"{file}: begins with {content[:4].hex() or 'nothing'}, but an IDX file of bytes in {dimensions} "
            f"dimensions begins with {magic.hex()}; this is another file"
        )
    shape = [int.from_bytes(content[offset : offset + 4], "big") for offset in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DataError(f"{file}: {len(content)} bytes are too few or too many for {shape} entries; fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
