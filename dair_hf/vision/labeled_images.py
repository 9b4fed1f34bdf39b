"""Readers of labeled images of one size: parquet files, the Hub, or the original files of a data set."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin
from torch import Tensor

from dair_hf.errors import DataError

SPLITS = ("train", "test")
PNG_SIGNATURE = b"\x89PNG"
GRAY, COLOR = "L", "RGB"  # modes of PIL
DEPTHS = {GRAY: "8-bit gray", COLOR: "8-bit color"}
DAMAGED = (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError)  # raised by PIL


class LabeledImages(NamedTuple):
    """Images and labels of one file.

    Attributes:
        images: `[N, H, W]` (gray) or `[N, 3, H, W]` (RGB) uint8, 0 is dark.
        labels: `[N]` int64, classes from 0.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ImageLayout:
    """Expected content of the files of a data set; names are used in messages.

    Attributes:
        name: Name of the data set.
        hub_name: Its name on the Hub.
        loader: Name of the function that reads it.
        own_files: Kind of its original files, which a folder may hold instead of parquet files.
        columns: Accepted names of the image column, the usual one first.
        mode: `GRAY` or `COLOR`.
        side: Height and width in pixels.
        classes: Number of classes.
        label: Word for a label: "digit", "class".
    """

    name: str
    hub_name: str
    loader: str
    own_files: str
    columns: tuple[str, ...]
    mode: str
    side: int
    classes: int
    label: str = "class"


def load_images(
    source: str | os.PathLike[str], split: str, layout: ImageLayout, read_own: Callable[[Path, str], LabeledImages]
) -> LabeledImages:
    """Read one split of a data set from parquet files, its original files or the Hub.

    Args:
        source: A folder with parquet files, a folder with the original files, or a name on the Hub. Parquet files have
            an image column of structs with the bytes of a file, and `label`. They may be in subfolders; the name of
            the file or of its folder begins with the split.
        split: "train" or "test".
        layout: Expected content.
        read_own: Function `(folder, split) -> images` that reads the original files, or raises.

    Returns:
        Images and labels in the order of the files.

    Raises:
        DataError: The source does not exist, or a file is empty, damaged, lacks a column or does not match the layout.
            The message names file and row.
    """
    require_split(split)
    folder = Path(source)
    if not folder.is_dir():
        if folder.exists():
            raise DataError(f"{folder}: is a file; give its folder")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
            raise DataError(
                f"{folder}: no such folder; give one with parquet files or {layout.own_files}, or a name on the Hub"
            )
        return _from_hub(str(source), split, layout)
    if files := _parquet_files(folder, split):
        return joined([_from_table(_read_parquet(file), str(file), layout) for file in files])
    return read_own(folder, split)


def require_split(split: str) -> None:
    """Raise a `DataError` unless the split is "train" or "test"."""
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")


def joined(parts: list[LabeledImages]) -> LabeledImages:
    """Concatenate the images of several files."""
    images, labels = zip(*parts, strict=True)
    return LabeledImages(torch.cat(images), torch.cat(labels))


def checked(pixels: NDArray[np.uint8], labels: NDArray[np.generic], layout: ImageLayout, label: str) -> LabeledImages:
    """Copy pixels and labels into tensors, after checking the labels.

    Args:
        pixels: `[N, H, W]` or `[N, 3, H, W]`.
        labels: `[N]`, integers.
        layout: Expected content.
        label: Name of the file, for the message.

    Raises:
        DataError: A label is not a class.

    Example:
        >>> digits = ImageLayout("MNIST", "ylecun/mnist", "load_mnist", "IDX files", ("image",), GRAY, 28, 10)
        >>> checked(np.zeros((1, 28, 28), np.uint8), np.array([7]), digits, "file").labels
        tensor([7])
    """
    values = labels.astype(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= layout.classes))
    if len(wrong):
        raise DataError(
            f"{label}: row {wrong[0]}: label {values[wrong[0]]} is not a {layout.label}; labels must be 0 to "
            f"{layout.classes - 1}"
        )
    return LabeledImages(torch.from_numpy(pixels.copy()), torch.from_numpy(values))


def _parquet_files(folder: Path, split: str) -> list[Path]:
    name = re.compile(rf"{split}([-_.].*)?")
    files = [
        file for file in sorted(folder.rglob("*.parquet")) if name.fullmatch(file.stem) or file.parent.name == split
    ]
    if len(parents := sorted({str(file.parent) for file in files})) > 1:
        raise DataError(f"{folder}: holds {split} files in several folders, {', '.join(parents)}; give one of them")
    return files


def _read_parquet(file: Path) -> pa.Table:
    try:
        # Read as a single file, so that folder names such as `split=train` do not become columns.
        return pyarrow.parquet.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable parquet file ({error}); fetch it again") from error


def _from_hub(name: str, split: str, layout: ImageLayout) -> LabeledImages:
    try:
        dataset = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}: neither a local folder nor a data set with a {split} split on the Hub ({error}); check the name "
            f"and the network, or give a folder with parquet files or {layout.own_files}"
        ) from error
    # In Arrow format, images stay undecoded bytes.
    return _from_table(dataset.with_format("arrow")[:], f"{name} ({split})", layout)


def _from_table(table: pa.Table, label: str, layout: ImageLayout) -> LabeledImages:
    column = next((name for name in layout.columns if name in table.column_names), layout.columns[0])
    if missing := {column, "label"} - set(table.column_names):
        raise DataError(
            f"{label}: lacks column {', '.join(sorted(missing))} (found {', '.join(table.column_names)}); use "
            f"the columns of {layout.hub_name}: {layout.columns[0]} and label"
        )
    if not len(table):
        raise DataError(f"{label}: holds no rows; fetch it again")
    labels = table["label"].combine_chunks()
    if not pa.types.is_integer(labels.type) or labels.null_count:
        found = f"{labels.null_count} nulls" if labels.null_count else str(labels.type)
        raise DataError(
            f"{label}: column label holds {found}; it must hold an integer from 0 to {layout.classes - 1} in each row"
        )
    images = table[column].combine_chunks()
    if pa.types.is_struct(images.type) and images.type.get_field_index("bytes") >= 0:
        images = pyarrow.compute.struct_field(images, "bytes")
    if not (pa.types.is_binary(images.type) or pa.types.is_large_binary(images.type)):
        raise DataError(
            f"{label}: column {column} holds {images.type}; it must hold image files as struct<bytes, path>"
        )
    if images.null_count:
        row = images.is_null().index(True).as_py()
        raise DataError(f"{label}: row {row}: column {column} is null; each row needs the bytes of its image")
    return checked(_decoded(images, label, layout), labels.to_numpy(zero_copy_only=False), layout, label)


def _decoded(files: pa.Array, label: str, layout: ImageLayout) -> NDArray[np.uint8]:
    # `Image.open` tries all formats and takes a third longer for a PNG. Threads do not help because of the GIL.
    side, pixels = layout.side, []
    for row, content in enumerate(files.to_numpy(zero_copy_only=False)):
        opener = PngImagePlugin.PngImageFile if content.startswith(PNG_SIGNATURE) else Image.open
        try:
            image = opener(io.BytesIO(content))
            fits = image.mode == layout.mode and image.size == (side, side)
            data = image.tobytes() if fits else b""  # images of the wrong size are not decoded
        except DAMAGED as error:
            raise DataError(f"{label}: row {row}: not a readable image ({error}); fetch the file again") from error
        if not fits:
            raise DataError(
                f"{label}: row {row}: an image of {image.size[0]} x {image.size[1]} pixels in mode {image.mode}; all "
                f"must be {side} x {side} in mode {layout.mode} ({DEPTHS[layout.mode]}): convert and resize them"
            )
        pixels.append(data)
    stacked = np.frombuffer(b"".join(pixels), dtype=np.uint8)
    if layout.mode == GRAY:
        return stacked.reshape(-1, side, side)
    return stacked.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
