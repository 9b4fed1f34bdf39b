"""Crops, flips, rotations and colors of image batches on their device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from dair_hf.data.counter_rng import uniform
from dair_hf.errors import DataError

LARGEST_SIDE = 8192  # pixels; up to it 16.16 fixed-point coordinates fit into int32
FRACTION_BITS = 16


def recolor(images: Tensor, colors: Tensor) -> Tensor:
    """Color grayscale images: `out[b, c] = images[b] * colors[b, c]`."""
    return (images[:, None] if images.ndim == 3 else images) * colors[:, :, None, None]


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its center by its own angle; the size stays, corners are cut off.

    The result matches `PIL.Image.rotate` pixel for pixel. It uses the same 16.16 fixed-point coordinates, so the result
    is the same on every device, and multiples of 90 degrees are exact for square images. Pixels outside the image are
    0.

    Args:
        images: `[B, C, H, W]`, any dtype; sides of at most 8192 pixels.
        degrees: `[B]`, floating, finite.

    Returns:
        `[B, C, H, W]`, of the dtype of `images`.

    Raises:
        DataError: A side is longer than that, or an angle is not finite.

    Example:
        >>> rotate(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([90.0]))
        tensor([[[[2, 4],
                  [1, 3]]]])
    """
    if max(images.shape[2:]) > LARGEST_SIDE or not bool(degrees.isfinite().all()):
        raise DataError(
            f"rotate: expected sides up to {LARGEST_SIDE} and finite angles, got {list(images.shape)} and {degrees}"
        )
    # Maps output to input coordinates, hence the sign; y points down.
    radians = torch.deg2rad(-degrees.to(torch.float64))
    height, width = images.shape[2:]
    cos, sin = radians.cos(), radians.sin()
    # Input coordinates of the output pixel (0, 0), at pixel centers.
    x_origin = width / 2 + cos * (0.5 - width / 2) + sin * (0.5 - height / 2)
    y_origin = height / 2 - sin * (0.5 - width / 2) + cos * (0.5 - height / 2)
    steps = torch.stack([cos, sin, x_origin, y_origin])
    fixed = steps.mul_(1 << FRACTION_BITS).add_(0.5).floor_().to(torch.int32)
    cos, sin, x_origin, y_origin = fixed[:, :, None]
    # PIL rounds -sin separately; that differs from -round(sin) only at exact halves, which no sine reaches.
    column = torch.arange(width, dtype=torch.int32, device=images.device)
    row = torch.arange(height, dtype=torch.int32, device=images.device)
    x = (cos * column)[:, None, :] + (sin * row + x_origin)[:, :, None]
    y = (cos * row + y_origin)[:, :, None] - (sin * column)[:, None, :]
    return _pixels_at(images, y.bitwise_right_shift_(FRACTION_BITS), x.bitwise_right_shift_(FRACTION_BITS))


def paste_background(images: Tensor, mask: Tensor, backgrounds: Tensor) -> Tensor:
    """Paste foregrounds onto other backgrounds: `out = mask * images + (1 - mask) * backgrounds`."""
    if mask.dtype == torch.bool:
        return torch.where(mask, images, backgrounds)
    return torch.lerp(backgrounds, images, mask.to(images.dtype))


def _pixels_at(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Gather pixels by position, 0 outside: `out[b, c, i, j] = images[b, c, y[b, i, j], x[b, i, j]]`."""
    batch, channels, height, width = images.shape
    # A border of one pixel stands for everything outside.
    index = torch.add(x.clamp(-1, width), y.clamp(-1, height), alpha=width + 2)
    flat = index.add_(width + 3).to(torch.int64).flatten(1)[:, None]
    padded = functional.pad(images, (1, 1, 1, 1)).flatten(2)
    return padded.gather(2, flat.expand(-1, channels, -1)).view(batch, channels, *index.shape[1:])


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


def crop(images: Tensor, crops: Crops) -> Tensor:
    """Crop each row: `out[b, ..., y, x] = images[b, ..., top_b + y, left_b + x]`, flipped where `mirrored`; 0 outside.

    All leading dimensions of a row are cropped alike: the channels, and in a batch `[B, V, C, H, W]` both views.

    Args:
        images: `[B, ..., H, W]`, any dtype.
        crops: One crop per row, on the same device.

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
    return _pixels_at(planes, y[:, :, None], x[:, None, :]).view(images.shape)
