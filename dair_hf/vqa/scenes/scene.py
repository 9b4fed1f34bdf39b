"""Counting scenes: objects on a grid, and their images; objects are removed by drawing the scene without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.vqa.scenes.sprites import Sprites

TEXTURE_CELLS = 4  # cells of the background texture along a side
GRAIN = 0.03  # standard deviation of the pixel noise of the background
BACKGROUND_STREAM = 1  # separates the random numbers of backgrounds from those of scenes


class SceneObject(NamedTuple):
    """Object in a scene.

    Attributes:
        kind: Index of its kind.
        color: Index of its color.
        exemplar: Index of the image of its kind.
        cell: Cell of the grid, counted row by row.
        shift: Pixels to the right and down from the corner of the cell.
    """

    kind: int
    color: int
    exemplar: int
    cell: int
    shift: tuple[int, int]


class Scene(NamedTuple):
    """Objects on a background.

    Attributes:
        number: Number of the scene; with the seed it determines the background.
        objects: Objects, each in its own cell.
    """

    number: int
    objects: tuple[SceneObject, ...]

    def count(self, kind: int) -> int:
        """Return the number of objects of a kind."""
        return sum(item.kind == kind for item in self.objects)

    def without(self, positions: Collection[int]) -> Scene:
        """Return the scene without the objects at the given positions of `objects`."""
        removed = set(positions)
        return self._replace(objects=tuple(item for i, item in enumerate(self.objects) if i not in removed))


@dataclass(frozen=True)
class SceneLayout:
    """Size of scenes.

    Attributes:
        size: Height and width of the image in pixels.
        grid: Cells along a side; a cell holds one object.
        seed: Seed of the backgrounds.

    Raises:
        DataError: The grid is below 2 or does not divide the size.
    """

    size: int
    grid: int
    seed: int

    def __post_init__(self) -> None:
        if self.grid < 2 or self.size % self.grid:
            raise DataError(
                f"scene_size={self.size} and scene_grid={self.grid}: the grid must be at least 2 and divide the size"
            )

    @property
    def cell_size(self) -> int:
        """Height and width of a cell in pixels."""
        return self.size // self.grid

    @property
    def object_size(self) -> int:
        """Height and width of an object in pixels, which leaves a margin in its cell."""
        return self.cell_size - 2

    @property
    def shifts(self) -> int:
        """Number of possible shifts of an object in its cell, along each axis."""
        return self.cell_size - self.object_size + 1


def render(scenes: Sequence[Scene], sprites: Sprites, layout: SceneLayout) -> NDArray[np.uint8]:
    """Draw a scene and its edits on the same background.

    If two of the scenes differ in one object, their images differ only in the cell of that object.

    Args:
        scenes: One or more scenes with the same number.
        sprites: Images of objects of `layout.object_size` pixels.
        layout: Size of the image.

    Returns:
        `[len(scenes), size, size, 3]` uint8.

    Example:
        >>> from dair_hf.vqa.scenes.sprites import shape_sprites
        >>> layout = SceneLayout(size=48, grid=3, seed=0)
        >>> scene = Scene(7, (SceneObject(0, 1, 0, 4, (1, 1)),))
        >>> images = render([scene, scene.without([0])], shape_sprites(layout.object_size), layout)
        >>> images.shape, int((images[0] != images[1]).any(-1).sum()) <= 16 * 16
        ((2, 48, 48, 3), True)
    """
    empty = background(scenes[0].number, layout)
    return np.stack([_drawn(scene, empty, sprites, layout) for scene in scenes])


def _drawn(scene: Scene, empty: NDArray[np.float32], sprites: Sprites, layout: SceneLayout) -> NDArray[np.uint8]:
    canvas = empty.copy()
    for item in scene.objects:
        image = sprites.image(item.kind, item.color, item.exemplar)
        row, column = divmod(item.cell, layout.grid)
        top = row * layout.cell_size + item.shift[1]
        left = column * layout.cell_size + item.shift[0]
        window = canvas[top : top + len(image), left : left + len(image)]
        window += image[..., 3:] * (image[..., :3] - window)
    return (canvas * 255 + 0.5).astype(np.uint8)


def background(number: int, layout: SceneLayout) -> NDArray[np.float32]:
    """Return the background of a scene, a soft texture of pale colors: `[size, size, 3]` float32 in 0..1."""
    # Independent of the random numbers of the scene, or the texture would reveal its objects.
    rng = np.random.default_rng([BACKGROUND_STREAM, layout.seed, number])
    coarse = 0.5 + 0.25 * rng.random((TEXTURE_CELLS + 1, TEXTURE_CELLS + 1, 3), dtype=np.float32)
    position = np.linspace(0, TEXTURE_CELLS, layout.size, endpoint=False, dtype=np.float32)
    low = position.astype(np.intp)
    fraction = np.modf(position)[0][:, None]
    rows = coarse[low] * (1 - fraction[..., None]) + coarse[low + 1] * fraction[..., None]
    smooth = rows[:, low] * (1 - fraction) + rows[:, low + 1] * fraction
    grain = rng.standard_normal((layout.size, layout.size, 1), dtype=np.float32) * GRAIN
    return np.clip(smooth + grain, 0.0, 1.0)
