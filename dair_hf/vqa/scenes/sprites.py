"""Images of the objects in counting scenes: drawn shapes, colored MNIST digits, or CIFAR-10 objects."""

from __future__ import annotations

import io
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image

from dair_hf.augment.shapes import draw_shape
from dair_hf.errors import DataError

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OBJECTS = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IRREGULAR_PLURALS = {"deer": "deer", "cross": "crosses", "six": "sixes"}
COLORS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.10, 0.70, 0.20),
    "blue": (0.15, 0.30, 0.95),
    "yellow": (0.95, 0.85, 0.10),
    "purple": (0.60, 0.20, 0.75),
}
MIN_SIZE = 8  # pixels at which shapes can be told apart
MAX_IMAGES = 2000  # rows read from a data set, enough for every class


@dataclass(frozen=True)
class Sprites:
    """Images of several kinds of objects, one or more per kind.

    Attributes:
        kinds: Names of the kinds in the singular.
        plurals: Names of the kinds in the plural.
        colors: Names of the possible colors; empty if the images have their own.
        images: One array per kind, `[M, S, S, 4]` float32 in 0..1: color and opacity of M images. If `colors` is not
            empty, the three color channels hold the brightness.
    """

    kinds: tuple[str, ...]
    plurals: tuple[str, ...]
    colors: tuple[str, ...]
    images: tuple[NDArray[np.float32], ...]

    def image(self, kind: int, color: int, exemplar: int) -> NDArray[np.float32]:
        """Return the image of an object, tinted if there are colors: `[S, S, 4]` float32 in 0..1."""
        image = self.images[kind][exemplar % len(self.images[kind])]
        if not self.colors:
            return image
        tint = np.array([*COLORS[self.colors[color]], 1.0], dtype=np.float32)
        return image * tint


def shape_sprites(size: int) -> Sprites:
    """Return the six `SHAPES`, which need no data."""
    _require_size(size)
    return _colorable(SHAPES, [_with_opacity(draw_shape(name, size)[None]) for name in SHAPES])


def digit_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Return handwritten digits whose ink is opaque."""
    _require_size(size)
    _require_classes(DIGITS, labels, "digits")
    ink = _resize(images, size)
    return _colorable(DIGITS, [_with_opacity(ink[labels == digit]) for digit in range(len(DIGITS))])


def object_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Return photos of objects in their own colors, as opaque squares."""
    _require_size(size)
    _require_classes(OBJECTS, labels, "objects")
    resized = _resize(images, size)
    opaque = np.concatenate([resized, np.ones_like(resized[..., :1])], axis=-1)
    by_class = tuple(opaque[labels == index] for index in range(len(OBJECTS)))
    return Sprites(OBJECTS, tuple(map(plural, OBJECTS)), (), by_class)


def load_sprites(kind: str, folder: str | os.PathLike[str] | None, split: str, size: int) -> Sprites:
    """Return the objects of a split; digits and objects have different images in training and test."""
    if kind == "shapes":
        return shape_sprites(size)
    if kind not in ("digits", "objects"):
        raise DataError(f"sprites={kind!r} is unknown; use shapes, digits or objects")
    if folder is None:
        data = "MNIST" if kind == "digits" else "CIFAR-10"
        raise DataError(f"sprites={kind!r} needs sprite_folder, a folder with the parquet files of {data}")
    images, labels = _read_images(Path(folder), split, "L" if kind == "digits" else "RGB")
    return digit_sprites(images, labels, size) if kind == "digits" else object_sprites(images, labels, size)


def plural(kind: str) -> str:
    """Return the plural of the name of a kind."""
    return IRREGULAR_PLURALS.get(kind, f"{kind}s")


def _require_size(size: int) -> None:
    if size < MIN_SIZE:
        raise DataError(
            f"objects of {size} pixels are too small to tell apart; raise scene_size or lower scene_grid until they "
            f"have {MIN_SIZE} pixels"
        )


def _require_classes(names: tuple[str, ...], labels: NDArray[np.integer], data: str) -> None:
    if missing := [name for index, name in enumerate(names) if not (labels == index).any()]:
        raise DataError(f"{data}: no image of {', '.join(missing)}; give a data set with all {len(names)} classes")


def _with_opacity(opacity: NDArray[np.float32]) -> NDArray[np.float32]:
    """`[M, S, S]` opacity -> white `[M, S, S, 4]`."""
    return np.concatenate([np.ones((*opacity.shape, 3), dtype=np.float32), opacity[..., None]], axis=-1)


def _colorable(kinds: tuple[str, ...], images: list[NDArray[np.float32]]) -> Sprites:
    return Sprites(kinds, tuple(map(plural, kinds)), tuple(COLORS), tuple(images))


def _resize(images: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    resized = [Image.fromarray(image).resize((size, size), Image.Resampling.BOX) for image in images]
    return np.stack([np.asarray(image) for image in resized]).astype(np.float32) / 255.0


def _read_images(folder: Path, split: str, mode: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    files = sorted(folder.rglob(f"{split}*.parquet"))
    if not files:
        raise DataError(f"{folder}: no {split}*.parquet; give the folder with the parquet files of MNIST or CIFAR-10")
    file = files[0]
    try:
        parquet = pyarrow.parquet.ParquetFile(file)
        names = parquet.schema_arrow.names
        column = next((name for name in ("image", "img") if name in names), None)
        if column is None or "label" not in names:
            raise DataError(f"{file}: expected the columns image or img, and label; found {', '.join(names)}")
        rows = next(parquet.iter_batches(MAX_IMAGES, columns=[column, "label"]), None)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable parquet file ({error}); download it again") from error
    if not rows:
        raise DataError(f"{file}: contains no rows; download it again")
    if not pyarrow.types.is_integer(rows["label"].type) or rows["label"].null_count:
        raise DataError(f"{file}: column label must hold an integer in each row")
    images = [_decode(value, mode, f"{file}: row {row}") for row, value in enumerate(rows[column].to_pylist())]
    if len(shapes := {image.shape for image in images}) > 1:
        raise DataError(f"{file}: images of {len(shapes)} sizes; they must have one size")
    return np.stack(images), rows["label"].to_numpy().astype(np.int64)


def _decode(value: Any, mode: str, where: str) -> NDArray[np.uint8]:
    if not isinstance(value, dict) or not isinstance(value.get("bytes"), bytes):
        raise DataError(f"{where}: expected an encoded image as struct<bytes, path>, as in the data set on the Hub")
    try:
        with Image.open(io.BytesIO(value["bytes"])) as image:
            pixels = np.array(image)
    except (OSError, SyntaxError, ValueError, zlib.error) as error:
        raise DataError(f"{where}: not a readable image ({error}); download the file again") from error
    if image.mode != mode:
        expected = "digits are grayscale (L)" if mode == "L" else "objects are in color (RGB)"
        raise DataError(f"{where}: image of mode {image.mode}, but {expected}; give the folder of that data set")
    return pixels
