"""Plain shapes with smooth edges, drawn from formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

OVERSAMPLING = 4  # samples per pixel and axis, for smooth edges

Coordinates = NDArray[np.float64]


def draw_shape(name: str, size: int) -> NDArray[np.float32]:
    """Draw a shape as the covered fraction of each pixel.

    Args:
        name: One of `SHAPES`.
        size: Side in pixels.

    Returns:
        `[size, size]` float32 in 0..1.

    Example:
        >>> draw_shape("square", 4)
        array([[0.25, 0.5 , 0.5 , 0.25],
               [0.5 , 1.  , 1.  , 0.5 ],
               [0.5 , 1.  , 1.  , 0.5 ],
               [0.25, 0.5 , 0.5 , 0.25]], dtype=float32)
    """
    axis = (np.arange(size * OVERSAMPLING) + 0.5) / (size * OVERSAMPLING) * 2 - 1
    inside = SHAPES[name](*np.meshgrid(axis, axis))
    return inside.reshape(size, OVERSAMPLING, size, OVERSAMPLING).mean(axis=(1, 3), dtype=np.float32)


def _star(x: Coordinates, y: Coordinates) -> NDArray[np.bool_]:
    """Star of five points, with straight edges between points and notches."""
    sector = np.pi / 5
    from_point = abs((np.arctan2(x, -y) + sector) % (2 * sector) - sector)
    outer, inner = 0.95, 0.42
    # The edge from (outer, 0) to (inner, sector) in polar form.
    slope = np.arctan2(inner * np.sin(sector), outer - inner * np.cos(sector))
    inside: NDArray[np.bool_] = np.hypot(x, y) <= outer * np.sin(slope) / np.sin(from_point + slope)
    return inside


def _arrow(x: Coordinates, y: Coordinates) -> NDArray[np.bool_]:
    """Arrow that points up."""
    head = (y <= 0.0) & (y >= abs(x) - 0.9)
    return head | ((abs(x) <= 0.3) & (y >= 0.0) & (y <= 0.9))


# Name -> predicate of points inside; x points right and y down, both from -1 to 1.
SHAPES: dict[str, Callable[[Coordinates, Coordinates], NDArray[np.bool_]]] = {
    "circle": lambda x, y: x**2 + y**2 <= 0.9**2,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.75,
    "triangle": lambda x, y: (y <= 0.8) & (y >= 2.0 * abs(x) - 0.9),
    "star": _star,
    "cross": lambda x, y: ((abs(x) <= 0.3) | (abs(y) <= 0.3)) & (np.maximum(abs(x), abs(y)) <= 0.9),
    "ring": lambda x, y: (x**2 + y**2 <= 0.9**2) & (x**2 + y**2 >= 0.5**2),
    "crescent": lambda x, y: (x**2 + y**2 <= 0.9**2) & ((x - 0.5) ** 2 + y**2 >= 0.7**2),
    "arrow": _arrow,
    "bar": lambda x, y: (abs(x) <= 0.9) & (abs(y) <= 0.3),
}
