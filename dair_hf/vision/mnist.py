"""MNIST as tensors, from parquet files, IDX files or the Hub."""

from __future__ import annotations

import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, UnidentifiedImageError
from torch import Tensor

from dair_hf.errors import DataError

SPLITS = ("train", "test")
SIDE = 28  # pixels
DIGITS = 10
IDX_PREFIXES = {"train": "train", "test": "t10k"}
IDX_UBYTE = 0x08
PNG_SIGNATURE = b"\x89PNG"


class Digits(NamedTuple):
    """The digits of one file.

    Attributes:
        images: `[N, 28, 28]` uint8, 0 black.
        labels: `[N]` int64, 0 to 9.
    """

    images: Tensor
    labels: Tensor


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
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
    folder = Path(source)
    if not folder.is_dir():
        if folder.exists():
            raise DataError(f"{folder}: is a file; give the folder it is in")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
            raise DataError(f"{folder}: no such folder; give one with parquet or IDX files, or a name on the Hub")
        return _from_hub(str(source), split)
    if files := _parquet_files(folder, split):
        parts = [_from_table(_read_parquet(file), str(file)) for file in files]
        return Digits(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    images, labels = (_idx_file(folder, IDX_PREFIXES[split], kind) for kind in ("images", "labels"))
    if images and labels:
        return _from_idx(images, labels)
    found = sorted(item.name for item in folder.iterdir())[:8]
    raise DataError(
        f"{folder}: no {split} split: neither {split}*.parquet nor both of {IDX_PREFIXES[split]}-images-idx3-ubyte and "
        f"-labels-idx1-ubyte (found {', '.join(found) or 'nothing'})"
    )


def file_of(mnist: Mapping[str, Digits], file: str, what: str) -> Digits:
    """One of the files that were read.

    Args:
        mnist: What `load_mnist` read, by split.
        file: "train" or "test".
        what: What it is for, for the message.

    Returns:
        Its digits.

    Raises:
        DataError: It is not among them.
    """
    if file not in mnist:
        raise DataError(f"{what}: needs the {file} file of MNIST; pass {{'{file}': load_mnist(source, '{file}')}}")
    return mnist[file]


def rows_between(digits: Digits, start: int, stop: int, what: str) -> Tensor:
    """The rows `start` to `stop - 1` of a file, if it has them.

    Args:
        digits: The file.
        start: First row.
        stop: Row after the last.
        what: What the rows are for, for the message.

    Returns:
        `[stop - start]` int64.

    Raises:
        DataError: The file has fewer rows.

    Example:
        >>> rows_between(Digits(torch.zeros(9, 28, 28), torch.zeros(9)), 2, 5, "validation")
        tensor([2, 3, 4])
    """
    if not 0 <= start < stop <= len(digits.labels):
        raise DataError(
            f"{what}: rows {start} to {stop - 1} asked for, but the file ends with row {len(digits.labels) - 1}; use "
            "fewer rows or the whole file"
        )
    return torch.arange(start, stop)


def _parquet_files(folder: Path, split: str) -> list[Path]:
    name = re.compile(rf"{split}([-_.].*)?")
    files = [
        file for file in sorted(folder.rglob("*.parquet")) if name.fullmatch(file.stem) or file.parent.name == split
    ]
    if len(parents := sorted({str(file.parent) for file in files})) > 1:
        raise DataError(
            f"{folder}: holds {split} files of several data sets, in {', '.join(parents)}; give one of them"
        )
    return files


def _read_parquet(file: Path) -> pa.Table:
    try:
        # One file, not a data set: folder names such as `split=train` must not become columns.
        return pyarrow.parquet.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable parquet file ({error}); fetch it again") from error


def _from_hub(name: str, split: str) -> Digits:
    try:
        dataset = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}: neither a folder here nor a data set with a {split} split on the Hub ({error}); check the name "
            "and the network, or give a folder with parquet or IDX files"
        ) from error
    # As Arrow, images stay the bytes of their files.
    return _from_table(dataset.with_format("arrow")[:], f"{name} ({split})")


def _from_table(table: pa.Table, label: str) -> Digits:
    if missing := {"image", "label"} - set(table.column_names):
        raise DataError(
            f"{label}: lacks column {', '.join(sorted(missing))} (found {', '.join(table.column_names)}); the "
            "layout is that of ylecun/mnist: image and label"
        )
    if not len(table):
        raise DataError(f"{label}: holds no rows; fetch it again")
    labels = table["label"].combine_chunks()
    if not pa.types.is_integer(labels.type) or labels.null_count:
        found = f"{labels.null_count} nulls" if labels.null_count else str(labels.type)
        raise DataError(f"{label}: column label holds {found}; it must hold an integer from 0 to 9 in each row")
    images = table["image"].combine_chunks()
    if pa.types.is_struct(images.type) and images.type.get_field_index("bytes") >= 0:
        images = pyarrow.compute.struct_field(images, "bytes")
    if not (pa.types.is_binary(images.type) or pa.types.is_large_binary(images.type)):
        raise DataError(f"{label}: column image holds {images.type}; it must hold PNG files as struct<bytes, path>")
    if images.null_count:
        row = images.is_null().index(True).as_py()
        raise DataError(f"{label}: row {row}: column image is null; each row needs the bytes of its image")
    return _checked(_decoded(images, label), labels.to_numpy(zero_copy_only=False), label)


def _decoded(files: pa.Array, label: str) -> NDArray[np.uint8]:
    # PIL's general `open` tries formats and costs a third more; threads make it slower, they wait for the interpreter.
    pixels = []
    for row, content in enumerate(files.to_numpy(zero_copy_only=False)):
        opener = PngImagePlugin.PngImageFile if content.startswith(PNG_SIGNATURE) else Image.open
        try:
            image = opener(io.BytesIO(content))
            data = image.tobytes()
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, zlib.error) as error:
            raise DataError(f"{label}: row {row}: not a readable image ({error}); fetch the file again") from error
        if image.mode != "L" or image.size != (SIDE, SIDE):
            raise DataError(
                f"{label}: row {row}: an image of {image.size[0]} x {image.size[1]} pixels in mode {image.mode}; all "
                f"must be {SIDE} x {SIDE} in mode L (8-bit grey): convert and resize them"
            )
        pixels.append(data)
    return np.frombuffer(b"".join(pixels), dtype=np.uint8).reshape(-1, SIDE, SIDE)


def _idx_file(folder: Path, prefix: str, kind: str) -> Path | None:
    dimensions = 3 if kind == "images" else 1
    names = [f"{prefix}-{kind}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _from_idx(images: Path, labels: Path) -> Digits:
    pixels, values = _read_idx(images, 3), _read_idx(labels, 1)
    if len(pixels) != len(values):
        raise DataError(f"{images}: {len(pixels)} images, but {labels.name} has {len(values)} labels; fetch both again")
    if not len(pixels):
        raise DataError(f"{images}: holds no images; fetch it again")
    if pixels.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{images}: images of {pixels.shape[2]} x {pixels.shape[1]} pixels; all must be {SIDE} x {SIDE}"
        )
    return _checked(pixels, values, str(labels))


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


def _checked(pixels: NDArray[np.uint8], labels: NDArray[np.generic], label: str) -> Digits:
    values = labels.astype(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= DIGITS))
    if len(wrong):
        raise DataError(f"{label}: row {wrong[0]}: label {values[wrong[0]]} is not a digit; labels go from 0 to 9")
    return Digits(torch.from_numpy(pixels.copy()), torch.from_numpy(values))
