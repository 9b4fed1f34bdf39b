"""Image files: lookup by image id, verification, and loading as RGB pixels."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dair_hf.errors import DataError, explained
from dair_hf.io.file_values import FileValueCache

SUFFIXES = (".jpg", ".jpeg", ".png")
# COCO ids have at least twelve digits, ids of edited images two such numbers. Fewer digits are part of the
# name, like the 3 in kitchen_3.png.
_COCO_ID = re.compile(r"(?:\d{12,}_)?\d{12,}\Z")
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, zlib.error, Image.DecompressionBombError)
_WIDE_MODES = ("I", "F")  # 32-bit pixels, for which no white value is defined


def image_name(image_id: int | str) -> str:
    """Return an image id in the form that rows hold: numbers without leading zeros, anything else unchanged."""
    text = str(image_id)
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


class ImageFolder:
    """Index of the image files in one or more folders, by image id.

    The id of an image is its file name without suffix, or the COCO id at the end of the name:
    `COCO_val2014_000000262148.jpg` has the id `262148`, and `COCO_val2014_000000262148_000000000005.jpg` has the id
    `000000262148_000000000005`. The constructor indexes all `.jpg`, `.jpeg` and `.png` files in the folders and their
    subfolders, except hidden ones; a folder that is reached twice, for instance through a link, counts once. `verified`
    lists images known to be readable; see `verified_images`.
    """

    def __init__(self, *folders: str | os.PathLike[str], verified: FileValueCache | None = None) -> None:
        self.verified = verified_images() if verified is None else verified
        self._paths: dict[str, str] = {}
        self._duplicates: dict[str, str] = {}
        # Absolute, because datasets hold these paths and may be opened from elsewhere.
        for path in _image_files(map(os.path.abspath, folders)):
            stem = os.path.splitext(os.path.basename(path))[0]
            coco_id = _COCO_ID.search(stem)
            for name in {image_name(stem), image_name(coco_id[0] if coco_id else stem)}:
                if self._paths.setdefault(name, path) is not path:
                    self._duplicates.setdefault(name, path)

    def find(self, image_id: int | str) -> str | None:
        """Return the path of an image, or None if there is no such image; refuse an id that two files share."""
        name = image_name(image_id)
        if name in self._duplicates:  # either may be the wrong one
            raise DataError(
                f"image {image_id}: expected one file, got {self._paths[name]} and {self._duplicates[name]}"
            )
        return self._paths.get(name)

    def unreadable(self, paths: Iterable[str]) -> dict[str, str]:
        """Decode images and return those that fail, as path -> reason.

        Images that the cache lists as readable are not decoded again. Decoding runs on all cores and is split among
        the processes of the run, so all of them must call this method.
        """
        distinct = list(dict.fromkeys(paths))
        values = self.verified.get(distinct, progress=True, shared=True)
        failed = [path for path, value in zip(distinct, values, strict=True) if value is None]
        return {path: reason for path in failed if (reason := _decoding_problem(path)) is not None}


def verified_images(cache_file: str | os.PathLike[str] | None = None) -> FileValueCache:
    """Return a cache of images that were decoded successfully and have not changed since, kept in a JSON file."""
    return FileValueCache(cache_file, _readable, "decoding images")


def load_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Load an image file as RGB pixels, `[H, W, 3]` uint8, a writable copy.

    Grayscale, CMYK and palette images are converted, 16-bit grayscale keeps its upper byte, transparent pixels are
    blended with white, and the EXIF orientation is applied. 32-bit pixels are refused.
    """
    with explained(str(path), *_DECODING_ERRORS), Image.open(path) as image:
        image.load()
        _require_8_bits(image)
        return _to_rgb(_upright(image))


def _image_files(folders: Iterable[str]) -> Iterator[str]:
    """Yield every image file in the folders and their subfolders, each once."""
    visited: set[str] = set()
    for folder in folders:
        for path, subfolders, names in os.walk(folder, followlinks=True, onerror=_fail):
            real = os.path.realpath(path)
            if real in visited:
                subfolders.clear()
                continue
            visited.add(real)
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                file = os.path.join(path, name)
                # macOS stores `._name.jpg` next to `name.jpg`; reading a pipe would never end.
                if not name.startswith(".") and name.lower().endswith(SUFFIXES) and os.path.isfile(file):
                    yield file


def _fail(error: OSError) -> Any:
    raise DataError(f"{error.filename}: {error.strerror}") from error  # `os.walk` would skip the folder


def _readable(path: str) -> str | None:
    return "readable" if _decoding_problem(path) is None else None


def _decoding_problem(path: str) -> str | None:
    try:
        with Image.open(path) as image:
            image.load()
            _require_8_bits(image)
    except _DECODING_ERRORS as error:
        return str(error)
    return None


def _require_8_bits(image: Image.Image) -> None:
    if image.mode in _WIDE_MODES:  # `convert` would clip almost all values to white
        raise ValueError(f"expected at most 16 bits per channel, got 32-bit pixels (mode {image.mode})")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except _DECODING_ERRORS:
        return image  # damaged metadata, intact pixels


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I;16"):  # `convert` would clip all values above 255 to white
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    return np.array(image.convert("RGB"))
