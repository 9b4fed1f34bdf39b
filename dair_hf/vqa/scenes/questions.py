"""Questions about counting scenes: drawn with spurious correlations of given strength, answered, and edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dair_hf.errors import DataError
from dair_hf.vqa.scenes.scene import Scene, SceneLayout, SceneObject
from dair_hf.vqa.scenes.sprites import Sprites

COUNT, EXISTS, COLOR = "how many", "is there a", "what color is the"
ANSWER_TYPES = {COUNT: "number", EXISTS: "yes/no", COLOR: "other"}
EDITS = ("cv", "iv")
MAX_BYSTANDERS = 2  # kinds in a scene beside the queried kind and its companion


@dataclass(frozen=True)
class Correlations:
    """Strength of the spurious correlations between a scene and the answer."""

    co_occurrence: float
    language_prior: float

    def __post_init__(self) -> None:
        for name in ("co_occurrence", "language_prior"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise DataError(f"{name}={getattr(self, name)} must lie in [0, 1]; 0 means independent")


class SceneQuestion(NamedTuple):
    """Question about a scene."""

    question_type: str
    kind: int

    @property
    def answer_type(self) -> str:
        """Answer type, as in VQA v2."""
        return ANSWER_TYPES[self.question_type]

    def text(self, sprites: Sprites) -> str:
        """Return the text of the question."""
        singular, plural = sprites.kinds[self.kind], sprites.plurals[self.kind]
        if self.question_type == COUNT:
            return f"How many {plural} are there?"
        if self.question_type == EXISTS:
            # By pronunciation: "a one", but "an eight".
            return f"Is there {'an' if singular[0] in 'aeiou' and singular != 'one' else 'a'} {singular}?"
        return f"What color is the {singular}?"

    def answer(self, scene: Scene, sprites: Sprites) -> str:
        """Return the answer for a scene."""
        count = scene.count(self.kind)
        if self.question_type == COUNT:
            return str(count)
        if self.question_type == EXISTS:
            return "yes" if count else "no"
        if count != 1:
            raise DataError(f"scene {scene.number} has {count} objects of kind {self.kind}, so no single color")
        return next(sprites.colors[item.color] for item in scene.objects if item.kind == self.kind)


class SceneEdit(NamedTuple):
    """Scene after a removal."""

    removed: int
    scene: Scene


def companion(kind: int) -> int:
    """Return the kind that is correlated with a kind; kinds form pairs."""
    return kind ^ 1


def draw_scene(
    number: int,
    rng: np.random.Generator,
    sprites: Sprites,
    layout: SceneLayout,
    correlations: Correlations,
    max_count: int,
) -> tuple[Scene, SceneQuestion]:
    """Draw a scene and a question about it.

    The queried kind and the type of the question are drawn uniformly (colors only if objects have them). The usual
    count of a kind is 1 + kind mod `max_count`, its usual color kind mod number of colors, and kinds of even index are
    usually present.
    """
    kinds = len(sprites.kinds)
    types = (COUNT, COUNT, EXISTS, COLOR) if sprites.colors else (COUNT, COUNT, EXISTS)
    question = SceneQuestion(types[rng.integers(len(types))], int(rng.integers(kinds)))
    kind, other = question.kind, companion(question.kind)
    is_usual, is_equal = rng.random() < correlations.language_prior, rng.random() < correlations.co_occurrence
    counts = dict.fromkeys((kind, other), 1)
    color, other_color = _draw_color(rng, sprites), _draw_color(rng, sprites)
    if question.question_type == COUNT:
        counts[kind] = 1 + kind % max_count if is_usual else int(rng.integers(max_count + 1))
        counts[other] = counts[kind] if is_equal else int(rng.integers(max_count + 1))
    elif question.question_type == EXISTS:
        counts[kind] = int(kind % 2 == 0) if is_usual else int(rng.integers(2))
        counts[other] = counts[kind] if is_equal else int(rng.integers(2))
    else:
        color = kind % len(sprites.colors) if is_usual else color
        other_color = color if is_equal else other_color
    bystanders = rng.permutation([k for k in range(kinds) if k not in counts])[: rng.integers(MAX_BYSTANDERS + 1)]
    counts |= {int(k): 1 + int(rng.integers(2)) for k in bystanders}
    object_kinds = [k for k, count in counts.items() for _ in range(count)]
    cells = rng.permutation(layout.grid**2).tolist()
    colors = {kind: color, other: other_color} if question.question_type == COLOR else {}
    # The queried kind and its companion come first, so a full grid only drops bystanders.
    objects = [
        _draw_object(k, colors.get(k), cell, rng, sprites, layout) for k, cell in zip(object_kinds, cells, strict=False)
    ]
    return Scene(number, tuple(objects)), question


def edits_of(scene: Scene, question: SceneQuestion, edit: str) -> list[SceneEdit]:
    """Return the edits of a scene for which a question stays meaningful.

    Covariant (CV): one object of the queried kind is removed and the answer changes, which holds for counts and for the
    presence of a single object. Invariant (IV): all objects of another kind are removed and the answer stays.
    """
    if edit == "iv":
        others = dict.fromkeys(item.kind for item in scene.objects if item.kind != question.kind)
        return [
            SceneEdit(kind + 1, scene.without([i for i, item in enumerate(scene.objects) if item.kind == kind]))
            for kind in others
        ]
    count = scene.count(question.kind)
    if question.question_type == COLOR or (question.question_type == EXISTS and count > 1):
        return []
    positions = [position for position, item in enumerate(scene.objects) if item.kind == question.kind]
    return [SceneEdit(position + 1, scene.without([position])) for position in positions]


def _draw_color(rng: np.random.Generator, sprites: Sprites) -> int:
    return int(rng.integers(len(sprites.colors))) if sprites.colors else 0


def _draw_object(
    kind: int, color: int | None, cell: int, rng: np.random.Generator, sprites: Sprites, layout: SceneLayout
) -> SceneObject:
    shift = (int(rng.integers(layout.shifts)), int(rng.integers(layout.shifts)))
    exemplar = int(rng.integers(len(sprites.images[kind])))
    return SceneObject(kind, _draw_color(rng, sprites) if color is None else color, exemplar, cell, shift)
