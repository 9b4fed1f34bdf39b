"""Pictures of scenes: composed as by hand, read back by looking, and changed in one cell where one thing is removed."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.vqa.scenes.scene import Scene, Stage, Thing, background, render, require_stage
from dair_hf.vqa.scenes.sprites import COLOURS, SHAPES, Sprites, object_sprites, shape_sprites
from tests.fixtures.counting_scenes import cells_of, shapes_in

STAGE = Stage(size=64, grid=4, seed=3)
SPRITES = shape_sprites(STAGE.thing_size)


def noise_sprites() -> Sprites:
    """Opaque squares: every pixel of a thing shows."""
    images = np.random.default_rng(0).integers(0, 256, (10, 14, 14, 3), dtype=np.uint8)
    return object_sprites(images, np.arange(10), 14)


def random_scene(number: int, sprites: Sprites, stage: Stage = STAGE) -> Scene:
    """Things in any number of cells, as far from the cells' corners as may be."""
    draws = np.random.default_rng(number)
    cells = draws.permutation(stage.grid**2)[: draws.integers(1, stage.grid**2 + 1)]
    return Scene(
        number,
        tuple(
            Thing(
                int(draws.integers(len(sprites.kinds))),
                int(draws.integers(max(len(sprites.colours), 1))),
                int(draws.integers(10)),
                int(cell),
                (int(draws.integers(3)), int(draws.integers(3))),
            )
            for cell in cells
        ),
    )


# --- what is drawn --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [STAGE, Stage(96, 4, 0), Stage(120, 5, 1)])
def test_what_stands_in_a_scene_can_be_seen(stage: Stage) -> None:
    sprites = shape_sprites(stage.thing_size)
    for number in range(12):
        scene = random_scene(number, sprites, stage)
        picture = render([scene], sprites, stage)
        assert (picture.shape, picture.dtype) == ((1, stage.size, stage.size, 3), np.uint8)
        assert shapes_in(picture[0], stage.grid) == {
            thing.cell: (SHAPES[thing.kind], list(COLOURS)[thing.colour]) for thing in scene.things
        }


def test_a_thing_is_laid_over_the_background_by_its_opacity() -> None:
    pictures = np.random.default_rng(1).random((1, 14, 14, 4), dtype=np.float32)
    sprites = Sprites(("thing",), ("things",), (), (pictures,))
    thing = Thing(kind=0, colour=0, exemplar=0, cell=6, shift=(2, 1))
    expected = background(5, STAGE).astype(np.float64)
    colour, opacity = pictures[0, :, :, :3].astype(np.float64), pictures[0, :, :, 3:].astype(np.float64)
    rows, columns = slice(16 + 1, 16 + 1 + 14), slice(32 + 2, 32 + 2 + 14)  # second row of cells, third column
    expected[rows, columns] = (1 - opacity) * expected[rows, columns] + opacity * colour
    drawn = render([Scene(5, (thing,))], sprites, STAGE)[0]
    assert abs(drawn - expected * 255).max() <= 0.5 + 1e-3, "rounded to the nearest"


def test_scenes_drawn_together_are_those_drawn_alone() -> None:
    scene = random_scene(4, SPRITES)
    edits = [scene, scene.without([0]), scene.without(range(len(scene.things)))]
    together = render(edits, SPRITES, STAGE)
    alone = [render([edit], SPRITES, STAGE)[0] for edit in edits]
    assert (together == np.stack(alone)).all()
    assert (render(edits, SPRITES, STAGE) == together).all(), "drawing leaves nothing behind"


# --- what is removed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sprites", [SPRITES, noise_sprites()], ids=["shapes", "noise"])
def test_removal_changes_the_cell_of_the_thing_and_no_other(sprites: Sprites) -> None:
    for number in range(10):
        scene = random_scene(number, sprites)
        whole, *edited = render(
            [scene, *(scene.without([place]) for place in range(len(scene.things)))], sprites, STAGE
        )
        for thing, picture in zip(scene.things, edited, strict=True):
            changed = [
                int((one != other).any(-1).sum())
                for one, other in zip(cells_of(whole, 4), cells_of(picture, 4), strict=True)
            ]
            assert changed[thing.cell] > 20
            assert sum(changed) == changed[thing.cell]
            if not sprites.colours:
                assert changed[thing.cell] >= 14 * 14 - 2, "an opaque thing hid all behind it"


def test_removal_shows_the_background() -> None:
    scene = random_scene(2, SPRITES)
    empty = render([scene.without(range(len(scene.things)))], SPRITES, STAGE)[0]
    assert (empty == np.floor(background(2, STAGE) * 255 + 0.5)).all()
    assert shapes_in(empty, 4) == {}


def test_without_takes_any_places_once() -> None:
    scene = random_scene(2, SPRITES)
    _, _, *rest = scene.things
    assert rest
    assert scene.without([1, 0, 1]) == Scene(2, tuple(rest))
    assert scene.without([]) == scene
    kinds = [thing.kind for thing in scene.things]
    assert [scene.count(kind) for kind in range(7)] == [kinds.count(kind) for kind in range(7)]


# --- the background -------------------------------------------------------------------------------------------------


def test_each_scene_has_a_background_of_its_own() -> None:
    found = [background(number, Stage(64, 4, seed)) for seed in (0, 1) for number in (1, 2)]
    for place, one in enumerate(found):
        assert (one.shape, one.dtype) == ((64, 64, 3), np.float32)
        assert 0.3 < one.min() and one.max() < 0.95, "things stand out from it"
        assert all(abs(one - other).mean() > 0.02 for other in found[:place])
    assert (background(1, Stage(64, 4, 0)) == found[0]).all()
    assert (background(1, Stage(64, 2, 0)) == found[0]).all(), "the grid leaves no trace"


def test_the_texture_is_soft_and_its_grain_fine() -> None:
    stage = Stage(96, 4, 0)
    pictures = np.stack([background(number, stage) for number in range(8)]).astype(np.float64)
    steps = np.diff(pictures, axis=2)
    # Grain is the same in all channels; between two pixels it differs by sqrt(2) * 0.03, the texture by far less.
    assert abs(steps.std() / (np.sqrt(2) * 0.03) - 1) < 0.05
    texture = np.diff(pictures[..., 0] - pictures[..., 1], axis=2)
    assert abs(texture).max() < 2 * 0.25 * 4 / 96 + 1e-6


# --- the stage ------------------------------------------------------------------------------------------------------


def test_sizes_of_a_stage() -> None:
    assert (STAGE.cell_size, STAGE.thing_size) == (16, 14)
    require_stage(STAGE)


@pytest.mark.parametrize(("size", "grid"), [(64, 5), (64, 1), (64, 0), (64, -4), (63, 4)])
def test_a_grid_that_does_not_divide_is_refused(size: int, grid: int) -> None:
    message = f"size={size} and grid={grid}: the grid, 2 or more, must divide the size"
    with pytest.raises(DataError, match=message):
        require_stage(Stage(size, grid, 0))
