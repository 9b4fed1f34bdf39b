"""Counting scenes: their objects, drawing and edits."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dair_hf.augment.shapes import draw_shape

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLORS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.10, 0.70, 0.20),
    "blue": (0.15, 0.30, 0.95),
    "yellow": (0.95, 0.85, 0.10),
    "purple": (0.60, 0.20, 0.75),
}
SIZE, GRID = 64, 4  # pixels and cells along a side of an image; a cell holds at most one object
CELL_SIZE = SIZE // GRID
OBJECT_SIZE = CELL_SIZE - 2  # leaves a margin in its cell
SHIFTS = CELL_SIZE - OBJECT_SIZE + 1  # possible shifts of an object in its cell, along each axis
SEED = 0  # of the scenes; the same for all runs
MOST = 4  # largest count in an answer
COUNT, EXISTS, COLOR = "how many", "is there a", "what color is the"
ANSWER_TYPES = {COUNT: "number", EXISTS: "yes/no", COLOR: "other"}
MAX_BYSTANDERS = 2  # kinds in a scene besides the queried kind and its companion
TEXTURE_CELLS = 4  # cells of the background texture along a side
GRAIN = 0.03  # standard deviation of the pixel noise of the background
BACKGROUND_STREAM = 1  # separates the random numbers of backgrounds and scenes


class SceneObject(NamedTuple):
    """Object in a scene: a colored shape in a cell, counted row by row, shifted to the right and down."""

    kind: int
    color: int
    cell: int
    shift: tuple[int, int]


class Scene(NamedTuple):
    """Objects, each in its own cell, on a numbered background."""

    number: int
    objects: tuple[SceneObject, ...]

    def count(self, kind: int) -> int:
        """Return the number of objects of a kind."""
        return sum(item.kind == kind for item in self.objects)

    def without(self, positions: Collection[int]) -> Scene:
        """Return the scene without the objects at the given positions of `objects`."""
        removed = set(positions)
        return self._replace(objects=tuple(item for i, item in enumerate(self.objects) if i not in removed))


class Correlations(NamedTuple):
    """Strength of the spurious correlations between a scene and the answer: probabilities, 0 means independent."""

    co_occurrence: float
    language_prior: float


class SceneQuestion(NamedTuple):
    """Question about a scene."""

    question_type: str
    kind: int

    @property
    def answer_type(self) -> str:
        """Answer type, as in VQA v2."""
        return ANSWER_TYPES[self.question_type]

    @property
    def text(self) -> str:
        """Text of the question."""
        shape = SHAPES[self.kind]
        if self.question_type == COUNT:
            return f"How many {'crosses' if shape == 'cross' else f'{shape}s'} are there?"
        return f"Is there a {shape}?" if self.question_type == EXISTS else f"What color is the {shape}?"

    def answer(self, scene: Scene) -> str:
        """Return the answer for a scene."""
        count = scene.count(self.kind)
        if self.question_type == COUNT:
            return str(count)
        if self.question_type == EXISTS:
            return "yes" if count else "no"
        return next(tuple(COLORS)[item.color] for item in scene.objects if item.kind == self.kind)


class _SceneEdit(NamedTuple):
    """Scene after a removal."""

    removed: int
    scene: Scene


def draw_scene(number: int, rng: np.random.Generator, correlations: Correlations) -> tuple[Scene, SceneQuestion]:
    """Draw a scene and a question about it.

    The queried kind and the type of the question are drawn uniformly. The usual count of a kind is 1 + kind mod `MOST`,
    its usual color kind mod number of colors, and kinds of even index are usually present.
    """
    types = (COUNT, COUNT, EXISTS, COLOR)
    question = SceneQuestion(types[rng.integers(len(types))], int(rng.integers(len(SHAPES))))
    kind, other = question.kind, question.kind ^ 1  # kinds form pairs; the other is the companion
    is_usual, is_equal = rng.random() < correlations.language_prior, rng.random() < correlations.co_occurrence
    counts = dict.fromkeys((kind, other), 1)
    color, other_color = _draw_color(rng), _draw_color(rng)
    if question.question_type == COUNT:
        counts[kind] = 1 + kind % MOST if is_usual else int(rng.integers(MOST + 1))
        counts[other] = counts[kind] if is_equal else int(rng.integers(MOST + 1))
    elif question.question_type == EXISTS:
        counts[kind] = int(kind % 2 == 0) if is_usual else int(rng.integers(2))
        counts[other] = counts[kind] if is_equal else int(rng.integers(2))
    else:
        color = kind % len(COLORS) if is_usual else color
        other_color = color if is_equal else other_color
    others = [k for k in range(len(SHAPES)) if k not in counts]
    bystanders = rng.permutation(others)[: rng.integers(MAX_BYSTANDERS + 1)]
    counts |= {int(k): 1 + int(rng.integers(2)) for k in bystanders}
    object_kinds = [k for k, count in counts.items() for _ in range(count)]
    cells = rng.permutation(GRID**2).tolist()
    colors = {kind: color, other: other_color} if question.question_type == COLOR else {}
    # The queried kind and its companion come first, so a full grid only drops bystanders.
    objects = [_draw_object(k, colors.get(k), cell, rng) for k, cell in zip(object_kinds, cells, strict=False)]
    return Scene(number, tuple(objects)), question


def edits_of(scene: Scene, question: SceneQuestion, edit: str) -> list[_SceneEdit]:
    """Return the edits of a scene for which a question stays meaningful.

    Covariant (CV): one object of the queried kind is removed and the answer changes, which holds for counts and for the
    presence of a single object. Invariant (IV): all objects of another kind are removed and the answer stays.
    """
    if edit == "iv":
        others = dict.fromkeys(item.kind for item in scene.objects if item.kind != question.kind)
        return [
            _SceneEdit(kind + 1, scene.without([i for i, item in enumerate(scene.objects) if item.kind == kind]))
            for kind in others
        ]
    count = scene.count(question.kind)
    if question.question_type == COLOR or (question.question_type == EXISTS and count > 1):
        return []
    positions = [position for position, item in enumerate(scene.objects) if item.kind == question.kind]
    return [_SceneEdit(position + 1, scene.without([position])) for position in positions]


def _draw_color(rng: np.random.Generator) -> int:
    return int(rng.integers(len(COLORS)))


def _draw_object(kind: int, color: int | None, cell: int, rng: np.random.Generator) -> SceneObject:
    shift = (int(rng.integers(SHIFTS)), int(rng.integers(SHIFTS)))
    return SceneObject(kind, _draw_color(rng) if color is None else color, cell, shift)


def render_scenes(scenes: Sequence[Scene]) -> NDArray[np.uint8]:
    """Draw a scene and its edits, all with the same number, on the same background: `[N, SIZE, SIZE, 3]` uint8.

    If two of the scenes differ in one object, their images differ only in the cell of that object.
    """
    empty = background(scenes[0].number)
    return np.stack([_drawn(scene, empty) for scene in scenes])


def _drawn(scene: Scene, empty: NDArray[np.float32]) -> NDArray[np.uint8]:
    canvas = empty.copy()
    for item in scene.objects:
        row, column = divmod(item.cell, GRID)
        top, left = row * CELL_SIZE + item.shift[1], column * CELL_SIZE + item.shift[0]
        window = canvas[top : top + OBJECT_SIZE, left : left + OBJECT_SIZE]
        window += _opacity(item.kind) * (np.array(tuple(COLORS.values())[item.color], dtype=np.float32) - window)
    return (canvas * 255 + 0.5).astype(np.uint8)


@functools.cache
def _opacity(kind: int) -> NDArray[np.float32]:
    """Return the share of each pixel that a shape covers, `[OBJECT_SIZE, OBJECT_SIZE, 1]`."""
    return draw_shape(SHAPES[kind], OBJECT_SIZE)[..., None]


def background(number: int) -> NDArray[np.float32]:
    """Return the background of a scene, a soft texture of pale colors: `[SIZE, SIZE, 3]` float32 in 0..1."""
    # Independent of the random numbers of the scene, or the texture would reveal its objects.
    rng = np.random.default_rng([BACKGROUND_STREAM, SEED, number])
    coarse = 0.5 + 0.25 * rng.random((TEXTURE_CELLS + 1, TEXTURE_CELLS + 1, 3), dtype=np.float32)
    position = np.linspace(0, TEXTURE_CELLS, SIZE, endpoint=False, dtype=np.float32)
    low = position.astype(np.intp)
    fraction = np.modf(position)[0][:, None]
    rows = coarse[low] * (1 - fraction[..., None]) + coarse[low + 1] * fraction[..., None]
    smooth = rows[:, low] * (1 - fraction) + rows[:, low + 1] * fraction
    grain = rng.standard_normal((SIZE, SIZE, 1), dtype=np.float32) * GRAIN
    return np.clip(smooth + grain, 0.0, 1.0)
