"""What stands in pictures of nine classes: drawn shapes, handwritten digits or photographed objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from dair_hf.augment.shapes import SHAPES, draw_shape
from dair_hf.data.counter_rng import uniform
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variants import CLASSES

DARKEST = 0.7  # a channel of the colour of a foreground; backgrounds are darker


class Foregrounds(NamedTuple):
    """Pictures of things of nine classes.

    Attributes:
        names: Of the classes.
        pictures: `[M, C, S, S]` uint8, class by class: with C = 1 how opaque each pixel is, to be coloured; with C = 3
            red, green and blue of an opaque square.
        counts: Pictures of each class.
        sides: Smallest and largest side that a thing has, as shares of the picture's.
        turn: Largest angle by which a thing is turned either way, degrees.
    """

    names: tuple[str, ...]
    pictures: Tensor
    counts: tuple[int, ...]
    sides: tuple[float, float]
    turn: float

    def rows(self, labels: Tensor, numbers: Tensor) -> Tensor:
        """Which picture is the given one of its class; numbers are counted round and round.

        Args:
            labels: `[B]` int64, classes.
            numbers: `[B]` int64, >= 0.

        Returns:
            `[B]` int64, rows of `pictures`.
        """
        counts = torch.tensor(self.counts, device=labels.device)
        return (counts.cumsum(0) - counts)[labels] + numbers % counts[labels]


class Placed(NamedTuple):
    """Foregrounds in their pictures.

    Attributes:
        colors: `[B, 3, size, size]` float32 in 0..1; what is not covered holds any value.
        mask: `[B, 1, size, size]` float32 in 0..1, how much of a pixel is covered.
    """

    colors: Tensor
    mask: Tensor


def shape_foregrounds(size: int) -> Foregrounds:
    """The nine shapes, which need no data.

    Args:
        size: Pixels of a side, about as large as they shall be shown.

    Returns:
        One picture of each, to be coloured.

    Example:
        >>> shape_foregrounds(24).names[:3]
        ('circle', 'square', 'triangle')
    """
    masks = torch.stack([torch.from_numpy(draw_shape(name, size)) for name in SHAPES])
    # A bar and a square stay what they are however they are turned; so any angle will do.
    return Foregrounds(tuple(SHAPES), (masks * 255).round().byte()[:, None], (1,) * CLASSES, (0.4, 0.6), 180.0)


def digit_foregrounds(images: Tensor, labels: Tensor) -> Foregrounds:
    """Handwritten digits from 0 to 8, to be coloured; their ink is what is opaque.

    Args:
        images: `[N, H, H]` uint8, white ink on black (MNIST).
        labels: `[N]` int64, digits.

    Returns:
        All pictures of the nine digits.

    Raises:
        DataError: A digit has no picture.
    """
    names = [f"digit {digit}" for digit in range(CLASSES)]
    return _by_class(images[:, None], labels, names, (0.6, 0.8), 15.0)


def object_foregrounds(images: Tensor, labels: Tensor, names: Sequence[str]) -> Foregrounds:
    """Photographs as opaque squares in their own colours, of the first nine classes.

    Args:
        images: `[N, 3, H, H]` uint8 (CIFAR-10).
        labels: `[N]` int64, classes.
        names: Of the classes, nine or more.

    Returns:
        All pictures of the nine classes.

    Raises:
        DataError: A class has no picture.
    """
    return _by_class(images, labels, list(names[:CLASSES]), (0.6, 0.8), 0.0)


def place(things: Foregrounds, which: Tensor, rows: Tensor, size: int, seed: int, stream: str) -> Placed:
    """Put each thing somewhere into its picture, as large, turned and coloured as is drawn for its row.

    Args:
        things: The things.
        which: `[B]` int64, rows of `things.pictures`.
        rows: `[B]` int64, what the draws belong to.
        size: Pixels of a side of the pictures.
        seed: Seed of the draws.
        stream: What is drawn.

    Returns:
        The things where they stand, wholly inside (but for the corners of what is turned).

    Example:
        >>> things = shape_foregrounds(16)
        >>> placed = place(things, torch.tensor([1]), torch.tensor([0]), size=32, seed=0, stream="example")
        >>> placed.mask.shape, bool(placed.mask.max() > 0.9)
        (torch.Size([1, 1, 32, 32]), True)
    """
    drawn = uniform(rows, seed, 0, f"{stream}/place", count=4)
    smallest, largest = things.sides
    share = smallest + (largest - smallest) * drawn[:, 0]
    angle = torch.deg2rad((2 * drawn[:, 1] - 1) * things.turn)
    centre = (2 * drawn[:, 2:] - 1) * (1 - share)[:, None]
    # From places in the picture to places in the thing, both from -1 to 1: shift, turn and stretch.
    cos, sin = angle.cos() / share, angle.sin() / share
    turned = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    matrices = torch.cat([turned, -turned @ centre[:, :, None]], dim=2).float()
    pictures = things.pictures.index_select(0, which).float().div_(255)
    grid = functional.affine_grid(matrices, [len(rows), 1, size, size], align_corners=False)
    if pictures.shape[1] == 1:
        colors = DARKEST + (1 - DARKEST) * uniform(rows, seed, 0, f"{stream}/color", count=3).float()
        return Placed(colors[:, :, None, None].expand(-1, -1, size, size), _sampled(pictures, grid, "zeros"))
    return Placed(_sampled(pictures, grid, "border"), _sampled(torch.ones_like(pictures[:, :1]), grid, "zeros"))


def bounding_box(mask: Tensor) -> Tensor:
    """The smallest upright box around what a mask covers.

    Args:
        mask: `[B, 1, H, W]`, what is above 0 is covered.

    Returns:
        `[B, 1, H, W]` bool.

    Example:
        >>> bounding_box(torch.tensor([[[[0.0, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]]))
        tensor([[[[ True,  True, False],
                  [ True,  True, False],
                  [False, False, False]]]])
    """
    covered = mask > 0
    return _filled(covered.any(3, keepdim=True), 2) & _filled(covered.any(2, keepdim=True), 3)


def _filled(covered: Tensor, dim: int) -> Tensor:
    """From the first that is covered to the last."""
    before = covered.int().cummax(dim).values
    after = covered.int().flip(dim).cummax(dim).values.flip(dim)
    return (before & after).bool()


def _by_class(
    pictures: Tensor, labels: Tensor, names: list[str], sides: tuple[float, float], turn: float
) -> Foregrounds:
    chosen = labels < CLASSES
    order = labels[chosen].argsort(stable=True)
    counts = labels[chosen].bincount(minlength=CLASSES).tolist()
    if missing := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise DataError(f"foregrounds: no picture of {', '.join(missing)}; give a data set with all of its classes")
    return Foregrounds(tuple(names), pictures[chosen][order], tuple(counts), sides, turn)


def _sampled(pictures: Tensor, grid: Tensor, outside: str) -> Tensor:
    return functional.grid_sample(pictures, grid, mode="bilinear", padding_mode=outside, align_corners=False)
