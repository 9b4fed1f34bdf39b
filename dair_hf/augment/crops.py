"""Random crops and horizontal flips of a batch of images, on its device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dair_hf.augment.images import pixels_at
from dair_hf.data.counter_rng import uniform


class Crops(NamedTuple):
    """Crop of each row; a crop has the size of its image."""

    top: Tensor
    left: Tensor
    mirrored: Tensor


def draw_crops(rows: Tensor, padding: int, flip: bool, seed: int, epoch: int, stream: str) -> Crops:
    """Draw a crop for each row: `top` and `left` uniform in -padding..padding, flipped with probability 1/2.

    A row gets the same crop in every batch and after a resume. Views drawn with the same `stream` get the same crop;
    different streams are independent.
    """
    top, left, coin = uniform(rows, seed, epoch, stream, count=3).unbind(1)
    offsets = 2 * padding + 1
    mirrored = coin < 0.5 if flip else torch.zeros_like(rows, dtype=torch.bool)
    return Crops((top * offsets).long() - padding, (left * offsets).long() - padding, mirrored)


def crop(images: Tensor, crops: Crops, fill: float = 0.0) -> Tensor:
    """Crop each row: `out[b, ..., y, x] = images[b, ..., top_b + y, left_b + x]`, flipped where `mirrored`.

    All leading dimensions of a row are cropped alike: the channels, and in a batch `[B, V, C, H, W]` both views.

    Args:
        images: `[B, ..., H, W]`, any dtype.
        crops: One crop per row, on the same device.
        fill: Value of pixels outside the image.

    Returns:
        A tensor with the shape and dtype of `images`.

    Example:
        >>> crops = Crops(torch.tensor([0]), torch.tensor([-1]), torch.tensor([True]))
        >>> crop(torch.tensor([[[1, 2, 3], [4, 5, 6]]]), crops)
        tensor([[[2, 1, 0],
                 [5, 4, 0]]])
    """
    *leading, height, width = images.shape
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    y = crops.top[:, None] + row
    x = crops.left[:, None] + torch.where(crops.mirrored[:, None], width - 1 - column, column)
    planes = images.reshape(leading[0], math.prod(leading[1:]), height, width)
    return pixels_at(planes, y[:, :, None], x[:, None, :], fill).view(images.shape)
