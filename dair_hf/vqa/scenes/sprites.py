"""Images of the objects in counting scenes: drawn shapes, colored MNIST digits, or CIFAR-10 objects."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image

from dair_hf.augment.shapes import draw_shape
from dair_hf.errors import DataError, explained

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
    """Images of several kinds of objects, named in the singular and the plural.

    `images` holds one array per kind, `[M, S, S, 4]` float32 in 0..1: color and opacity of M images. If there are
    `colors`, the three color channels hold the brightness; otherwise the images have their own.
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


def load_sprites(kind: str, folder: str | os.PathLike[str] | None, split: str, size: int) -> Sprites:
    """Return the objects of a split; digits and objects have different images in training and test."""
    if kind == "shapes":
        return shape_sprites(size)
    names, mode = (DIGITS, "L") if kind == "digits" else (OBJECTS, "RGB")
    images, labels = _read_images(Path(folder or ""), split, mode)
    if missing := [name for index, name in enumerate(names) if not (labels == index).any()]:
        raise DataError(f"{folder}: expected images of all {kind}, got none of {', '.join(missing)}")
    return digit_sprites(images, labels, size) if kind == "digits" else object_sprites(images, labels, size)


def shape_sprites(size: int) -> Sprites:
    """Return the six `SHAPES`, which need no data."""
    return _colorable(SHAPES, [draw_shape(name, size)[None] for name in SHAPES])


def digit_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Return handwritten digits whose ink is opaque."""
    ink = _resize(images, size)
    return _colorable(DIGITS, [ink[labels == digit] for digit in range(len(DIGITS))])


def object_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Return photos of objects in their own colors, as opaque squares."""
    resized = _resize(images, size)
    opaque = np.concatenate([resized, np.ones_like(resized[..., :1])], axis=-1)
    by_class = tuple(opaque[labels == index] for index in range(len(OBJECTS)))
    return Sprites(OBJECTS, tuple(map(plural, OBJECTS)), (), by_class)


def plural(kind: str) -> str:
    """Return the plural of the name of a kind."""
    return IRREGULAR_PLURALS.get(kind, f"{kind}s")


def _colorable(kinds: tuple[str, ...], opacities: Sequence[NDArray[np.float32]]) -> Sprites:
    """Return white sprites, to be colored, from `[M, S, S]` opacities of each kind."""
    white = [
        np.concatenate([np.ones((*opacity.shape, 3), np.float32), opacity[..., None]], -1) for opacity in opacities
    ]
    return Sprites(kinds, tuple(map(plural, kinds)), tuple(COLORS), tuple(white))


def _resize(images: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    resized = [Image.fromarray(image).resize((size, size), Image.Resampling.BOX) for image in images]
    return np.stack([np.asarray(image) for image in resized]).astype(np.float32) / 255.0


def _read_images(folder: Path, split: str, mode: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    file = next(iter(sorted(folder.rglob(f"{split}*.parquet"))), None)
    if file is None:
        raise DataError(f"{folder}: expected a file {split}*.parquet, got none")
    with explained(str(file), Exception):  # of any type, if the file is damaged
        table = pyarrow.parquet.ParquetFile(file)
        column = "image" if "image" in table.schema_arrow.names else "img"  # as in MNIST and in CIFAR-10
        rows = next(table.iter_batches(MAX_IMAGES, columns=[column, "label"]))
        images = [Image.open(io.BytesIO(value["bytes"])) for value in rows[column].to_pylist()]
        if other := {image.mode for image in images} - {mode}:  # otherwise the classes would have the wrong names
            raise DataError(f"{file}: expected images of mode {mode}, got {', '.join(sorted(other))}")
        return np.stack([np.asarray(image) for image in images]), rows["label"].to_numpy()
