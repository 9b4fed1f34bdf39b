"""Images of scenes: composition, recognition of the objects, and removals, which change a single cell."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.vqa.scenes.scene import (
    COLORS,
    SHAPES,
    Scene,
    SceneLayout,
    SceneObject,
    Sprites,
    _object_sprites,
    _shape_sprites,
    background,
    render_scenes,
)
from tests.fixtures.counting_scenes import cells_of, shapes_in

LAYOUT = SceneLayout(size=64, grid=4, seed=3)
SPRITES = _shape_sprites(LAYOUT.object_size)


def noise_sprites() -> Sprites:
    """Return opaque squares, so that every pixel of an object is visible."""
    images = np.random.default_rng(0).integers(0, 256, (10, 14, 14, 3), dtype=np.uint8)
    return _object_sprites(images, np.arange(10), 14)


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


# --- drawing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [LAYOUT, SceneLayout(96, 4, 0), SceneLayout(120, 5, 1)])
def test_objects_of_a_scene_are_visible(layout: SceneLayout) -> None:
    sprites = _shape_sprites(layout.object_size)
    for number in range(12):
        scene = random_scene(number, sprites, layout)
        image = render_scenes([scene], sprites, layout)
        assert (image.shape, image.dtype) == ((1, layout.size, layout.size, 3), np.uint8)
        assert shapes_in(image[0], layout.grid) == {
            item.cell: (SHAPES[item.kind], list(COLORS)[item.color]) for item in scene.objects
        }


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


def test_scenes_drawn_together_are_those_drawn_alone() -> None:
    scene = random_scene(4, SPRITES)
    edits = [scene, scene.without([0]), scene.without(range(len(scene.objects)))]
    together = render_scenes(edits, SPRITES, LAYOUT)
    alone = [render_scenes([edit], SPRITES, LAYOUT)[0] for edit in edits]
    assert (together == np.stack(alone)).all()
    assert (render_scenes(edits, SPRITES, LAYOUT) == together).all(), "drawing has no side effect"


# --- removal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sprites", [SPRITES, noise_sprites()], ids=["shapes", "noise"])
def test_removal_changes_only_the_cell_of_the_object(sprites: Sprites) -> None:
    for number in range(10):
        scene = random_scene(number, sprites)
        whole, *edited = render_scenes(
            [scene, *(scene.without([place]) for place in range(len(scene.objects)))], sprites, LAYOUT
        )
        for item, image in zip(scene.objects, edited, strict=True):
            changed = [
                int((one != other).any(-1).sum())
                for one, other in zip(cells_of(whole, 4), cells_of(image, 4), strict=True)
            ]
            assert changed[item.cell] > 20
            assert sum(changed) == changed[item.cell]
            if not sprites.colors:
                assert changed[item.cell] >= 14 * 14 - 2, "an opaque object hides all of its background"


def test_removal_shows_the_background() -> None:
    scene = random_scene(2, SPRITES)
    empty = render_scenes([scene.without(range(len(scene.objects)))], SPRITES, LAYOUT)[0]
    assert (empty == np.floor(background(2, LAYOUT) * 255 + 0.5)).all()
    assert shapes_in(empty, 4) == {}


def test_without_takes_positions_in_any_order() -> None:
    scene = random_scene(2, SPRITES)
    _, _, *rest = scene.objects
    assert rest
    assert scene.without([1, 0, 1]) == Scene(2, tuple(rest))
    assert scene.without([]) == scene
    kinds = [item.kind for item in scene.objects]
    assert [scene.count(kind) for kind in range(7)] == [kinds.count(kind) for kind in range(7)]


# --- the background ---------------------------------------------------------------------------------------------------


def test_each_scene_has_a_background_of_its_own() -> None:
    found = [background(number, SceneLayout(64, 4, seed)) for seed in (0, 1) for number in (1, 2)]
    for place, one in enumerate(found):
        assert (one.shape, one.dtype) == ((64, 64, 3), np.float32)
        assert 0.3 < one.min() and one.max() < 0.95, "objects stand out"
        assert all(abs(one - other).mean() > 0.02 for other in found[:place])
    assert (background(1, SceneLayout(64, 4, 0)) == found[0]).all()
    assert (background(1, SceneLayout(64, 2, 0)) == found[0]).all(), "independent of the grid"


def test_the_texture_is_soft_and_its_grain_fine() -> None:
    layout = SceneLayout(96, 4, 0)
    images = np.stack([background(number, layout) for number in range(8)]).astype(np.float64)
    steps = np.diff(images, axis=2)
    # The grain is equal in all channels and differs between pixels by sqrt(2) * 0.03, the texture by far less.
    assert abs(steps.std() / (np.sqrt(2) * 0.03) - 1) < 0.05
    texture = np.diff(images[..., 0] - images[..., 1], axis=2)
    assert abs(texture).max() < 2 * 0.25 * 4 / 96 + 1e-6
