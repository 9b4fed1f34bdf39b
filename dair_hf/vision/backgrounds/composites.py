"""Foregrounds on backgrounds: drawn shapes, textures, and their composites."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from dair_hf.augment.images import paste_background
from dair_hf.augment.shapes import SHAPES, draw_shape
from dair_hf.data.counter_rng import integers, uniform
from dair_hf.vision.backgrounds.variants import (
    CLASSES,
    MIXED,
    MIXED_NEXT,
    MIXED_RAND,
    NO_FG,
    ONLY_BG_B,
    ONLY_BG_T,
    ONLY_FG,
)

DARKEST = 0.7  # lower bound of the color channels of a foreground; backgrounds are darker
JITTER = 5.0  # degrees on either side of the direction of a texture
CYCLES = (4.0, 7.0)  # number of stripes along a side
DARK, BRIGHT = (0.0, 0.2), (0.2, 0.6)  # channel ranges of the two colors of stripes; foregrounds are brighter
SIDES = (0.4, 0.6)  # sides of a foreground, as shares of an image
TURN = 180.0  # degrees by which a foreground is rotated at most; all shapes can be recognized at any angle
SEED = 0  # of the images; the same for all runs


class _PlacedForegrounds(NamedTuple):
    """Foregrounds at their position in composites."""

    colors: Tensor
    mask: Tensor


def shape_foregrounds(size: int) -> Tensor:
    """Draw the nine shapes: their opacity, `[9, 1, size, size]` uint8."""
    masks = torch.stack([torch.from_numpy(draw_shape(name, size)) for name in SHAPES])
    return (masks * 255).round().byte()[:, None]


def _place_foregrounds(foregrounds: Tensor, labels: Tensor, rows: Tensor, size: int, stream: str) -> _PlacedForegrounds:
    """Place each foreground in its composite, with position, size, rotation and color drawn for its row."""
    drawn = uniform(rows, SEED, 0, f"{stream}/place", count=4)
    share = SIDES[0] + (SIDES[1] - SIDES[0]) * drawn[:, 0]
    angle = torch.deg2rad((2 * drawn[:, 1] - 1) * TURN)
    center = (2 * drawn[:, 2:] - 1) * (1 - share)[:, None]
    # Affine map from composite to foreground coordinates, both in -1..1: shift, rotate and scale.
    cos, sin = angle.cos() / share, angle.sin() / share
    rotation = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    matrices = torch.cat([rotation, -rotation @ center[:, :, None]], dim=2).float()
    images = foregrounds.index_select(0, labels).float().div_(255)
    grid = functional.affine_grid(matrices, [len(rows), 1, size, size], align_corners=False)
    mask = functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    colors = DARKEST + (1 - DARKEST) * uniform(rows, SEED, 0, f"{stream}/color", count=3).float()
    return _PlacedForegrounds(colors[:, :, None, None].expand(-1, -1, size, size), mask)


def _bounding_box(mask: Tensor) -> Tensor:
    """Return the smallest axis-aligned box around the covered pixels."""
    covered = mask > 0
    return _first_to_last(covered.any(3, keepdim=True), 2) & _first_to_last(covered.any(2, keepdim=True), 3)


def _first_to_last(covered: Tensor, dim: int) -> Tensor:
    before = covered.int().cummax(dim).values
    after = covered.int().flip(dim).cummax(dim).values.flip(dim)
    return (before & after).bool()


@dataclass(frozen=True, eq=False)
class Composites:
    """Images of one split; row r shows a foreground of class r mod 9."""

    foregrounds: Tensor
    split: str
    each: int
    size: int
    correlation: float

    def __len__(self) -> int:
        return self.each * CLASSES

    def textures(self, rows: Tensor) -> Tensor:
        """Return the class that the background of each image suggests, `[B]` int64."""
        labels = rows % CLASSES
        agrees = uniform(rows, SEED, 0, self._stream("agrees"))[:, 0] < self.correlation
        other = labels + 1 + integers(rows, SEED, 0, self._stream("other"), high=CLASSES - 1)[:, 0]
        return torch.where(agrees, labels, other % CLASSES)

    def backgrounds(self, rows: Tensor) -> Tensor:
        """Return the background of each image, `[B, 3, size, size]` float32."""
        return stripes(self.textures(rows), rows, self.size, self._stream("stripes"))

    def donors(self, variant: str, rows: Tensor) -> Tensor:
        """Draw the images that provide the backgrounds of a mixed variant."""
        number = integers(rows, SEED, 0, self._stream(variant), high=self.each)[:, 0]
        if variant == MIXED_RAND:
            label = integers(rows, SEED, 0, self._stream("mixed_rand/class"), high=CLASSES)[:, 0]
        else:
            label = (rows + (variant == MIXED_NEXT)) % CLASSES
        return number * CLASSES + label

    def render(self, variant: str, rows: Tensor) -> Tensor:
        """Render images in one variant."""
        if variant == ONLY_BG_T:
            return self.backgrounds(rows)
        colors, mask = _place_foregrounds(self.foregrounds, rows % CLASSES, rows, self.size, self._stream("thing"))
        if variant == ONLY_FG:
            return colors * mask
        backgrounds = self.backgrounds(self.donors(variant, rows) if variant in MIXED else rows)
        if variant == NO_FG:
            return backgrounds * (1 - mask)
        if variant == ONLY_BG_B:
            return backgrounds * ~_bounding_box(mask)
        return paste_background(colors.contiguous(), mask, backgrounds)

    def _stream(self, name: str) -> str:
        return f"backgrounds/{self.split}/{name}"


@dataclass(frozen=True, eq=False)
class VariantView:
    """View of `TensorPairs` that shows images in one variant."""

    composites: Composites
    variant: str

    def __call__(self, rows: Tensor, epoch: int) -> dict[str, Tensor]:
        """Return `pixel_values` `[B, 3, size, size]` float32 in 0..1 and `labels` `[B]` int64, 0 to 8."""
        return {"pixel_values": self.composites.render(self.variant, rows), "labels": rows % CLASSES}


def stripes(textures: Tensor, rows: Tensor, size: int, stream: str) -> Tensor:
    """Draw stripes between two colors: `1/2 + 1/2 sin(2 pi (f (x cos a + y sin a) + p))`.

    The angle a is 20 degrees times the texture, plus or minus 5. Frequency f (4 to 7 stripes along a side), phase p and
    the two colors (a dark and a brighter one) are independent of the texture.

    Textures are 0 to 8; the result is `[B, 3, size, size]` in 0..0.6.
    """
    drawn = uniform(rows, SEED, 0, stream, count=9).float()
    angle = torch.deg2rad(textures * (180 / CLASSES) + (2 * drawn[:, 0] - 1) * JITTER)
    cycles = CYCLES[0] + (CYCLES[1] - CYCLES[0]) * drawn[:, 1]
    axis = (torch.arange(size, dtype=drawn.dtype, device=rows.device) + 0.5) / size
    along = (cycles * angle.cos())[:, None, None] * axis + (cycles * angle.sin())[:, None, None] * axis[:, None]
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * (along + drawn[:, 2, None, None]))
    dark = DARK[0] + (DARK[1] - DARK[0]) * drawn[:, 3:6]
    bright = BRIGHT[0] + (BRIGHT[1] - BRIGHT[0]) * drawn[:, 6:9]
    return torch.lerp(dark[:, :, None, None], bright[:, :, None, None], wave[:, None])
