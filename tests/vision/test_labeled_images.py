"""Readers of labeled images."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vision.labeled_images import ImageLayout, LabeledImages, load_images
from tests.fixtures.digits import png

STREETS = ImageLayout(columns=("photo",), mode="RGB", side=4, classes=3)


def no_own_files(folder: Path, split: str) -> LabeledImages:
    raise DataError(f"{folder}: no original {split} file")


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
        load_images(tmp_path, "train", STREETS, no_own_files)
