"""Shapes against Pillow, which draws them larger and averages."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.augment.shapes import SHAPES, draw_shape
from tests.fixtures.counting_scenes import shape_mask


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [8, 16, 33])
def test_shapes_match_pillow(name: str, size: int) -> None:
    found = draw_shape(name, size)
    assert (found.shape, found.dtype) == ((size, size), np.float32)
    assert found.min() >= 0 and found.max() == 1
    expected = shape_mask(name, size)
    assert abs(found - expected).mean() < 0.04 and abs(found - expected).max() < 0.4
