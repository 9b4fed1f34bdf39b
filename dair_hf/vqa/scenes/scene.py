"""Counting scenes: their sprites, drawing and edits."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image

from dair_hf.augment.shapes import draw_shape
from dair_hf.errors import DataError, explained

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OBJECTS = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IRREGULAR_PLURALS = {"deer": "deer", "cross": "crosses", "six": "sixes"}
COLORS = {
    "red": (0.90, 0.15, 0.15),
    "green": (0.10, 0.70, 0.20),
    "blue": (0.15, 0.30, 0.95),
    "yellow": (0.95, 0.85, 0.10),
    "purple": (0.60, 0.20, 0.75),
}
MIN_SIZE = 8  # pixels at which shapes can be told apart
MAX_IMAGES = 2000  # rows read from a data set, enough for every class
COUNT, EXISTS, COLOR = "how many", "is there a", "what color is the"
ANSWER_TYPES = {COUNT: "number", EXISTS: "yes/no", COLOR: "other"}
MAX_BYSTANDERS = 2  # kinds in a scene besides the queried kind and its companion
TEXTURE_CELLS = 4  # cells of the background texture along a side
GRAIN = 0.03  # standard deviation of the pixel noise of the background
BACKGROUND_STREAM = 1  # separates the random numbers of backgrounds and scenes


@dataclass(frozen=True)
class Sprites:
    """Images of several kinds of objects, named in the singular and the plural.

    `images` holds one array per kind, `[M, S, S, 4]` float32 in 0..1: color and opacity of M images. If there are
    `colors`, the three color channels hold the brightness; otherwise the images have their own.
    """

    kinds: tuple[str, ...]
    plurals: tuple[str, ...]
    colors: tuple[str, ...]
    images: tuple[NDArray[np.float32], ...]

    def image(self, kind: int, color: int, exemplar: int) -> NDArray[np.float32]:
        """Return the image of an object, tinted if there are colors: `[S, S, 4]` float32 in 0..1."""
        image = self.images[kind][exemplar % len(self.images[kind])]
        if not self.colors:
            return image
        tint = np.array([*COLORS[self.colors[color]], 1.0], dtype=np.float32)
        return image * tint


def load_sprites(kind: str, folder: str | os.PathLike[str] | None, split: str, size: int) -> Sprites:
    """Return the objects of a split; digits and objects have different images in training and test."""
    if kind == "shapes":
        return _shape_sprites(size)
    names, mode = (DIGITS, "L") if kind == "digits" else (OBJECTS, "RGB")
    images, labels = _read_images(Path(folder or ""), split, mode)
    if missing := [name for index, name in enumerate(names) if not (labels == index).any()]:
        raise DataError(f"{folder}: expected images of all {kind}, got none of {', '.join(missing)}")
    return _digit_sprites(images, labels, size) if kind == "digits" else _object_sprites(images, labels, size)


def _shape_sprites(size: int) -> Sprites:
    """Return the six `SHAPES`, which need no data."""
    return _colorable(SHAPES, [draw_shape(name, size)[None] for name in SHAPES])


def _digit_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Return handwritten digits whose ink is opaque."""
    ink = _resize(images, size)
    return _colorable(DIGITS, [ink[labels == digit] for digit in range(len(DIGITS))])


def _object_sprites(images: NDArray[np.uint8], labels: NDArray[np.integer], size: int) -> Sprites:
    """Return photos of objects in their own colors, as opaque squares."""
    resized = _resize(images, size)
    opaque = np.concatenate([resized, np.ones_like(resized[..., :1])], axis=-1)
    by_class = tuple(opaque[labels == index] for index in range(len(OBJECTS)))
    return Sprites(OBJECTS, tuple(map(_plural, OBJECTS)), (), by_class)


def _plural(kind: str) -> str:
    """Return the plural of the name of a kind."""
    return IRREGULAR_PLURALS.get(kind, f"{kind}s")


def _colorable(kinds: tuple[str, ...], opacities: Sequence[NDArray[np.float32]]) -> Sprites:
    """Return white sprites, to be colored, from `[M, S, S]` opacities of each kind."""
    white = [
        np.concatenate([np.ones((*opacity.shape, 3), np.float32), opacity[..., None]], -1) for opacity in opacities
    ]
    return Sprites(kinds, tuple(map(_plural, kinds)), tuple(COLORS), tuple(white))


def _resize(images: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    resized = [Image.fromarray(image).resize((size, size), Image.Resampling.BOX) for image in images]
    return np.stack([np.asarray(image) for image in resized]).astype(np.float32) / 255.0


def _read_images(folder: Path, split: str, mode: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    file = next(iter(sorted(folder.rglob(f"{split}*.parquet"))), None)
    if file is None:
        raise DataError(f"{folder}: expected a file {split}*.parquet, got none")
    with explained(str(file), Exception):  # of any type, if the file is damaged
        table = pyarrow.parquet.ParquetFile(file)
        column = "image" if "image" in table.schema_arrow.names else "img"  # as in MNIST and in CIFAR-10
        rows = next(table.iter_batches(MAX_IMAGES, columns=[column, "label"]))
        images = [Image.open(io.BytesIO(value["bytes"])) for value in rows[column].to_pylist()]
        if other := {image.mode for image in images} - {mode}:  # otherwise the classes would have the wrong names
            raise DataError(f"{file}: expected images of mode {mode}, got {', '.join(sorted(other))}")
        return np.stack([np.asarray(image) for image in images]), rows["label"].to_numpy()


class SceneObject(NamedTuple):
    """Object in a scene: an image of its kind in a cell, counted row by row, shifted to the right and down."""

    kind: int
    color: int
    exemplar: int
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


class SceneLayout(NamedTuple):
    """Height and width of an image in pixels, cells along a side, a divisor of it, and seed of the backgrounds."""

    size: int
    grid: int
    seed: int

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
        return next(sprites.colors[item.color] for item in scene.objects if item.kind == self.kind)


class _SceneEdit(NamedTuple):
    """Scene after a removal."""

    removed: int
    scene: Scene


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
    kind, other = question.kind, question.kind ^ 1  # kinds form pairs; the other is the companion
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


def _draw_color(rng: np.random.Generator, sprites: Sprites) -> int:
    return int(rng.integers(len(sprites.colors))) if sprites.colors else 0


def _draw_object(
    kind: int, color: int | None, cell: int, rng: np.random.Generator, sprites: Sprites, layout: SceneLayout
) -> SceneObject:
    shift = (int(rng.integers(layout.shifts)), int(rng.integers(layout.shifts)))
    exemplar = int(rng.integers(len(sprites.images[kind])))
    return SceneObject(kind, _draw_color(rng, sprites) if color is None else color, exemplar, cell, shift)


def render_scenes(scenes: Sequence[Scene], sprites: Sprites, layout: SceneLayout) -> NDArray[np.uint8]:
    """Draw a scene and its edits, all with the same number, on the same background: `[N, size, size, 3]` uint8.

    If two of the scenes differ in one object, their images differ only in the cell of that object.
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
