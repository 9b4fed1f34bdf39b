"""Counting scenes: what stands where, and the picture of it; a thing is removed by drawing the scene without it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.vqa.scenes.sprites import Sprites

COARSE = 4  # cells of the background's texture along a side
GRAIN = 0.03  # standard deviation of its pixel noise
BACKGROUND = 1  # what its draws are for


class Thing(NamedTuple):
    """One thing of a scene.

    Attributes:
        kind: Number of its kind.
        colour: Number of its colour.
        exemplar: Which picture of its kind.
        cell: The cell of the grid that it stands in, row by row.
        shift: Pixels to the right and down from the cell's corner.
    """

    kind: int
    colour: int
    exemplar: int
    cell: int
    shift: tuple[int, int]


class Scene(NamedTuple):
    """Things on a background.

    Attributes:
        number: Number of the scene; with the seed it draws the background.
        things: What stands there, each in a cell of its own.
    """

    number: int
    things: tuple[Thing, ...]

    def count(self, kind: int) -> int:
        """How many things of a kind there are."""
        return sum(thing.kind == kind for thing in self.things)

    def without(self, places: Collection[int]) -> Scene:
        """The same scene without the things at these places of `things`."""
        gone = set(places)
        return self._replace(things=tuple(thing for place, thing in enumerate(self.things) if place not in gone))


class Stage(NamedTuple):
    """How large scenes are.

    Attributes:
        size: Pixels of a side of the picture.
        grid: Cells along a side; a cell holds one thing.
        seed: Seed of the backgrounds.
    """

    size: int
    grid: int
    seed: int

    @property
    def cell_size(self) -> int:
        """Pixels of a side of a cell."""
        return self.size // self.grid

    @property
    def thing_size(self) -> int:
        """Pixels of a side of a thing: it leaves room in its cell to stand in different places."""
        return self.cell_size - 2


def require_stage(stage: Stage) -> None:
    """Refuse a picture that its grid does not divide.

    Raises:
        DataError: As said.
    """
    if stage.grid < 2 or stage.size % stage.grid:
        raise DataError(f"size={stage.size} and grid={stage.grid}: the grid, 2 or more, must divide the size")


def render(scenes: Sequence[Scene], sprites: Sprites, stage: Stage) -> NDArray[np.uint8]:
    """Draw scenes of one number: a scene and what edits have left of it, on the same background.

    Two of them that differ in one thing differ in the pixels of that thing's cell and nowhere else.

    Args:
        scenes: What to draw, one or more.
        sprites: What things look like, of `stage.thing_size` pixels.
        stage: Size of the picture.

    Returns:
        `[len(scenes), size, size, 3]` uint8.

    Example:
        >>> from dair_hf.vqa.scenes.sprites import shape_sprites
        >>> stage = Stage(size=48, grid=3, seed=0)
        >>> scene = Scene(7, (Thing(0, 1, 0, 4, (1, 1)),))
        >>> pictures = render([scene, scene.without([0])], shape_sprites(stage.thing_size), stage)
        >>> pictures.shape, int((pictures[0] != pictures[1]).any(-1).sum()) <= 16 * 16
        ((2, 48, 48, 3), True)
    """
    empty = background(scenes[0].number, stage)
    return np.stack([_drawn(scene, empty, sprites, stage) for scene in scenes])


def _drawn(scene: Scene, empty: NDArray[np.float32], sprites: Sprites, stage: Stage) -> NDArray[np.uint8]:
    canvas = empty.copy()
    for thing in scene.things:
        picture = sprites.picture(thing.kind, thing.colour, thing.exemplar)
        row, column = divmod(thing.cell, stage.grid)
        top = row * stage.cell_size + thing.shift[1]
        left = column * stage.cell_size + thing.shift[0]
        window = canvas[top : top + len(picture), left : left + len(picture)]
        window += picture[..., 3:] * (picture[..., :3] - window)
    return (canvas * 255 + 0.5).astype(np.uint8)


def background(number: int, stage: Stage) -> NDArray[np.float32]:
    """A soft texture of pale colours, another for each scene: `[size, size, 3]` float32 in 0..1."""
    # Other random numbers than those that the scene is drawn with, or the texture would tell what stands on it.
    draws = np.random.default_rng([BACKGROUND, stage.seed, number])
    coarse = 0.5 + 0.25 * draws.random((COARSE + 1, COARSE + 1, 3), dtype=np.float32)
    place = np.linspace(0, COARSE, stage.size, endpoint=False, dtype=np.float32)
    low = place.astype(np.intp)
    part = np.modf(place)[0][:, None]
    rows = coarse[low] * (1 - part[..., None]) + coarse[low + 1] * part[..., None]
    smooth = rows[:, low] * (1 - part) + rows[:, low + 1] * part
    grain = draws.standard_normal((stage.size, stage.size, 1), dtype=np.float32) * GRAIN
    return np.clip(smooth + grain, 0.0, 1.0)
