"""Labelled images of one size as tensors: from parquet files, from the Hub or from a data set's own files."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable, Mapping
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
GREY, COLOR = "L", "RGB"  # as PIL calls them
DEPTHS = {GREY: "8-bit grey", COLOR: "8-bit colour"}
DAMAGED = (OSError, SyntaxError, ValueError, zlib.error, Image.DecompressionBombError)  # what PIL raises


class LabelledImages(NamedTuple):
    """The images of one file.

    Attributes:
        images: `[N, H, W]` (grey) or `[N, 3, H, W]` (red, green, blue) uint8, 0 dark.
        labels: `[N]` int64, classes from 0.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ImageLayout:
    """What the files of a data set hold.

    Attributes:
        name: Of the data set, for messages.
        hub_name: On the Hub, for messages.
        loader: The function that reads it, for messages.
        own_files: What a folder may hold instead of parquet files, for messages.
        columns: Names that the column of images may have, the usual one first.
        mode: `GREY` or `COLOR`.
        side: Height and width, pixels.
        classes: Labels go from 0 to one less.
        label: What a label names: "digit", "class".
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
    source: str | os.PathLike[str], split: str, layout: ImageLayout, read_own: Callable[[Path, str], LabelledImages]
) -> LabelledImages:
    """Read one split of a data set from wherever it is.

    Args:
        source: A folder with parquet files (a column of images, each a struct with the bytes of a file, and `label`;
            anywhere below it, the name of the file or of its folder begins with the split), a folder with the data
            set's own files, or a name on the Hub.
        split: "train" or "test".
        layout: What the files must hold.
        read_own: `(folder, split)` -> the images of the data set's own files; it raises where there are none.

    Returns:
        Images and labels in the order of the files.

    Raises:
        DataError: Nothing is there, or a file is empty, damaged, lacks a column or holds something else than the
            layout says. The message names file and row.
    """
    require_split(split)
    folder = Path(source)
    if not folder.is_dir():
        if folder.exists():
            raise DataError(f"{folder}: is a file; give the folder it is in")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
            raise DataError(
                f"{folder}: no such folder; give one with parquet files or {layout.own_files}, or a name on the Hub"
            )
        return _from_hub(str(source), split, layout)
    if files := _parquet_files(folder, split):
        return joined([_from_table(_read_parquet(file), str(file), layout) for file in files])
    return read_own(folder, split)


def require_split(split: str) -> None:
    """Refuse what is no split of a data set.

    Raises:
        DataError: It is neither "train" nor "test".
    """
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")


def joined(parts: list[LabelledImages]) -> LabelledImages:
    """The images of several files, one after the other."""
    images, labels = zip(*parts, strict=True)
    return LabelledImages(torch.cat(images), torch.cat(labels))


def checked(pixels: NDArray[np.uint8], labels: NDArray[np.generic], layout: ImageLayout, label: str) -> LabelledImages:
    """Pixels and labels as tensors of their own, if every label is one.

    Args:
        pixels: `[N, H, W]` or `[N, 3, H, W]`.
        labels: `[N]`, integers.
        layout: How many classes there are.
        label: Where they are from, for the message.

    Raises:
        DataError: A label is none.

    Example:
        >>> digits = ImageLayout("MNIST", "ylecun/mnist", "load_mnist", "IDX files", ("image",), GREY, 28, 10)
        >>> checked(np.zeros((1, 28, 28), np.uint8), np.array([7]), digits, "file").labels
        tensor([7])
    """
    values = labels.astype(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= layout.classes))
    if len(wrong):
        raise DataError(
            f"{label}: row {wrong[0]}: label {values[wrong[0]]} is not a {layout.label}; labels go from 0 to "
            f"{layout.classes - 1}"
        )
    return LabelledImages(torch.from_numpy(pixels.copy()), torch.from_numpy(values))


def file_of(files: Mapping[str, LabelledImages], file: str, what: str, layout: ImageLayout) -> LabelledImages:
    """One of the files that were read.

    Args:
        files: What the loader read, by split.
        file: "train" or "test".
        what: What it is for, for the message.
        layout: The data set, for the message.

    Returns:
        Its images.

    Raises:
        DataError: It is not among them.
    """
    if file not in files:
        raise DataError(
            f"{what}: needs the {file} file of {layout.name}; pass {{'{file}': {layout.loader}(source, '{file}')}}"
        )
    return files[file]


def rows_between(images: LabelledImages, start: int, stop: int, what: str) -> Tensor:
    """The rows `start` to `stop - 1` of a file, if it has them.

    Args:
        images: The file.
        start: First row.
        stop: Row after the last.
        what: What the rows are for, for the message.

    Returns:
        `[stop - start]` int64.

    Raises:
        DataError: The file has fewer rows.

    Example:
        >>> rows_between(LabelledImages(torch.zeros(9, 28, 28), torch.zeros(9)), 2, 5, "validation")
        tensor([2, 3, 4])
    """
    if not 0 <= start < stop <= len(images.labels):
        raise DataError(
            f"{what}: rows {start} to {stop - 1} asked for, but the file ends with row {len(images.labels) - 1}; use "
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


def _from_hub(name: str, split: str, layout: ImageLayout) -> LabelledImages:
    try:
        dataset = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}: neither a folder here nor a data set with a {split} split on the Hub ({error}); check the name "
            f"and the network, or give a folder with parquet files or {layout.own_files}"
        ) from error
    # As Arrow, images stay the bytes of their files.
    return _from_table(dataset.with_format("arrow")[:], f"{name} ({split})", layout)


def _from_table(table: pa.Table, label: str, layout: ImageLayout) -> LabelledImages:
    column = next((name for name in layout.columns if name in table.column_names), layout.columns[0])
    if missing := {column, "label"} - set(table.column_names):
        raise DataError(
            f"{label}: lacks column {', '.join(sorted(missing))} (found {', '.join(table.column_names)}); the "
            f"layout is that of {layout.hub_name}: {layout.columns[0]} and label"
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
    # PIL's general `open` tries formats and costs a third more for a PNG; threads make it slower, they wait for the
    # interpreter.
    side, pixels = layout.side, []
    for row, content in enumerate(files.to_numpy(zero_copy_only=False)):
        opener = PngImagePlugin.PngImageFile if content.startswith(PNG_SIGNATURE) else Image.open
        try:
            image = opener(io.BytesIO(content))
            fits = image.mode == layout.mode and image.size == (side, side)
            data = image.tobytes() if fits else b""  # what is too large is not decoded
        except DAMAGED as error:
            raise DataError(f"{label}: row {row}: not a readable image ({error}); fetch the file again") from error
        if not fits:
            raise DataError(
                f"{label}: row {row}: an image of {image.size[0]} x {image.size[1]} pixels in mode {image.mode}; all "
                f"must be {side} x {side} in mode {layout.mode} ({DEPTHS[layout.mode]}): convert and resize them"
            )
        pixels.append(data)
    joint = np.frombuffer(b"".join(pixels), dtype=np.uint8)
    if layout.mode == GREY:
        return joint.reshape(-1, side, side)
    return joint.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
