"""Images in folders: which file an image id means, and its pixels."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.content import FileRecord

SUFFIXES = (".jpg", ".jpeg", ".png")
# COCO writes an id as twelve digits at least, an edited image's as two of them. Fewer digits are no id: the 3 of
# kitchen_3.png belongs to the name.
_ID = re.compile(r"(?:\d{12,}_)?\d{12,}\Z")
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, zlib.error, Image.DecompressionBombError)
_BACKGROUND = (255, 255, 255)
_WIDE = "pixels of mode {mode}, 32-bit numbers"


def image_name(image_id: int | str) -> str:
    """An image id as rows hold it: a number in its shortest form, anything else as it is.

    Args:
        image_id: A number, its digits, the id of an edited image, or the name of a file without suffix.

    Example:
        >>> image_name(9), image_name("000000000009"), image_name("000000000009_000000000005")
        ('9', '9', '000000000009_000000000005')
    """
    text = str(image_id)
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


class ImageFolder:
    """The image files of one or several folders, found by their ids.

    The id of an image is the name of its file without suffix, or the COCO id at its end: the file
    `COCO_val2014_000000262148.jpg` is found as `262148`, `COCO_val2014_000000262148_000000000005.jpg` as
    `000000262148_000000000005`. The index is made once, from the names of all `.jpg`, `.jpeg` and `.png` files in the
    folders and below them; hidden files are left out. A folder that is reached twice, as one of the folders and below
    another or by a link, counts once.

    Args:
        *folders: Where the images are.
        verified: Which images were found readable before, `verified_images(...)`; None: none is known yet.

    Raises:
        DataError: No folder is given, one of them is none, or no image is in them.

    Example:
        >>> images = ImageFolder("Images/val2014", "edited/val2014")  # doctest: +SKIP
        >>> images.load("000000262148_000000000005").shape  # doctest: +SKIP
        (480, 640, 3)
    """

    def __init__(self, *folders: str | os.PathLike[str], verified: FileRecord | None = None) -> None:
        self.verified = verified_images() if verified is None else verified
        # Absolute, because the paths travel on in data sets that are opened elsewhere.
        self.folders = tuple(os.path.abspath(folder) for folder in folders)
        self._paths: dict[str, str] = {}
        self._second: dict[str, str] = {}
        self.files = 0
        if not self.folders:
            raise DataError("images: no folder given; pass at least one")
        for stem, path in _image_files(self.folders):
            self.files += 1
            found = _ID.search(stem)
            for key in {image_name(stem), image_name(found[0]) if found else image_name(stem)}:
                if self._paths.setdefault(key, path) is not path:
                    self._second.setdefault(key, path)
        if not self.files:
            raise DataError(f"{', '.join(self.folders)}: no {', '.join(SUFFIXES)} file in it; check the path")

    def find(self, image_id: int | str) -> str | None:
        """The path of an image; None where there is none.

        Raises:
            DataError: Two files have this id.
        """
        key = image_name(image_id)
        if key in self._second:
            raise DataError(
                f"image {image_id}: two files have this id, {self._paths[key]} and {self._second[key]}; remove one, "
                "or give folders that hold one of them"
            )
        return self._paths.get(key)

    def path(self, image_id: int | str) -> str:
        """The path of an image.

        Raises:
            DataError: No file or two files have this id.
        """
        found = self.find(image_id)
        if found is None:
            raise DataError(
                f"image {image_id}: not among the {self.files} images in {', '.join(self.folders)}; fetch it, or "
                "give the folder it is in as well"
            )
        return found

    def load(self, image_id: int | str) -> NDArray[np.uint8]:
        """The pixels of an image, `[H, W, 3]`; see `load_image`."""
        return load_image(self.path(image_id))

    def unreadable(self, image_ids: Iterable[int | str]) -> dict[str, str]:
        """Which of these images cannot be read, and why.

        Each is decoded, on all cores and by the processes of a run in shares, with a progress bar on a terminal; those
        that the record holds as readable are not decoded again. All processes of a run must call it.

        Args:
            image_ids: Ids; each is checked once.

        Returns:
            Id, as `image_name` writes it -> why.

        Raises:
            DataError: No file or two files have one of the ids.
        """
        paths = {image_name(image_id): self.path(image_id) for image_id in image_ids}
        found = zip(paths.items(), self.verified.share_out(paths.values(), progress=True), strict=True)
        reasons = {name: _damage(path) for (name, path), value in found if value is None}
        return {name: reason for name, reason in reasons.items() if reason is not None}


def verified_images(record: str | os.PathLike[str] | None = None) -> FileRecord:
    """The images that were decoded without complaint, and have not changed since.

    Args:
        record: JSON file that keeps them between runs; None: they are not kept.

    Returns:
        For `ImageFolder`; several may share it.
    """
    return FileRecord(record, _readable, "decoding images")


def load_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The pixels of an image file as red, green and blue.

    Grey is repeated, CMYK and palettes are converted, 16-bit grey keeps its upper byte, what is transparent is laid on
    white, and the image is turned upright as its EXIF orientation says.

    Args:
        path: A file in any format that Pillow reads.

    Returns:
        `[H, W, 3]` uint8, a copy that may be written to.

    Raises:
        DataError: The file is absent, truncated or no image, or its pixels are 32-bit numbers.

    Example:
        >>> load_image("COCO_val2014_000000262148.jpg").shape  # doctest: +SKIP
        (480, 640, 3)
    """
    try:
        with Image.open(path) as image:
            image.load()
            return _to_rgb(_upright(image), path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image; put it back, or prepare the data anew") from error
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(
            f"{path}: not a readable image ({error}); fetch it again, or verify the images while reading, which leaves "
            "out the questions about damaged ones"
        ) from error


def _image_files(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Stem and path of every image file in the folders and below, each file once."""
    seen: set[str] = set()
    waiting = list(reversed(list(folders)))
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    stem, suffix = os.path.splitext(entry.name)
                    if entry.name.startswith("."):  # macOS keeps a `._name.jpg`, which is no image, beside `name.jpg`
                        continue
                    if suffix.lower() in SUFFIXES:
                        yield stem, entry.path
                    elif entry.is_dir():
                        waiting.append(entry.path)
        except OSError as error:
            raise DataError(
                f"{folder}: cannot be listed ({error.strerror or error}); give a folder of images"
            ) from error


def _readable(path: str) -> str | None:
    return "readable" if _damage(path) is None else None


def _damage(path: str) -> str | None:
    try:
        with Image.open(path) as image:
            image.load()
            return None if image.mode not in ("I", "F") else _WIDE.format(mode=image.mode)
    except _DAMAGED as error:
        return str(error)


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except _DAMAGED:
        return image  # the metadata is damaged, the pixels are not


def _to_rgb(image: Image.Image, path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    if image.mode in ("I", "F"):  # nothing tells which value is white
        raise DataError(f"{path}: {_WIDE.format(mode=image.mode)}; save it with 8 bits a channel")
    if image.mode.startswith("I;16"):  # `convert` would cut all above 255 to white
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, (*_BACKGROUND, 255))
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    return np.array(image.convert("RGB"))
