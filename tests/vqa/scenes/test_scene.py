"""Scenes: objects, images, questions, edits, and the strength of correlations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from math import sqrt

import numpy as np
import pytest

from dair_hf.vqa.scenes import scene as drawing
from dair_hf.vqa.scenes.files import BIASED, FAIR
from dair_hf.vqa.scenes.scene import (
    COLOR,
    COLORS,
    COUNT,
    EXISTS,
    MOST,
    SHAPES,
    Scene,
    SceneObject,
    SceneQuestion,
    background,
    draw_scene,
    edits_of,
    render_scenes,
)
from tests.fixtures.counting_scenes import shapes_in


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
    scene = Scene(2, tuple(SceneObject(kind, kind % 5, 3 * kind, (1, 2)) for kind in range(6)))
    assert len(shapes_in(render_scenes([scene])[0], 4)) == 6
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


Drawn = tuple[Scene, SceneQuestion]


@cache
def drawn(biased: bool) -> list[Drawn]:
    correlations = BIASED if biased else FAIR
    return [draw_scene(number, np.random.default_rng([11, number]), correlations) for number in range(1, 1501)]


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
    assert SceneQuestion(EXISTS, 0).text == "Is there a circle?"
    assert SceneQuestion(COUNT, SHAPES.index("ring")).text == "How many rings are there?"
    assert SceneQuestion(COUNT, SHAPES.index("cross")).text == "How many crosses are there?"
    assert SceneQuestion(COLOR, 3).text == "What color is the star?"
    types = {kind: SceneQuestion(kind, 0).answer_type for kind in (COUNT, EXISTS, COLOR)}
    assert types == {"how many": "number", "is there a": "yes/no", "what color is the": "other"}


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "fair"])
def test_every_scene_is_valid(biased: bool) -> None:
    scenes = drawn(biased)[:500]
    for number, (scene, question) in enumerate(scenes, start=1):
        assert scene.number == number
        cells = [item.cell for item in scene.objects]
        assert len(set(cells)) == len(cells) and set(cells) <= set(range(16))
        for item in scene.objects:
            assert 0 <= item.kind < 6 and 0 <= item.color < 5
            assert set(item.shift) <= {0, 1, 2}
        counts = kinds_in(scene)
        asked, other = counts.pop(question.kind, 0), counts.pop(question.kind ^ 1, 0)
        most = MOST if question.question_type == COUNT else 1
        assert asked <= most and other <= most
        assert len(counts) <= 2 and set(counts.values()) <= {1, 2}
        if question.question_type == COLOR:
            assert (asked, other) == (1, 1)


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "fair"])
def test_questions_are_drawn_uniformly(biased: bool) -> None:
    scenes = drawn(biased)
    for question_type, share in {COUNT: 1 / 2, EXISTS: 1 / 4, COLOR: 1 / 4}.items():
        assert_share((question.question_type == question_type for _, question in scenes), share)
    for kind in range(6):
        assert_share((question.kind == kind for _, question in scenes), 1 / 6)


def usual(kind: int, question_type: str) -> int:
    """Return the usual count, presence or color of a kind."""
    return {COUNT: kind % 4 + 1, EXISTS: 1 - kind % 2, COLOR: kind % 5}[question_type]


def answer_about(scene: Scene, kind: int, question_type: str) -> int:
    """Return the answer to a question about a kind."""
    if question_type == COLOR:
        return next(item.color for item in scene.objects if item.kind == kind)
    return kinds_in(scene)[kind]


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "fair"])
def test_strength_of_correlations(biased: bool) -> None:
    together, prior = (0.9, 0.5) if biased else (0.0, 0.0)
    for question_type, answers in ((COUNT, 5), (EXISTS, 2), (COLOR, 5)):
        scenes = of_type(drawn(biased), question_type)
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
            scenes = of_type(drawn(biased), question_type)
            answers = [float(scene.count(question.kind)) for scene, question in scenes]
            traits = [float(trait(scene, question.kind)) for scene, question in scenes]
            assert abs(np.corrcoef(answers, traits)[0, 1]) < 4 / sqrt(len(scenes))


def test_cells_shifts_and_colors_are_uniform() -> None:
    objects = [item for scene, question in drawn(False) for item in scene.objects]
    for cell in range(16):
        assert_share((item.cell == cell for item in objects), 1 / 16)
    for shift in range(3):
        assert_share((item.shift[0] == shift for item in objects), 1 / 3)
        assert_share((item.shift == (shift, shift) for item in objects), 1 / 9)
    for color in range(5):
        assert_share((item.color == color for item in objects), 1 / 5)


def test_no_edit_if_nothing_can_be_removed() -> None:
    alone = Scene(0, (SceneObject(2, 0, 0, (0, 0)), SceneObject(2, 1, 1, (0, 0))))
    assert edits_of(alone, SceneQuestion(COUNT, 2), "iv") == []
    assert edits_of(alone, SceneQuestion(COUNT, 3), "cv") == []
    assert edits_of(alone, SceneQuestion(EXISTS, 3), "cv") == []
    assert edits_of(alone, SceneQuestion(EXISTS, 2), "cv") == [], "one object is left, so the answer stays yes"
    assert edits_of(alone.without([0]), SceneQuestion(COLOR, 2), "cv") == [], "no object would have the color"
    assert len(edits_of(alone, SceneQuestion(COUNT, 2), "cv")) == 2
    assert len(edits_of(alone, SceneQuestion(EXISTS, 3), "iv")) == 1
