"""Pictures made of a foreground and a background that often gives its class away, in the variants of ImageNet-9."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dair_hf.augment.images import paste_background
from dair_hf.data.counter_rng import integers, uniform
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.foregrounds import Foregrounds, bounding_box, place
from dair_hf.vision.backgrounds.variants import (
    CLASSES,
    MIXED,
    MIXED_NEXT,
    MIXED_RAND,
    NO_FG,
    ONLY_BG_B,
    ONLY_BG_T,
    ONLY_FG,
    require_variants,
)

JITTER = 5.0  # degrees to either side of a texture's direction
CYCLES = (4.0, 7.0)  # stripes along a side
DARK, BRIGHT = (0.0, 0.2), (0.2, 0.6)  # a channel of the two colours of stripes; foregrounds are brighter


@dataclass(frozen=True, eq=False)
class Composites:
    """The pictures of one split: row r shows a thing of class r mod 9.

    Attributes:
        things: What stands in them.
        split: "train", "validation" or "test".
        each: Pictures of each class.
        first: Number of the first thing of each class that stands in one.
        size: Pixels of a side.
        correlation: Probability that a texture is that of the class.
        seed: Seed of the draws.
    """

    things: Foregrounds
    split: str
    each: int
    first: int
    size: int
    correlation: float
    seed: int

    def __len__(self) -> int:
        return self.each * CLASSES

    def textures(self, rows: Tensor) -> Tensor:
        """The class that each picture's own background tells of, `[B]` int64."""
        labels = rows % CLASSES
        agrees = uniform(rows, self.seed, 0, self._stream("agrees"))[:, 0] < self.correlation
        other = labels + 1 + integers(rows, self.seed, 0, self._stream("other"), high=CLASSES - 1)[:, 0]
        return torch.where(agrees, labels, other % CLASSES)

    def backgrounds(self, rows: Tensor) -> Tensor:
        """The pictures' own backgrounds with nothing before them, `[B, 3, size, size]` float32."""
        return stripes(self.textures(rows), rows, self.size, self.seed, self._stream("stripes"))

    def donors(self, variant: str, rows: Tensor, seed: int, epoch: int = 0) -> Tensor:
        """Which picture each one's background is from, in a mixed variant.

        Args:
            variant: `mixed_rand`, `mixed_same` or `mixed_next`; class 0 is next to the last.
            rows: `[B]` int64.
            seed: Seed of the draw.
            epoch: Epoch of the draw.

        Returns:
            `[B]` int64, rows of the same split.

        Raises:
            DataError: The variant is not mixed.
        """
        if variant not in MIXED:
            raise DataError(f"variant {variant!r} has no other backgrounds than its own; use one of {', '.join(MIXED)}")
        drawn = integers(rows, seed, epoch, self._stream(variant), high=self.each)[:, 0]
        if variant == MIXED_RAND:
            label = integers(rows, seed, epoch, self._stream("mixed_rand/class"), high=CLASSES)[:, 0]
        else:
            label = (rows + (variant == MIXED_NEXT)) % CLASSES
        return drawn * CLASSES + label

    def show(self, variant: str, rows: Tensor, donors: Tensor | None = None) -> Tensor:
        """Pictures in one variant.

        Args:
            variant: One of `VARIANTS`.
            rows: `[B]` int64.
            donors: `[B]` int64, for a mixed variant, and only for one: whose backgrounds they get.

        Returns:
            `[B, 3, size, size]` float32 in 0..1. The background of `only_bg_t` is whole, as it was drawn; the public
            data, which do not know what is behind a foreground, fill its box with tiles.

        Raises:
            DataError: The variant is unknown, or has no donors and needs them, or the other way round.
        """
        require_variants([variant])
        if (donors is not None) != (variant in MIXED):
            raise DataError(f"variant {variant!r}: give donors for {', '.join(MIXED)}, and for no other variant")
        if variant == ONLY_BG_T:
            return self.backgrounds(rows)
        which = self.things.rows(rows % CLASSES, self.first + rows // CLASSES)
        colors, mask = place(self.things, which, rows, self.size, self.seed, self._stream("thing"))
        if variant == ONLY_FG:
            return colors * mask
        behind = self.backgrounds(rows if donors is None else donors)
        if variant == NO_FG:
            return behind * (1 - mask)
        if variant == ONLY_BG_B:
            return behind * ~bounding_box(mask)
        return paste_background(colors.contiguous(), mask, behind)

    def _stream(self, what: str) -> str:
        return f"backgrounds/{self.split}/{what}"


@dataclass(frozen=True, eq=False)
class VariantView:
    """A view of `TensorPairs`: pictures in one variant.

    Attributes:
        pictures: The pictures.
        variant: One of `VARIANTS`.
        seed: Seed of the draw of mixed backgrounds.
        fresh: Whether that is drawn anew each epoch.
    """

    pictures: Composites
    variant: str
    seed: int
    fresh: bool = False

    def __call__(self, rows: Tensor, epoch: int) -> dict[str, Tensor]:
        """`pixel_values` `[B, 3, size, size]` float32 in 0..1 and `labels` `[B]` int64, 0 to 8."""
        donors = None
        if self.variant in MIXED:
            donors = self.pictures.donors(self.variant, rows, self.seed, epoch if self.fresh else 0)
        return {"pixel_values": self.pictures.show(self.variant, rows, donors), "labels": rows % CLASSES}


def stripes(kinds: Tensor, rows: Tensor, size: int, seed: int, stream: str) -> Tensor:
    """Stripes of nine directions: between two colours by `1/2 + 1/2 sin(2 pi (f (x cos a + y sin a) + p))`.

    The angle a is 20 degrees times the kind, give or take 5; f (4 to 7 stripes along a side), the phase p and both
    colours, a dark and a brighter one, tell nothing of the kind.

    Args:
        kinds: `[B]` int64, 0 to 8.
        rows: `[B]` int64, what the draws belong to.
        size: Pixels of a side.
        seed: Seed of the draws.
        stream: What is drawn.

    Returns:
        `[B, 3, size, size]` float32 in 0..0.6.

    Example:
        >>> stripes(torch.tensor([0, 8]), torch.tensor([5, 6]), size=32, seed=0, stream="example").shape
        torch.Size([2, 3, 32, 32])
    """
    drawn = uniform(rows, seed, 0, stream, count=9).float()
    angle = torch.deg2rad(kinds * (180 / CLASSES) + (2 * drawn[:, 0] - 1) * JITTER)
    cycles = CYCLES[0] + (CYCLES[1] - CYCLES[0]) * drawn[:, 1]
    axis = (torch.arange(size, dtype=drawn.dtype, device=rows.device) + 0.5) / size
    along = (cycles * angle.cos())[:, None, None] * axis + (cycles * angle.sin())[:, None, None] * axis[:, None]
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * (along + drawn[:, 2, None, None]))
    dark = DARK[0] + (DARK[1] - DARK[0]) * drawn[:, 3:6]
    bright = BRIGHT[0] + (BRIGHT[1] - BRIGHT[0]) * drawn[:, 6:9]
    return torch.lerp(dark[:, :, None, None], bright[:, :, None, None], wave[:, None])
