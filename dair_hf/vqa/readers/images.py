"""Image files: lookup by image id, verification, and loading as RGB pixels."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dair_hf.errors import DataError
from dair_hf.io.file_values import FileValueCache

SUFFIXES = (".jpg", ".jpeg", ".png")
# COCO ids have at least twelve digits, ids of edited images two such numbers. Fewer digits belong to the name, as the 3
# of kitchen_3.png.
_COCO_ID = re.compile(r"(?:\d{12,}_)?\d{12,}\Z")
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, zlib.error, Image.DecompressionBombError)
_BACKGROUND = (255, 255, 255)
_WIDE_MODES = ("I", "F")
_WIDE_MESSAGE = "mode {mode} has 32-bit pixels"


def image_name(image_id: int | str) -> str:
    """Return an image id in the form that rows hold: numbers without leading zeros, anything else unchanged.

    Args:
        image_id: A number, its digits, the id of an edited image, or a file name without suffix.

    Example:
        >>> image_name(9), image_name("000000000009"), image_name("000000000009_000000000005")
        ('9', '9', '000000000009_000000000005')
    """
    text = str(image_id)
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


class ImageFolder:
    """Index of the image files in one or more folders, by image id.

    The id of an image is its file name without suffix, or the COCO id at the end of the name:
    `COCO_val2014_000000262148.jpg` has the id `262148`, and `COCO_val2014_000000262148_000000000005.jpg` has the id
    `000000262148_000000000005`. The constructor indexes all `.jpg`, `.jpeg` and `.png` files in the folders and their
    subfolders, except hidden ones. A folder that is reached twice, for instance through a link, counts once.

    Args:
        *folders: Folders with images.
        verified: Cache of images known to be readable, from `verified_images`. None: no image is known yet.

    Raises:
        DataError: No folder is given, a folder cannot be listed, or the folders hold no image.

    Example:
        >>> images = ImageFolder("Images/val2014", "edited/val2014")  # doctest: +SKIP
        >>> load_image(images.path("000000262148_000000000005")).shape  # doctest: +SKIP
        (480, 640, 3)
    """

    def __init__(self, *folders: str | os.PathLike[str], verified: FileValueCache | None = None) -> None:
        self.verified = verified_images() if verified is None else verified
        # Absolute, because datasets hold these paths and may be opened from elsewhere.
        self.folders = tuple(os.path.abspath(folder) for folder in folders)
        self._paths: dict[str, str] = {}
        self._duplicates: dict[str, str] = {}
        self.files = 0
        if not self.folders:
            raise DataError("images: no folder given; pass at least one")
        for stem, path in _image_files(self.folders):
            self.files += 1
            coco_id = _COCO_ID.search(stem)
            for name in {image_name(stem), image_name(coco_id[0] if coco_id else stem)}:
                if self._paths.setdefault(name, path) is not path:
                    self._duplicates.setdefault(name, path)
        if not self.files:
            raise DataError(f"{', '.join(self.folders)}: contains no {', '.join(SUFFIXES)} file; check the path")

    def find(self, image_id: int | str) -> str | None:
        """Return the path of an image, or None if there is no such image.

        Raises:
            DataError: Two files have this id.
        """
        name = image_name(image_id)
        if name in self._duplicates:
            raise DataError(
                f"image {image_id}: two files have this id, {self._paths[name]} and {self._duplicates[name]}; remove "
                "one of them, or give folders that hold only one"
            )
        return self._paths.get(name)

    def path(self, image_id: int | str) -> str:
        """Return the path of an image.

        Raises:
            DataError: No file or two files have this id.
        """
        path = self.find(image_id)
        if path is None:
            raise DataError(
                f"image {image_id}: not among the {self.files} images in {', '.join(self.folders)}; download it, or "
                "add the folder that contains it"
            )
        return path

    def unreadable(self, image_ids: Iterable[int | str]) -> dict[str, str]:
        """Decode images and return those that fail.

        Images that the cache lists as readable are not decoded again. Decoding runs on all cores and is split among
        the processes of the run, so all of them must call this method.

        Args:
            image_ids: Ids; each is checked once.

        Returns:
            Id in the form of `image_name` -> reason.

        Raises:
            DataError: No file or two files have one of the ids.
        """
        paths = {image_name(image_id): self.path(image_id) for image_id in image_ids}
        values = self.verified.get(paths.values(), progress=True, shared=True)
        reasons = {
            name: _decoding_problem(path)
            for (name, path), value in zip(paths.items(), values, strict=True)
            if value is None
        }
        return {name: reason for name, reason in reasons.items() if reason is not None}


def verified_images(cache_file: str | os.PathLike[str] | None = None) -> FileValueCache:
    """Return a cache of images that were decoded successfully and have not changed since.

    Args:
        cache_file: JSON file that keeps the list between runs. None: memory only.

    Returns:
        Cache for one or more `ImageFolder`.
    """
    return FileValueCache(cache_file, _readable, "decoding images")


def load_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Load an image file as RGB pixels.

    Grayscale, CMYK and palette images are converted, 16-bit grayscale keeps its upper byte, transparent pixels are
    blended with white, and the EXIF orientation is applied.

    Args:
        path: A file in any format that Pillow reads.

    Returns:
        `[H, W, 3]` uint8, a writable copy.

    Raises:
        DataError: The file is missing, truncated or not an image, or has 32-bit pixels.

    Example:
        >>> load_image("COCO_val2014_000000262148.jpg").shape  # doctest: +SKIP
        (480, 640, 3)
    """
    try:
        with Image.open(path) as image:
            image.load()
            return _to_rgb(_upright(image), path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image; restore it, or prepare the data again") from error
    except DataError:
        raise
    except _DECODING_ERRORS as error:
        raise DataError(
            f"{path}: not a readable image ({error}); download it again, or read the data with verify=True, which "
            "skips questions about damaged images"
        ) from error


def _image_files(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield stem and path of every image file in the folders and their subfolders, each file once."""
    visited: set[str] = set()
    pending = list(reversed(list(folders)))
    while pending:
        folder = pending.pop()
        real = os.path.realpath(folder)
        if real in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    stem, suffix = os.path.splitext(entry.name)
                    if entry.name.startswith("."):  # such as `._name.jpg`, which macOS stores beside `name.jpg`
                        continue
                    if suffix.lower() in SUFFIXES and entry.is_file():  # reading a pipe would never end
                        yield stem, entry.path
                    elif entry.is_dir():
                        pending.append(entry.path)
        except OSError as error:
            raise DataError(
                f"{folder}: cannot be listed ({error.strerror or error}); give a folder of images"
            ) from error


def _readable(path: str) -> str | None:
    return "readable" if _decoding_problem(path) is None else None


def _decoding_problem(path: str) -> str | None:
    try:
        with Image.open(path) as image:
            image.load()
            return _WIDE_MESSAGE.format(mode=image.mode) if image.mode in _WIDE_MODES else None
    except _DECODING_ERRORS as error:
        return str(error)


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except _DECODING_ERRORS:
        return image  # damaged metadata, intact pixels


def _to_rgb(image: Image.Image, path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    if image.mode in _WIDE_MODES:  # no value is defined as white
        raise DataError(f"{path}: {_WIDE_MESSAGE.format(mode=image.mode)}; save it with 8 bits per channel")
    if image.mode.startswith("I;16"):  # `convert` would clip all values above 255 to white
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, (*_BACKGROUND, 255))
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    return np.array(image.convert("RGB"))
