"""Foregrounds of nine classes: drawn shapes, handwritten digits or photographed objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from dair_hf.augment.shapes import SHAPES, draw_shape
from dair_hf.data.counter_rng import uniform
from dair_hf.vision.backgrounds.variants import CLASSES

DARKEST = 0.7  # lower bound of the color channels of a foreground; backgrounds are darker


class Foregrounds(NamedTuple):
    """Images of foregrounds of nine classes.

    Attributes:
        names: Names of the classes.
        images: `[M, C, S, S]` uint8, ordered by class. C = 1: opacity of each pixel, to be colored; C = 3: RGB of an
            opaque square.
        counts: Number of images of each class.
        sides: Smallest and largest side of a foreground, as shares of the composite's side.
        turn: Largest rotation in either direction, degrees.
    """

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


def place_foregrounds(
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


def bounding_box(mask: Tensor) -> Tensor:
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
