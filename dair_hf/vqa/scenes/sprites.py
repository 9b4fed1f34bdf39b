"""The things that stand in counting scenes: drawn shapes, MNIST digits in colour, or CIFAR-10 objects."""

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
COLOURS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.10, 0.70, 0.20),
    "blue": (0.15, 0.30, 0.95),
    "yellow": (0.95, 0.85, 0.10),
    "purple": (0.60, 0.20, 0.75),
}
PICTURES = 2000  # read from a data set: enough of each class


@dataclass(frozen=True)
class Sprites:
    """Pictures of several kinds of things, one or more of each kind.

    Attributes:
        kinds: Names of the kinds, as questions call one of them.
        plurals: The same, of several.
        colours: Names of the colours that a thing may have; empty where pictures keep their own.
        pictures: One array a kind, `[M, S, S, 4]` float32 in 0..1: M pictures, colour and opacity. Things that are
            coloured hold their brightness in all three channels.
    """

    kinds: tuple[str, ...]
    plurals: tuple[str, ...]
    colours: tuple[str, ...]
    pictures: tuple[NDArray[np.float32], ...]

    def picture(self, kind: int, colour: int, exemplar: int) -> NDArray[np.float32]:
        """One thing: `[S, S, 4]` float32 in 0..1, tinted where things are coloured."""
        found = self.pictures[kind][exemplar % len(self.pictures[kind])]
        if not self.colours:
            return found
        tint = np.array([*COLOURS[self.colours[colour]], 1.0], dtype=np.float32)
        return found * tint


def shape_sprites(size: int) -> Sprites:
    """Six shapes that need no data.

    Args:
        size: Pixels of a side, >= 8.

    Returns:
        One picture of each of `SHAPES`, to be coloured.

    Raises:
        DataError: The size is too small to tell shapes apart.

    Example:
        >>> shape_sprites(12).pictures[0].shape
        (1, 12, 12, 4)
    """
    _require_size(size)
    return _coloured(SHAPES, {name: _opaque_where(draw_shape(name, size)[None]) for name in SHAPES})


def digit_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Handwritten digits, to be coloured; their ink is what is opaque.

    Args:
        images: `[N, H, W]` uint8, white ink on black (MNIST).
        labels: `[N]` digits.
        size: Pixels of a side.

    Returns:
        The pictures of each of `DIGITS`.

    Raises:
        DataError: A digit has no picture.
    """
    _require_size(size)
    ink = _resize(images, size).astype(np.float32) / 255.0
    return _coloured(
        DIGITS, {name: _opaque_where(ink[labels == digit]) for digit, name in _present(DIGITS, labels, "digits")}
    )


def object_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Photographed objects in their own colours, each an opaque square.

    Args:
        images: `[N, H, W, 3]` uint8 (CIFAR-10).
        labels: `[N]` classes, numbered as `OBJECTS`.
        size: Pixels of a side.

    Returns:
        The pictures of each of `OBJECTS`, without colours to ask for.

    Raises:
        DataError: A class has no picture.
    """
    _require_size(size)
    resized = _resize(images, size).astype(np.float32) / 255.0
    whole = np.concatenate([resized, np.ones_like(resized[..., :1])], axis=-1)
    pictures = tuple(whole[labels == index] for index, _ in _present(OBJECTS, labels, "objects"))
    return Sprites(OBJECTS, tuple(map(plural, OBJECTS)), (), pictures)


def load_sprites(kind: str, folder: str | os.PathLike[str] | None, split: str, size: int) -> Sprites:
    """The things of a split: what is tested stands in other pictures than what is trained on, where there are many.

    Args:
        kind: "shapes", "digits" or "objects".
        folder: Folder with `train*.parquet` and `test*.parquet` of MNIST (digits) or CIFAR-10 (objects): a column
            `image` or `img` with encoded images, and `label`. The first 2,000 rows of the split are taken.
        split: "train" or "test".
        size: Pixels of a side.

    Returns:
        The sprites.

    Raises:
        DataError: An unknown kind, no folder where one is needed, no such file in it, another layout, or pictures
            that cannot be read or are not grey (digits) or coloured (objects).

    Example:
        >>> load_sprites("shapes", None, "train", 14).kinds[0]
        'circle'
    """
    if kind == "shapes":
        return shape_sprites(size)
    if kind not in ("digits", "objects"):
        raise DataError(f"sprites={kind!r} is unknown; use shapes, digits or objects")
    if folder is None:
        data = "MNIST" if kind == "digits" else "CIFAR-10"
        raise DataError(f"sprites={kind!r} needs sprite_folder, a folder with the parquet files of {data}")
    images, labels = _read_pictures(Path(folder), split, "L" if kind == "digits" else "RGB")
    return digit_sprites(images, labels, size) if kind == "digits" else object_sprites(images, labels, size)


def plural(kind: str) -> str:
    """The name of several things of a kind.

    Example:
        >>> plural("cross"), plural("star"), plural("deer")
        ('crosses', 'stars', 'deer')
    """
    return IRREGULAR_PLURALS.get(kind, f"{kind}s")


def _require_size(size: int) -> None:
    if size < 8:
        raise DataError(f"things of {size} pixels cannot be told apart; make the scene larger or its grid coarser")


def _present(names: tuple[str, ...], labels: NDArray[np.integer], what: str) -> list[tuple[int, str]]:
    if missing := [name for index, name in enumerate(names) if not (labels == index).any()]:
        raise DataError(f"{what}: no picture of {', '.join(missing)}; give a data set with all {len(names)} classes")
    return list(enumerate(names))


def _opaque_where(ink: NDArray[np.float32]) -> NDArray[np.float32]:
    """`[M, S, S]` opacity -> `[M, S, S, 4]`, white."""
    return np.concatenate([np.ones((*ink.shape, 3), dtype=np.float32), ink[..., None]], axis=-1)


def _coloured(kinds: tuple[str, ...], pictures: dict[str, NDArray[np.float32]]) -> Sprites:
    return Sprites(kinds, tuple(map(plural, kinds)), tuple(COLOURS), tuple(pictures[name] for name in kinds))


def _resize(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return np.stack([np.asarray(Image.fromarray(i).resize((size, size), Image.Resampling.BOX)) for i in images])


def _read_pictures(folder: Path, split: str, mode: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    files = sorted(folder.rglob(f"{split}*.parquet"))
    if not files:
        raise DataError(f"{folder}: no {split}*.parquet; give the folder with the parquet files of MNIST or CIFAR-10")
    file = files[0]
    try:
        parquet = pyarrow.parquet.ParquetFile(file)
        names = parquet.schema_arrow.names
        column = next((name for name in ("image", "img") if name in names), None)
        if column is None or "label" not in names:
            raise DataError(f"{file}: has the columns {', '.join(names)}; an image or img and a label are needed")
        rows = next(parquet.iter_batches(PICTURES, columns=[column, "label"]), None)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable parquet file ({error}); fetch it again") from error
    if not rows:
        raise DataError(f"{file}: holds no rows; fetch it again")
    if not pyarrow.types.is_integer(rows["label"].type) or rows["label"].null_count:
        raise DataError(f"{file}: column label: it must hold an integer in each row")
    pictures = [_decoded(found, mode, f"{file}: row {row}") for row, found in enumerate(rows[column].to_pylist())]
    if len(shapes := {picture.shape for picture in pictures}) > 1:
        raise DataError(f"{file}: pictures of {len(shapes)} sizes; they must be of one")
    return np.stack(pictures), rows["label"].to_numpy().astype(np.int64)


def _decoded(found: Any, mode: str, where: str) -> NDArray[np.uint8]:
    if not isinstance(found, dict) or not isinstance(found.get("bytes"), bytes):
        raise DataError(f"{where}: no encoded image as struct<bytes, path>; use the layout of the data set on the Hub")
    try:
        with Image.open(io.BytesIO(found["bytes"])) as picture:
            pixels = np.array(picture)
    except (OSError, SyntaxError, ValueError, zlib.error) as error:
        raise DataError(f"{where}: not a readable image ({error}); fetch the file again") from error
    if picture.mode != mode:
        needed = "digits are grey (L)" if mode == "L" else "objects are coloured (RGB)"
        raise DataError(f"{where}: a picture of mode {picture.mode}, but {needed}; give the folder of that data set")
    return pixels
