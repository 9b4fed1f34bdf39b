"""Images of scenes: composition, recognition of the objects, and removals, which change a single cell."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.vqa.scenes import scene as drawing
from dair_hf.vqa.scenes.scene import COLORS, Scene, SceneObject, background, render_scenes
from tests.fixtures.counting_scenes import shapes_in


def random_scene(number: int) -> Scene:
    """Draw objects in any number of cells, with any shift."""
    draws = np.random.default_rng(number)
    cells = draws.permutation(16)[: draws.integers(1, 17)]
    shifts = draws.integers(3, size=(16, 2)).tolist()
    kinds, colors = draws.integers(6, size=16).tolist(), draws.integers(5, size=16).tolist()
    return Scene(number, tuple(SceneObject(kinds[c], colors[c], c, tuple(shifts[c])) for c in cells.tolist()))


def test_objects_are_blended_by_their_opacity(monkeypatch: pytest.MonkeyPatch) -> None:
    opacity = np.random.default_rng(1).random((14, 14, 1), dtype=np.float32)
    monkeypatch.setattr(drawing, "_opacity", lambda kind: opacity)
    item = SceneObject(kind=0, color=2, cell=6, shift=(2, 1))
    expected = background(5).astype(np.float64)
    rows, columns = slice(16 + 1, 16 + 1 + 14), slice(32 + 2, 32 + 2 + 14)  # second row of cells, third column
    expected[rows, columns] = (1 - opacity) * expected[rows, columns] + opacity * np.array(COLORS["blue"])
    drawn = render_scenes([Scene(5, (item,))])[0]
    assert abs(drawn - expected * 255).max() <= 0.5 + 1e-3, "rounded to the nearest"


def test_removal_shows_the_background() -> None:
    scene = random_scene(2)
    empty = render_scenes([scene.without(range(len(scene.objects)))])[0]
    assert (empty == np.floor(background(2) * 255 + 0.5)).all()
    assert shapes_in(empty, 4) == {}


def test_each_scene_has_a_background_of_its_own() -> None:
    found = [background(number) for number in (1, 2, 3, 4)]
    for place, one in enumerate(found):
        assert (one.shape, one.dtype) == ((64, 64, 3), np.float32)
        assert 0.3 < one.min() and one.max() < 0.95, "objects stand out"
        assert all(abs(one - other).mean() > 0.02 for other in found[:place])
    assert (background(1) == found[0]).all()
