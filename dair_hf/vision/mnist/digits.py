"""MNIST as tensors, from parquet files, IDX files or the Hub."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.vision.labelled_images import GREY, ImageLayout, LabelledImages, checked, load_images

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
    mode=GREY,
    side=SIDE,
    classes=DIGITS,
    label="digit",
)

Digits = LabelledImages  # `[N, 28, 28]` and labels from 0 to 9


def load_mnist(source: str | os.PathLike[str], split: str) -> Digits:
    """Read one split of MNIST, or of any data set in its layout (Fashion-MNIST, KMNIST, your own digits).

    Args:
        source: A folder with parquet files (columns `image`, a struct with the bytes of a PNG, and `label`; anywhere
            below it, the name of the file or of its folder begins with the split), a folder with IDX files
            (`train-images-idx3-ubyte` and so on, plain or `.gz`), or a name on the Hub such as `ylecun/mnist`.
        split: "train" or "test".

    Returns:
        Images and labels in the order of the files.

    Raises:
        DataError: Nothing is there, or a file is empty, damaged, lacks a column or holds something else than grey
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
            f"{file}: begins with {content[:4].hex() or 'nothing'}, an IDX file of bytes in {dimensions} dimensions "
            f"with {magic.hex()}; this is another file"
        )
    shape = [int.from_bytes(content[place : place + 4], "big") for place in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DataError(f"{file}: {len(content)} bytes do not make {shape} entries: truncated; fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
