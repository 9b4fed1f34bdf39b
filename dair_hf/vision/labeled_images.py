"""Reader of labeled images of one size: parquet files, the Hub, or the original files of a data set."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

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

PNG_SIGNATURE = b"\x89PNG"


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
    """Expected content of the files of a data set.

    Attributes:
        columns: Accepted names of the image column, the usual one first.
        mode: 8-bit gray or color, as named by Pillow.
        side: Height and width in pixels.
        classes: Number of classes.
    """

    columns: tuple[str, ...]
    mode: Literal["L", "RGB"]
    side: int
    classes: int


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
        DataError: The source does not exist, holds several data sets, or does not match the layout.
    """
    folder = Path(source)
    if folder.is_dir():
        files = _parquet_files(folder, split)
        if not files:
            return read_own(folder, split)
        # Each is read as a single file, so that folder names such as `split=train` do not become columns.
        return joined([_from_table(pyarrow.parquet.ParquetFile(file).read(), str(file), layout) for file in files])
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise DataError(f"{folder}: expected a folder with images, or a name on the Hub; found neither")
    # In Arrow format, images stay undecoded bytes.
    return _from_table(datasets.load_dataset(str(source), split=split).with_format("arrow")[:], str(source), layout)


def joined(parts: Sequence[LabeledImages]) -> LabeledImages:
    """Concatenate the images of several files."""
    images, labels = zip(*parts, strict=True)
    return LabeledImages(torch.cat(images), torch.cat(labels))


def checked(pixels: NDArray[np.uint8], labels: NDArray[np.generic], layout: ImageLayout, label: str) -> LabeledImages:
    """Copy pixels `[N, ...]` and labels `[N]` into tensors; refuse labels outside the classes."""
    values = labels.astype(np.int64, casting="same_kind")
    outside = values[(values < 0) | (values >= layout.classes)]
    if len(values) != len(pixels) or len(outside):
        raise DataError(
            f"{label}: expected {len(pixels)} labels from 0 to {layout.classes - 1}, got {len(values)} with "
            f"{outside[:3].tolist()} out of range"
        )
    return LabeledImages(torch.from_numpy(pixels.copy()), torch.from_numpy(values))


def _parquet_files(folder: Path, split: str) -> list[Path]:
    name = re.compile(rf"{split}([-_.].*)?")
    files = [
        file for file in sorted(folder.rglob("*.parquet")) if name.fullmatch(file.stem) or file.parent.name == split
    ]
    if len(parents := sorted({str(file.parent) for file in files})) > 1:
        raise DataError(f"{folder}: expected one folder with {split} files, got {', '.join(parents)}")
    return files


def _from_table(table: pa.Table, label: str, layout: ImageLayout) -> LabeledImages:
    column = next((name for name in layout.columns if name in table.column_names), layout.columns[0])
    images = table[column]
    if pa.types.is_struct(images.type):
        images = pyarrow.compute.struct_field(images, "bytes")
    content = b"".join(_pixels(file, f"{label}, row {row}", layout) for row, file in enumerate(images.to_pylist()))
    pixels = np.frombuffer(content, dtype=np.uint8).reshape(-1, layout.side, layout.side, len(layout.mode))
    pixels = pixels[..., 0] if layout.mode == "L" else pixels.transpose(0, 3, 1, 2)
    return checked(pixels, table["label"].to_numpy(), layout, label)


def _pixels(content: bytes, label: str, layout: ImageLayout) -> bytes:
    # `Image.open` tries all formats and takes a third longer for a PNG. Threads do not help because of the GIL.
    opener = PngImagePlugin.PngImageFile if content.startswith(PNG_SIGNATURE) else Image.open
    image = opener(io.BytesIO(content))
    if image.mode != layout.mode or image.size != (layout.side, layout.side):  # not decoded yet
        raise DataError(
            f"{label}: expected {layout.side} x {layout.side} pixels in mode {layout.mode}, got {image.size[0]} x "
            f"{image.size[1]} in mode {image.mode}"
        )
    return bytes(image.tobytes())
