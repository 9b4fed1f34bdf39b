"""Shapes against Pillow, which draws them larger and averages."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dair_hf.augment.shapes import SHAPES, draw_shape
from tests.fixtures.counting_scenes import shape_mask

FINE = 16


def drawn_by_pillow(name: str, size: int) -> NDArray[np.float64]:
    """Draw the shapes that the fixture lacks."""
    image = Image.new("L", (size * FINE, size * FINE))
    draw = ImageDraw.Draw(image)

    def at(*points: tuple[float, float]) -> list[tuple[float, float]]:
        return [((x + 1) / 2 * size * FINE - 0.5, (y + 1) / 2 * size * FINE - 0.5) for x, y in points]

    if name == "crescent":
        draw.ellipse(at((-0.9, -0.9), (0.9, 0.9)), fill=255)
        draw.ellipse(at((-0.2, -0.7), (1.2, 0.7)), fill=0)
    elif name == "arrow":
        draw.polygon(at((0, -0.9), (0.9, 0), (0.3, 0), (0.3, 0.9), (-0.3, 0.9), (-0.3, 0), (-0.9, 0)), fill=255)
    else:
        assert name == "bar"
        draw.rectangle(at((-0.9, -0.3), (0.9, 0.3)), fill=255)
    return np.asarray(image, dtype=np.float64).reshape(size, FINE, size, FINE).mean(axis=(1, 3)) / 255


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [8, 16, 33])
def test_shapes_match_pillow(name: str, size: int) -> None:
    found = draw_shape(name, size)
    assert (found.shape, found.dtype) == ((size, size), np.float32)
    assert found.min() >= 0 and found.max() == 1
    expected = drawn_by_pillow(name, size) if name in ("crescent", "arrow", "bar") else shape_mask(name, size)
    assert abs(found - expected).mean() < 0.04 and abs(found - expected).max() < 0.4
