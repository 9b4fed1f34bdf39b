"""Drawn images of foregrounds on striped backgrounds, in the variants of ImageNet-9."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dair_hf.augment.images import paste_background
from dair_hf.data.counter_rng import integers, uniform
from dair_hf.vision.backgrounds.foregrounds import Foregrounds, bounding_box, place_foregrounds
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

JITTER = 5.0  # degrees on either side of the direction of a texture
CYCLES = (4.0, 7.0)  # number of stripes along a side
DARK, BRIGHT = (0.0, 0.2), (0.2, 0.6)  # channel ranges of the two colors of stripes; foregrounds are brighter


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
        colors, mask = place_foregrounds(self.foregrounds, indices, rows, self.size, self.seed, self._stream("thing"))
        if variant == ONLY_FG:
            return colors * mask
        backgrounds = self.backgrounds(self.donors(variant, rows, seed, epoch) if variant in MIXED else rows)
        if variant == NO_FG:
            return backgrounds * (1 - mask)
        if variant == ONLY_BG_B:
            return backgrounds * ~bounding_box(mask)
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
