"""Images of scenes: composition, recognition of the objects, and removals, which change a single cell."""

from __future__ import annotations

import numpy as np

from dair_hf.vqa.scenes.scene import Scene, SceneLayout, SceneObject, Sprites, _shape_sprites, background, render_scenes
from tests.fixtures.counting_scenes import shapes_in

LAYOUT = SceneLayout(size=64, grid=4, seed=3)
SPRITES = _shape_sprites(LAYOUT.object_size)


def random_scene(number: int, sprites: Sprites, layout: SceneLayout = LAYOUT) -> Scene:
    """Draw objects in any number of cells, with any shift."""
    draws = np.random.default_rng(number)
    cells = draws.permutation(layout.grid**2)[: draws.integers(1, layout.grid**2 + 1)]
    return Scene(
        number,
        tuple(
            SceneObject(
                int(draws.integers(len(sprites.kinds))),
                int(draws.integers(max(len(sprites.colors), 1))),
                int(draws.integers(10)),
                int(cell),
                (int(draws.integers(3)), int(draws.integers(3))),
            )
            for cell in cells
        ),
    )


def test_objects_are_blended_by_their_opacity() -> None:
    images = np.random.default_rng(1).random((1, 14, 14, 4), dtype=np.float32)
    sprites = Sprites(("item",), ("objects",), (), (images,))
    item = SceneObject(kind=0, color=0, exemplar=0, cell=6, shift=(2, 1))
    expected = background(5, LAYOUT).astype(np.float64)
    color, opacity = images[0, :, :, :3].astype(np.float64), images[0, :, :, 3:].astype(np.float64)
    rows, columns = slice(16 + 1, 16 + 1 + 14), slice(32 + 2, 32 + 2 + 14)  # second row of cells, third column
    expected[rows, columns] = (1 - opacity) * expected[rows, columns] + opacity * color
    drawn = render_scenes([Scene(5, (item,))], sprites, LAYOUT)[0]
    assert abs(drawn - expected * 255).max() <= 0.5 + 1e-3, "rounded to the nearest"


def test_removal_shows_the_background() -> None:
    scene = random_scene(2, SPRITES)
    empty = render_scenes([scene.without(range(len(scene.objects)))], SPRITES, LAYOUT)[0]
    assert (empty == np.floor(background(2, LAYOUT) * 255 + 0.5)).all()
    assert shapes_in(empty, 4) == {}


def test_each_scene_has_a_background_of_its_own() -> None:
    found = [background(number, SceneLayout(64, 4, seed)) for seed in (0, 1) for number in (1, 2)]
    for place, one in enumerate(found):
        assert (one.shape, one.dtype) == ((64, 64, 3), np.float32)
        assert 0.3 < one.min() and one.max() < 0.95, "objects stand out"
        assert all(abs(one - other).mean() > 0.02 for other in found[:place])
    assert (background(1, SceneLayout(64, 4, 0)) == found[0]).all()
    assert (background(1, SceneLayout(64, 2, 0)) == found[0]).all(), "independent of the grid"
