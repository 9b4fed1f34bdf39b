"""From files of photographs to tensors of one size: the central square, or a crop that is drawn anew each epoch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dair_hf.data.collator import LABELS
from dair_hf.data.counter_rng import uniform
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variant_folders import IMAGE

CROP, MIRRORED = "crop", "mirrored"
# Over the pixels of ImageNet-9, in 0..1, red, green, blue, as published with it.
MEAN, STD = (0.4717, 0.4499, 0.3837), (0.2600, 0.2516, 0.2575)
LONGEST = 4 / 3  # the longer side of a crop over the shorter, at most
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, zlib.error, Image.DecompressionBombError)


class PictureCollator:
    """Collates single views of rows with paths of pictures; `PairCollator` wraps it for pairs.

    A row is read from its column `image`. Its `crop` (left, top, right, bottom, as shares of the central square) is
    resized (Pillow, bilinear), turned round left to right where `mirrored` says so, and normalised:
    `(pixel / 255 - mean) / std`. Without these columns it is the central square. Pixels stand as they lie in the file:
    an orientation in its metadata is not looked at, because those who made the variants did not.

    Args:
        size: Pixels of a side of the result.
        mean: Mean of the channels, in 0..1.
        std: Standard deviation of the channels, in 0..1.

    Raises:
        DataError: A size below 1, a file that is absent or damaged, or a crop outside its picture.

    Example:
        >>> collator = PictureCollator(size=224)
        >>> batch = collator([{"image": "original/val/00_dog/n02085620_00001.JPEG", "labels": 0}])  # doctest: +SKIP
        >>> {name: values.shape for name, values in batch.items()}  # doctest: +SKIP
        {'pixel_values': torch.Size([1, 3, 224, 224]), 'labels': torch.Size([1])}
    """

    columns = (IMAGE, CROP, MIRRORED, LABELS)

    def __init__(self, size: int = 224, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        if size < 1:
            raise DataError(f"size={size} must be at least 1 pixel")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise DataError(f"mean={mean!r}, std={std!r}; three numbers each, and std above 0")
        self.size = size
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)

    def __call__(self, views: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate views.

        Args:
            views: Rows with `image`, and perhaps `crop`, `mirrored` and `labels`.

        Returns:
            `pixel_values` `[N, 3, size, size]` float32, and `labels` `[N]` int64 where the rows have them.
        """
        pixels = torch.stack([self._pixels(view) for view in views])
        batch = {"pixel_values": pixels.float().div_(255).sub_(self.mean).div_(self.std)}
        if LABELS in views[0]:
            batch[LABELS] = torch.tensor([view[LABELS] for view in views])
        return batch

    def _pixels(self, view: Mapping[str, Any]) -> Tensor:
        """`[3, size, size]` uint8."""
        path, crop = view[IMAGE], view.get(CROP) or (0.0, 0.0, 1.0, 1.0)
        if len(crop) != 4 or not (0 <= crop[0] < crop[2] <= 1 and 0 <= crop[1] < crop[3] <= 1):
            raise DataError(f"{path}: crop={list(crop)} must be left < right and top < bottom, between 0 and 1")
        try:
            with Image.open(path) as image:
                picture = image.convert("RGB")
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such picture; put it back, or read the folder again") from error
        except _DAMAGED as error:
            raise DataError(f"{path}: not a readable picture ({error}); fetch it again") from error
        box = _box(picture.size, crop)
        resized = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
        return pixels.flip(2) if view.get(MIRRORED) else pixels


def draw_crops(rows: Tensor, seed: int, epoch: int, stream: str, smallest: float) -> tuple[Tensor, Tensor]:
    """A part of each picture, and whether it is turned round left to right.

    Its area a is uniform between `smallest` and 1; the logarithm of its width over its height is uniform between those
    of 3/4 and 4/3, or as far as such a part fits: between those of a and 1/a. It lies anywhere, each place being
    equally likely.

    Args:
        rows: `[B]` int64, what the draws belong to.
        seed: Seed of the draws.
        epoch: Epoch.
        stream: What is drawn.
        smallest: Smallest area, as a share of the picture's, in (0, 1].

    Returns:
        `[B, 4]` float32: left, top, right, bottom, as shares of the sides; `[B]` bool.

    Raises:
        DataError: The smallest area is out of range.

    Example:
        >>> draw_crops(torch.tensor([7]), seed=0, epoch=0, stream="example", smallest=1.0)[0]
        tensor([[0., 0., 1., 1.]])
    """
    if not 0.0 < smallest <= 1.0:
        raise DataError(f"smallest={smallest} must be above 0 and at most 1: 0.08 is a twelfth of the picture")
    drawn = uniform(rows, seed, epoch, stream, count=5)
    area = smallest + (1 - smallest) * drawn[:, 0]
    most = area.reciprocal().clamp_(max=LONGEST).log()
    ratio = ((2 * drawn[:, 1] - 1) * most).exp()  # width over height
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=1).clamp_(max=1.0)
    corner = drawn[:, 2:4] * (1 - sides)
    # Rounded to float32 the far side may come to lie a hair outside.
    return torch.cat([corner, corner + sides], dim=1).float().clamp_(max=1.0), drawn[:, 4] < 0.5


def _box(size: tuple[int, int], crop: Sequence[float]) -> tuple[float, float, float, float]:
    """Pixels of a share of the central square."""
    width, height = size
    side = min(size)
    left, top = (width - side) // 2, (height - side) // 2
    return left + crop[0] * side, top + crop[1] * side, left + crop[2] * side, top + crop[3] * side
