"""Readers of labeled images: layout, files of a split, and errors."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vision.labeled_images import ImageLayout, LabeledImages, load_images
from tests.fixtures.digits import png

STREETS = ImageLayout(columns=("photo", "image"), mode="RGB", side=4, classes=3)
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
LABELS = [0, 2, 1, 1, 0]


def write(file: Path, column: str = "photo", pixels: np.ndarray = PIXELS, labels: Any = LABELS) -> None:
    images = [{"bytes": png(image), "path": None} for image in pixels]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: images, "label": labels}), file)


def no_own_files(folder: Path, split: str) -> LabeledImages:
    raise DataError(f"{folder}: no original {split} file")


def load(source: Path, split: str = "train") -> LabeledImages:
    return load_images(source, split, STREETS, no_own_files)


@pytest.mark.parametrize("column", ["photo", "image"])
def test_colors_become_channels(tmp_path: Path, column: str) -> None:
    write(tmp_path / "train.parquet", column)
    found = load(tmp_path)
    assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
    assert found.images.shape == (5, 3, 4, 4) and found.images.is_contiguous()
    for row, channel, y, x in np.ndindex(5, 3, 4, 4):
        assert int(found.images[row, channel, y, x]) == PIXELS[row, y, x, channel]
    assert found.labels.tolist() == LABELS
    found.images[0] = 0  # a copy


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_oversized_images_are_not_decoded(tmp_path: Path, form: str) -> None:
    huge = png(np.zeros((16, 16, 3), np.uint8), form)
    # Patch the size in the header: width and height in 4 bytes each for PNG, height and width in 2 for JPEG.
    small, large = (b"\0\0\0\x10" * 2, b"\0\3\0\0" * 2) if form == "PNG" else (b"\0\x10" * 2, b"\xff\x00" * 2)
    content = huge.replace(small, large, 1)
    if form == "PNG":
        content = content[:29] + zlib.crc32(content[12:29]).to_bytes(4, "big") + content[33:]
    pq.write_table(pa.table({"photo": [{"bytes": content}], "label": [0]}), tmp_path / "train.parquet")
    with pytest.raises((DataError, Image.DecompressionBombError), match="196608 x 196608|Image size"):
        load(tmp_path)
