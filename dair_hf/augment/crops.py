"""Random crops and mirror images of a batch at once, on the device it is on."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dair_hf.augment.images import pixels_at
from dair_hf.data.counter_rng import uniform
from dair_hf.errors import DataError


class Crops(NamedTuple):
    """Where the crop of each row lies in its image, which it is as large as.

    Attributes:
        top: `[B]` int64, the row of the image that becomes the first; below 0 outside.
        left: `[B]` int64, the column that becomes the first, before mirroring.
        mirrored: `[B]` bool, whether left and right change places.
    """

    top: Tensor
    left: Tensor
    mirrored: Tensor


def draw_crops(rows: Tensor, padding: int, flip: bool, seed: int, epoch: int, stream: str) -> Crops:
    """A crop for each row: `top` and `left` uniform on -padding to padding, mirrored with probability 1/2.

    Drawn as `draws.uniform` draws, so that a row has the same crop in any batch, and after a resume. Two views that are
    drawn for the same `stream` have the same crop, two streams are independent.

    Args:
        rows: `[B]` int64, number of each row in its data set.
        padding: Pixels by which the crop may reach beyond the image, >= 0; 4 is usual for 32 x 32 pixels.
        flip: Whether images are mirrored.
        seed: Seed of the draws.
        epoch: Epoch.
        stream: What the crops are drawn for.

    Returns:
        The crops, on the device of `rows`.

    Raises:
        DataError: `padding` is below 0.

    Example:
        >>> draw_crops(torch.tensor([5, 6]), padding=2, flip=True, seed=0, epoch=0, stream="train")
        Crops(top=tensor([0, 1]), left=tensor([-1,  2]), mirrored=tensor([ True, False]))
    """
    if padding < 0:
        raise DataError(f"padding={padding} must be at least 0")
    top, left, coin = uniform(rows, seed, epoch, stream, count=3).unbind(1)
    places = 2 * padding + 1
    mirrored = coin < 0.5 if flip else torch.zeros_like(rows, dtype=torch.bool)
    return Crops((top * places).long() - padding, (left * places).long() - padding, mirrored)


def crop(images: Tensor, crops: Crops, fill: float = 0.0) -> Tensor:
    """Each row cut as its crop says: `out[b, ..., y, x] = images[b, ..., top_b + y, left_b + x]`, or mirrored.

    Everything of a row is cut alike: all channels, and of a batch `[B, V, C, H, W]` both views.

    Args:
        images: `[B, ..., H, W]`, any type.
        crops: A crop for each row, on the same device.
        fill: Value of what lies outside of the image.

    Returns:
        A tensor as `images`.

    Raises:
        DataError: Shapes or types do not fit.

    Example:
        >>> crops = Crops(torch.tensor([0]), torch.tensor([-1]), torch.tensor([True]))
        >>> crop(torch.tensor([[[1, 2, 3], [4, 5, 6]]]), crops)
        tensor([[[2, 1, 0],
                 [5, 4, 0]]])
    """
    if images.ndim < 3:
        raise DataError(f"crop: images must be [B, ..., H, W], found shape {list(images.shape)}")
    for name, values, dtype in zip(Crops._fields, crops, (torch.int64, torch.int64, torch.bool), strict=True):
        if values.shape != images.shape[:1] or values.dtype != dtype:
            raise DataError(
                f"crop: {name} must be {dtype} [{len(images)}], one an image, found {values.dtype} {list(values.shape)}"
            )
    *leading, height, width = images.shape
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    y = crops.top[:, None] + row
    x = crops.left[:, None] + torch.where(crops.mirrored[:, None], width - 1 - column, column)
    planes = images.reshape(leading[0], math.prod(leading[1:]), height, width)
    return pixels_at(planes, y[:, :, None], x[:, None, :], fill).view(images.shape)
