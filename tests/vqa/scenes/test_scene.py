"""Scenes: objects, images, questions, edits, and the strength of correlations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dair_hf.vqa.scenes.scene import (
    COLOR,
    COUNT,
    DIGITS,
    EXISTS,
    OBJECTS,
    SHAPES,
    Correlations,
    Scene,
    SceneLayout,
    SceneObject,
    SceneQuestion,
    Sprites,
    _digit_sprites,
    _object_sprites,
    _shape_sprites,
    background,
    draw_scene,
    edits_of,
    load_sprites,
    render_scenes,
)
from tests.fixtures.counting_scenes import object_color, shapes_in, write_objects

LAYOUT = SceneLayout(size=64, grid=4, seed=3)
SPRITES = _shape_sprites(LAYOUT.object_size)


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
    scene = Scene(2, tuple(SceneObject(kind, kind % 5, 0, 3 * kind, (1, 2)) for kind in range(6)))
    assert len(shapes_in(render_scenes([scene], SPRITES, LAYOUT)[0], 4)) == 6
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


TEN = np.arange(10)


def box_averages(images: NDArray[np.uint8], side: int) -> NDArray[np.float64]:
    """Return means over blocks of side x side pixels, in 0..1."""
    count, height, width, *channels = images.shape
    blocks = images.reshape(count, height // side, side, width // side, side, *channels)
    return blocks.astype(np.float64).mean(axis=(2, 4)) / 255


def test_colored_objects_are_tinted() -> None:
    grey = np.array([[[[0.5, 0.5, 0.5, 0.25]]], [[[1.0, 1.0, 1.0, 1.0]]]], dtype=np.float32)
    sprites = Sprites(("star", "ring"), ("stars", "rings"), ("blue", "red"), (grey[:1], grey))
    assert np.allclose(sprites.image(0, 0, 0), [[[0.075, 0.15, 0.475, 0.25]]], atol=1e-6)  # half of blue
    assert np.allclose(sprites.image(1, 1, 1), [[[0.90, 0.15, 0.15, 1.0]]], atol=1e-6)
    assert (sprites.image(1, 1, 5) == sprites.image(1, 1, 1)).all(), "exemplars are counted modulo the number of images"
    assert (grey[0] == [0.5, 0.5, 0.5, 0.25]).all(), "the image itself is unchanged"


def test_ink_of_digits_is_opaque() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    sprites = _digit_sprites(images, np.concatenate([TEN, TEN[::-1]]), 14)
    assert (sprites.kinds, sprites.plurals[6], len(sprites.colors)) == (DIGITS, "sixes", 5)
    ink = box_averages(images, 2)
    for digit, found in enumerate(sprites.images):
        assert (found.shape, found.dtype) == ((2, 14, 14, 4), np.float32)
        assert (found[..., :3] == 1).all()
        assert abs(found[..., 3] - ink[[digit, 19 - digit]]).max() <= 1.01 / 255  # rounded, along each axis


def test_objects_are_opaque_squares_in_their_own_colors() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    sprites = _object_sprites(images, np.repeat(TEN, 2), 16)
    assert (sprites.kinds, sprites.colors) == (OBJECTS, ())
    averages = box_averages(images, 2)
    for label, found in enumerate(sprites.images):
        assert (found.shape, found.dtype) == ((2, 16, 16, 4), np.float32)
        assert (found[..., 3] == 1).all()
        assert abs(found[..., :3] - averages[2 * label : 2 * label + 2]).max() <= 1.01 / 255


def test_objects_come_from_the_file_of_their_split(tmp_path: Path) -> None:
    write_objects(tmp_path / "cifar10")
    for split in ("train", "test"):
        sprites = load_sprites("objects", tmp_path, split, 14)  # anywhere below the folder
        for label, images in enumerate(sprites.images):
            assert len(images) == 2
            assert np.allclose(images[..., :3] * 255, object_color(label, split), atol=1e-3)


BIASED, FAIR = Correlations(0.9, 0.5), Correlations(0.0, 0.0)
MOST = 4
Drawn = tuple[Scene, SceneQuestion]


def blank_sprites(kinds: tuple[str, ...], colors: tuple[str, ...] = ()) -> Sprites:
    images = np.ones((3, 8, 8, 4), dtype=np.float32)
    return Sprites(kinds, tuple(f"{kind}s" for kind in kinds), colors, (images,) * len(kinds))


DIGIT_SPRITES, OBJECT_SPRITES = blank_sprites(DIGITS, SPRITES.colors), blank_sprites(OBJECTS)


@cache
def drawn(name: str, biased: bool) -> list[Drawn]:
    sprites = {"shapes": SPRITES, "objects": OBJECT_SPRITES}[name]
    correlations = BIASED if biased else FAIR
    return [
        draw_scene(number, np.random.default_rng([11, number]), sprites, LAYOUT, correlations, MOST)
        for number in range(1, 1501)
    ]


def of_type(scenes: Iterable[Drawn], question_type: str) -> list[Drawn]:
    return [(scene, question) for scene, question in scenes if question.question_type == question_type]


def kinds_in(scene: Scene) -> Counter[int]:
    return Counter(item.kind for item in scene.objects)


def assert_share(hits: Iterable[bool], expected: float) -> None:
    """Assert that a share is within four standard errors of its expectation."""
    found = list(hits)
    error = sqrt(expected * (1 - expected) / len(found))
    assert abs(sum(found) / len(found) - expected) <= 4 * error, f"{sum(found)} of {len(found)}, expected {expected}"


def test_questions_in_words() -> None:
    asked = {kind: SceneQuestion(EXISTS, place).text(DIGIT_SPRITES) for place, kind in enumerate(DIGITS)}
    assert asked["zero"] == "Is there a zero?"
    assert asked["one"] == "Is there a one?"
    assert asked["eight"] == "Is there an eight?"
    assert SceneQuestion(EXISTS, 0).text(OBJECT_SPRITES) == "Is there an airplane?"
    assert SceneQuestion(COUNT, SHAPES.index("cross")).text(SPRITES) == "How many crosses are there?"
    assert SceneQuestion(COLOR, 3).text(SPRITES) == "What color is the star?"
    types = {kind: SceneQuestion(kind, 0).answer_type for kind in (COUNT, EXISTS, COLOR)}
    assert types == {"how many": "number", "is there a": "yes/no", "what color is the": "other"}


@pytest.mark.parametrize("name", ["shapes", "objects"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "fair"])
def test_every_scene_is_valid(name: str, biased: bool) -> None:
    scenes = drawn(name, biased)[:500]
    kinds = {"shapes": 6, "objects": 10}[name]
    colors, images = (1 if name == "objects" else 5), (1 if name == "shapes" else 3)
    for number, (scene, question) in enumerate(scenes, start=1):
        assert scene.number == number
        cells = [item.cell for item in scene.objects]
        assert len(set(cells)) == len(cells) and set(cells) <= set(range(16))
        for item in scene.objects:
            assert 0 <= item.kind < kinds and 0 <= item.color < colors and 0 <= item.exemplar < images
            assert set(item.shift) <= {0, 1, 2}
        counts = kinds_in(scene)
        asked, other = counts.pop(question.kind, 0), counts.pop(question.kind ^ 1, 0)
        most = MOST if question.question_type == COUNT else 1
        assert asked <= most and other <= most
        assert len(counts) <= 2 and set(counts.values()) <= {1, 2}
        if question.question_type == COLOR:
            assert name != "objects" and (asked, other) == (1, 1)


@pytest.mark.parametrize("name", ["shapes", "objects"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "fair"])
def test_questions_are_drawn_uniformly(name: str, biased: bool) -> None:
    scenes = drawn(name, biased)
    kinds = {"shapes": 6, "objects": 10}[name]
    shares = (
        {COUNT: 2 / 3, EXISTS: 1 / 3, COLOR: 0} if name == "objects" else {COUNT: 1 / 2, EXISTS: 1 / 4, COLOR: 1 / 4}
    )
    for question_type, share in shares.items():
        assert_share((question.question_type == question_type for _, question in scenes), share)
    for kind in range(kinds):
        assert_share((question.kind == kind for _, question in scenes), 1 / kinds)


def usual(kind: int, question_type: str) -> int:
    """Return the usual count, presence or color of a kind."""
    return {COUNT: kind % 4 + 1, EXISTS: 1 - kind % 2, COLOR: kind % 5}[question_type]


def answer_about(scene: Scene, kind: int, question_type: str) -> int:
    """Return the answer to a question about a kind."""
    if question_type == COLOR:
        return next(item.color for item in scene.objects if item.kind == kind)
    return kinds_in(scene)[kind]


@pytest.mark.parametrize("name", ["shapes", "objects"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "fair"])
def test_strength_of_correlations(name: str, biased: bool) -> None:
    together, prior = (0.9, 0.5) if biased else (0.0, 0.0)
    for question_type, answers in ((COUNT, 5), (EXISTS, 2), (COLOR, 5)):
        scenes = of_type(drawn(name, biased), question_type)
        if name == "objects" and question_type == COLOR:
            assert not scenes
            continue
        same, expected = [], []
        for scene, question in scenes:
            asked = answer_about(scene, question.kind, question_type)
            same.append(asked == answer_about(scene, question.kind ^ 1, question_type))
            expected.append(asked == usual(question.kind, question_type))
        # An independent answer is also equal by chance.
        p, q = together + (1 - together) / answers, prior + (1 - prior) / answers
        assert_share(same, p)
        assert_share(expected, q)
        assert_share((a and b for a, b in zip(same, expected, strict=True)), p * q)


@pytest.mark.parametrize(
    "trait",
    [
        lambda scene, kind: len([k for k in kinds_in(scene) if k not in (kind, kind ^ 1)]),
        lambda scene, kind: sum(n for k, n in kinds_in(scene).items() if k not in (kind, kind ^ 1)),
        lambda scene, kind: np.mean([item.cell for item in scene.objects]) if scene.objects else 7.5,
        lambda scene, kind: np.mean([item.shift for item in scene.objects]) if scene.objects else 1.0,
        lambda scene, kind: np.mean([item.color for item in scene.objects]) if scene.objects else 2.0,
    ],
    ids=["kinds of bystanders", "bystanders", "cells", "shifts", "colors"],
)
def test_no_other_trait_correlates_with_the_answer(trait: Callable[[Scene, int], float]) -> None:
    """The correlation is within four standard errors of zero, in the training splits and the others."""
    for biased in (True, False):
        for question_type in (COUNT, EXISTS):
            scenes = of_type(drawn("shapes", biased), question_type)
            answers = [float(scene.count(question.kind)) for scene, question in scenes]
            traits = [float(trait(scene, question.kind)) for scene, question in scenes]
            assert abs(np.corrcoef(answers, traits)[0, 1]) < 4 / sqrt(len(scenes))


def test_cells_shifts_and_colors_are_uniform() -> None:
    objects = [item for scene, question in drawn("shapes", False) for item in scene.objects]
    for cell in range(16):
        assert_share((item.cell == cell for item in objects), 1 / 16)
    for shift in range(3):
        assert_share((item.shift[0] == shift for item in objects), 1 / 3)
        assert_share((item.shift == (shift, shift) for item in objects), 1 / 9)
    for color in range(5):
        assert_share((item.color == color for item in objects), 1 / 5)


def test_no_edit_if_nothing_can_be_removed() -> None:
    alone = Scene(0, (SceneObject(2, 0, 0, 0, (0, 0)), SceneObject(2, 1, 0, 1, (0, 0))))
    assert edits_of(alone, SceneQuestion(COUNT, 2), "iv") == []
    assert edits_of(alone, SceneQuestion(COUNT, 3), "cv") == []
    assert edits_of(alone, SceneQuestion(EXISTS, 3), "cv") == []
    assert edits_of(alone, SceneQuestion(EXISTS, 2), "cv") == [], "one object is left, so the answer stays yes"
    assert edits_of(alone.without([0]), SceneQuestion(COLOR, 2), "cv") == [], "no object would have the color"
    assert len(edits_of(alone, SceneQuestion(COUNT, 2), "cv")) == 2
    assert len(edits_of(alone, SceneQuestion(EXISTS, 3), "iv")) == 1
