"""Foregrounds on backgrounds: drawn shapes, textures, and their composites."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class Foregrounds(NamedTuple):
    """Images of foregrounds of nine classes."""

    names: tuple[str, ...]
    images: Tensor
    counts: tuple[int, ...]
    sides: tuple[float, float]
    turn: float

    def indices(self, labels: Tensor, numbers: Tensor) -> Tensor:
        """Return the index of an image from its class and its number within the class, modulo the number of images."""
        counts = torch.tensor(self.counts, device=labels.device)
        return (counts.cumsum(0) - counts)[labels] + numbers % counts[labels]


class _PlacedForegrounds(NamedTuple):
    """Foregrounds at their position in composites."""

    colors: Tensor
    mask: Tensor


def shape_foregrounds(size: int) -> Foregrounds:
    """Draw the nine shapes, one image each."""
    masks = torch.stack([torch.from_numpy(draw_shape(name, size)) for name in SHAPES])
    # All shapes can be recognized at any angle.
    return Foregrounds(tuple(SHAPES), (masks * 255).round().byte()[:, None], (1,) * CLASSES, (0.4, 0.6), 180.0)


def digit_foregrounds(images: Tensor, labels: Tensor) -> Foregrounds:
    """Select the digits 0 to 8, to be colored; their ink is the opacity."""
    names = [f"digit {digit}" for digit in range(CLASSES)]
    return _by_class(images[:, None], labels, names, (0.6, 0.8), 15.0)


def object_foregrounds(images: Tensor, labels: Tensor, names: Sequence[str]) -> Foregrounds:
    """Select photographs of the first nine classes, as opaque squares."""
    return _by_class(images, labels, list(names[:CLASSES]), (0.6, 0.8), 0.0)


def _place_foregrounds(
    foregrounds: Foregrounds, indices: Tensor, rows: Tensor, size: int, seed: int, stream: str
) -> _PlacedForegrounds:
    """Place each foreground in its composite, with position, size, rotation and color drawn for its row."""
    drawn = uniform(rows, seed, 0, f"{stream}/place", count=4)
    smallest, largest = foregrounds.sides
    share = smallest + (largest - smallest) * drawn[:, 0]
    angle = torch.deg2rad((2 * drawn[:, 1] - 1) * foregrounds.turn)
    center = (2 * drawn[:, 2:] - 1) * (1 - share)[:, None]
    # Affine map from composite to foreground coordinates, both in -1..1: shift, rotate and scale.
    cos, sin = angle.cos() / share, angle.sin() / share
    rotation = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    matrices = torch.cat([rotation, -rotation @ center[:, :, None]], dim=2).float()
    images = foregrounds.images.index_select(0, indices).float().div_(255)
    grid = functional.affine_grid(matrices, [len(rows), 1, size, size], align_corners=False)
    if images.shape[1] == 1:
        colors = DARKEST + (1 - DARKEST) * uniform(rows, seed, 0, f"{stream}/color", count=3).float()
        return _PlacedForegrounds(colors[:, :, None, None].expand(-1, -1, size, size), _sample(images, grid, "zeros"))
    return _PlacedForegrounds(_sample(images, grid, "border"), _sample(torch.ones_like(images[:, :1]), grid, "zeros"))


def _bounding_box(mask: Tensor) -> Tensor:
    """Return the smallest axis-aligned box around the covered pixels."""
    covered = mask > 0
    return _first_to_last(covered.any(3, keepdim=True), 2) & _first_to_last(covered.any(2, keepdim=True), 3)


def _first_to_last(covered: Tensor, dim: int) -> Tensor:
    before = covered.int().cummax(dim).values
    after = covered.int().flip(dim).cummax(dim).values.flip(dim)
    return (before & after).bool()


def _by_class(images: Tensor, labels: Tensor, names: list[str], sides: tuple[float, float], turn: float) -> Foregrounds:
    chosen = labels < CLASSES
    order = labels[chosen].argsort(stable=True)
    counts = labels[chosen].bincount(minlength=CLASSES).tolist()
    return Foregrounds(tuple(names), images[chosen][order], tuple(counts), sides, turn)


def _sample(images: Tensor, grid: Tensor, padding_mode: str) -> Tensor:
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode=padding_mode, align_corners=False)


@dataclass(frozen=True, eq=False)
class Composites:
    """Images of one split; row r shows a foreground of class r mod 9."""

    foregrounds: Foregrounds
    split: str
    each: int
    first: int
    size: int
    correlation: float
    seed: int

    def __len__(self) -> int:
        return self.each * CLASSES

    def textures(self, rows: Tensor) -> Tensor:
        """Return the class that the background of each image suggests, `[B]` int64."""
        labels = rows % CLASSES
        agrees = uniform(rows, self.seed, 0, self._stream("agrees"))[:, 0] < self.correlation
        other = labels + 1 + integers(rows, self.seed, 0, self._stream("other"), high=CLASSES - 1)[:, 0]
        return torch.where(agrees, labels, other % CLASSES)

    def backgrounds(self, rows: Tensor) -> Tensor:
        """Return the background of each image, `[B, 3, size, size]` float32."""
        return stripes(self.textures(rows), rows, self.size, self.seed, self._stream("stripes"))

    def donors(self, variant: str, rows: Tensor, seed: int, epoch: int = 0) -> Tensor:
        """Draw the images that provide the backgrounds of a mixed variant."""
        number = integers(rows, seed, epoch, self._stream(variant), high=self.each)[:, 0]
        if variant == MIXED_RAND:
            label = integers(rows, seed, epoch, self._stream("mixed_rand/class"), high=CLASSES)[:, 0]
        else:
            label = (rows + (variant == MIXED_NEXT)) % CLASSES
        return number * CLASSES + label

    def render(self, variant: str, rows: Tensor, seed: int, epoch: int = 0) -> Tensor:
        """Render images in one variant; `seed` and `epoch` determine the backgrounds of mixed variants."""
        if variant == ONLY_BG_T:
            return self.backgrounds(rows)
        indices = self.foregrounds.indices(rows % CLASSES, self.first + rows // CLASSES)
        colors, mask = _place_foregrounds(self.foregrounds, indices, rows, self.size, self.seed, self._stream("thing"))
        if variant == ONLY_FG:
            return colors * mask
        backgrounds = self.backgrounds(self.donors(variant, rows, seed, epoch) if variant in MIXED else rows)
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
    seed: int
    fresh: bool = False

    def __call__(self, rows: Tensor, epoch: int) -> dict[str, Tensor]:
        """Return `pixel_values` `[B, 3, size, size]` float32 in 0..1 and `labels` `[B]` int64, 0 to 8."""
        images = self.composites.render(self.variant, rows, self.seed, epoch if self.fresh else 0)
        return {"pixel_values": images, "labels": rows % CLASSES}


def stripes(textures: Tensor, rows: Tensor, size: int, seed: int, stream: str) -> Tensor:
    """Draw stripes between two colors: `1/2 + 1/2 sin(2 pi (f (x cos a + y sin a) + p))`.

    The angle a is 20 degrees times the texture, plus or minus 5. Frequency f (4 to 7 stripes along a side), phase p and
    the two colors (a dark and a brighter one) are independent of the texture.

    Textures are 0 to 8; the result is `[B, 3, size, size]` in 0..0.6.
    """
    drawn = uniform(rows, seed, 0, stream, count=9).float()
    angle = torch.deg2rad(textures * (180 / CLASSES) + (2 * drawn[:, 0] - 1) * JITTER)
    cycles = CYCLES[0] + (CYCLES[1] - CYCLES[0]) * drawn[:, 1]
    axis = (torch.arange(size, dtype=drawn.dtype, device=rows.device) + 0.5) / size
    along = (cycles * angle.cos())[:, None, None] * axis + (cycles * angle.sin())[:, None, None] * axis[:, None]
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * (along + drawn[:, 2, None, None]))
    dark = DARK[0] + (DARK[1] - DARK[0]) * drawn[:, 3:6]
    bright = BRIGHT[0] + (BRIGHT[1] - BRIGHT[0]) * drawn[:, 6:9]
    return torch.lerp(dark[:, :, None, None], bright[:, :, None, None], wave[:, None])
