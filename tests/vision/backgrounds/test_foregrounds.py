"""Foregrounds: placement against moments of the mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dair_hf.augment.shapes import SHAPES
from dair_hf.data.counter_rng import uniform
from dair_hf.vision.backgrounds import composites
from dair_hf.vision.backgrounds.composites import _bounding_box, _place_foregrounds, shape_foregrounds

ROWS = torch.arange(200)
SIZE = 48


def drawn(name: str) -> NDArray[np.float64]:
    return uniform(ROWS, 0, 0, f"{name}/place", count=4).numpy()


def moments(mask: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Area, center (x, y) and angle of the longest axis (degrees, y down) of masks, in pixels."""
    weights = mask[:, 0].double().numpy()
    y, x = np.mgrid[: mask.shape[2], : mask.shape[3]] + 0.5
    area = weights.sum((1, 2))
    center = np.stack([(weights * axis).sum((1, 2)) / area for axis in (x, y)], axis=1)
    dx, dy = x - center[:, 0, None, None], y - center[:, 1, None, None]
    xx, yy, xy = ((weights * product).sum((1, 2)) for product in (dx * dx, dy * dy, dx * dy))
    return area, center, np.degrees(0.5 * np.arctan2(2 * xy, xx - yy))


def test_position_and_size_of_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    # Placed without rotation, since an upright square touches the edges.
    monkeypatch.setattr(composites, "TURN", 0.0)
    placed = _place_foregrounds(torch.full((9, 1, 12, 12), 255, dtype=torch.uint8), ROWS % 9, ROWS, SIZE, "test")
    assert placed.colors.shape == (200, 3, SIZE, SIZE)
    assert placed.mask.shape == (200, 1, SIZE, SIZE)
    numbers = drawn("test")
    side = (0.4 + 0.2 * numbers[:, 0]) * SIZE
    area, center, _ = moments(placed.mask)
    assert np.abs(area / side**2 - 1).max() < 0.02, "nothing is cut off"
    expected = SIZE / 2 + (2 * numbers[:, 2:] - 1) * (SIZE - side)[:, None] / 2
    assert np.abs(center - expected).max() < 0.15  # soft edges are cut at the border
    # Some touch each edge.
    edges = placed.mask[:, 0, [0, -1]].amax((0, 2)), placed.mask[:, 0, :, [0, -1]].amax((0, 1))
    assert all(float(edge.min()) > 0.5 for edge in edges)


def test_rotation_of_a_bar() -> None:
    shapes = shape_foregrounds(24)
    bar = torch.full_like(ROWS, list(SHAPES).index("bar"))
    *_, angle = moments(_place_foregrounds(shapes, bar, ROWS, 64, "test").mask)
    expected = (2 * drawn("test")[:, 1] - 1) * 180
    # y points down, hence the sign; a bar is symmetric under 180 degrees.
    off = (angle + expected + 90) % 180 - 90
    inside = np.abs(drawn("test")[:, 2:] - 0.5).max(axis=1) < 0.3  # not cut by the edge
    assert inside.sum() > 50
    assert np.abs(off[inside]).max() < 2.0


def test_opacity_is_kept() -> None:
    """The covered area is the sum of the opacity, scaled like the image."""
    images = torch.zeros(9, 1, 28, 28, dtype=torch.uint8)
    images[:, 0, 6:22, 6:22] = torch.arange(100, 190, 10, dtype=torch.uint8).view(9, 1, 1)
    area, *_ = moments(_place_foregrounds(images, ROWS % 9, ROWS, SIZE, "test").mask)
    scale = (0.4 + 0.2 * drawn("test")[:, 0]) * SIZE / 28
    opacity = images.double().sum((1, 2, 3)).numpy()[ROWS % 9] / 255
    assert np.abs(area / (opacity * scale**2) - 1).max() < 0.05


def test_bounding_boxes() -> None:
    mask = torch.rand(50, 1, 9, 11, generator=torch.Generator().manual_seed(0))
    mask[mask < 0.93] = 0
    mask[:5] = 0
    assert not _bounding_box(mask[:5]).any()
    for one, box in zip(mask[5:, 0].numpy(), _bounding_box(mask[5:])[:, 0].numpy(), strict=True):
        expected = np.zeros(one.shape, dtype=bool)
        y, x = one.nonzero()
        if len(y):
            expected[y.min() : y.max() + 1, x.min() : x.max() + 1] = True
        assert (box == expected).all()
