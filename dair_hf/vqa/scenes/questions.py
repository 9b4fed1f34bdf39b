"""Questions about counting scenes: drawn with spurious correlations of known strength, answered by looking, edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dair_hf.errors import DataError
from dair_hf.vqa.scenes.scene import Scene, Stage, Thing
from dair_hf.vqa.scenes.sprites import Sprites

COUNT, EXISTS, COLOUR = "how many", "is there a", "what color is the"
ANSWER_TYPES = {COUNT: "number", EXISTS: "yes/no", COLOUR: "other"}
EDITS = ("cv", "iv")
MOST_OTHERS = 2  # kinds beside the one asked about and its companion


@dataclass(frozen=True)
class Correlations:
    """How strongly something in a scene gives the answer away without its being asked about.

    Attributes:
        co_occurrence: Probability, in [0, 1], that the companion of the kind asked about says the same: as many of it,
            there when the other is there, of the same colour. Else it is drawn independently.
        language_prior: Probability, in [0, 1], that a kind has its usual answer: a count, a yes or no, a colour of its
            own. Else the answer is drawn uniformly.
    """

    co_occurrence: float
    language_prior: float

    def __post_init__(self) -> None:
        for name in ("co_occurrence", "language_prior"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise DataError(f"{name}={getattr(self, name)} must lie in [0, 1]: 0 draws independently")


class SceneQuestion(NamedTuple):
    """What is asked about a scene.

    Attributes:
        question_type: `COUNT`, `EXISTS` or `COLOUR`.
        kind: Number of the kind it is about.
    """

    question_type: str
    kind: int

    @property
    def answer_type(self) -> str:
        """Its answer type as in VQA v2."""
        return ANSWER_TYPES[self.question_type]

    def text(self, sprites: Sprites) -> str:
        """The question in words."""
        one, several = sprites.kinds[self.kind], sprites.plurals[self.kind]
        if self.question_type == COUNT:
            return f"How many {several} are there?"
        if self.question_type == EXISTS:
            # By sound: it is "a one", though "an eight".
            return f"Is there {'an' if one[0] in 'aeiou' and one != 'one' else 'a'} {one}?"
        return f"What color is the {one}?"

    def answer(self, scene: Scene, sprites: Sprites) -> str:
        """The answer, found by looking at the scene.

        Raises:
            DataError: The colour of something is asked that is not there exactly once.
        """
        count = scene.count(self.kind)
        if self.question_type == COUNT:
            return str(count)
        if self.question_type == EXISTS:
            return "yes" if count else "no"
        if count != 1:
            raise DataError(f"scene {scene.number} holds {count} things of kind {self.kind}: no single colour")
        return next(sprites.colours[thing.colour] for thing in scene.things if thing.kind == self.kind)


class SceneEdit(NamedTuple):
    """A scene with something removed.

    Attributes:
        removed: What was removed, > 0: the kind + 1 (IV), or the place in the scene + 1 (CV).
        scene: The scene without it.
    """

    removed: int
    scene: Scene


def companion(kind: int) -> int:
    """The kind that goes along with a kind: kinds go in twos.

    Example:
        >>> [companion(kind) for kind in range(4)]
        [1, 0, 3, 2]
    """
    return kind ^ 1


def draw_scene(
    number: int, draws: np.random.Generator, sprites: Sprites, stage: Stage, correlations: Correlations, most: int
) -> tuple[Scene, SceneQuestion]:
    """A scene and a question about it.

    The kind asked about is drawn uniformly, likewise the type of the question (colours only where things have them).
    A usual count is 1 + kind mod `most`, a usual colour kind mod colours, and kinds of even number are usually there.

    Args:
        number: The scene's number.
        draws: Random numbers.
        sprites: What can stand there.
        stage: Its grid.
        correlations: What gives answers away.
        most: Largest count, >= 1.

    Returns:
        The scene and the question.
    """
    kinds = len(sprites.kinds)
    types = (COUNT, COUNT, EXISTS, COLOUR) if sprites.colours else (COUNT, COUNT, EXISTS)
    question = SceneQuestion(types[draws.integers(len(types))], int(draws.integers(kinds)))
    kind, other = question.kind, companion(question.kind)
    usual, follows = draws.random() < correlations.language_prior, draws.random() < correlations.co_occurrence
    counts = dict.fromkeys((kind, other), 1)
    colour, other_colour = _colour(draws, sprites), _colour(draws, sprites)
    if question.question_type == COUNT:
        counts[kind] = 1 + kind % most if usual else int(draws.integers(most + 1))
        counts[other] = counts[kind] if follows else int(draws.integers(most + 1))
    elif question.question_type == EXISTS:
        counts[kind] = int(kind % 2 == 0) if usual else int(draws.integers(2))
        counts[other] = counts[kind] if follows else int(draws.integers(2))
    else:
        colour = kind % len(sprites.colours) if usual else colour
        other_colour = colour if follows else other_colour
    bystanders = draws.permutation([k for k in range(kinds) if k not in counts])[: draws.integers(MOST_OTHERS + 1)]
    counts |= {int(k): 1 + int(draws.integers(2)) for k in bystanders}
    wanted = [found for found, count in counts.items() for _ in range(count)]
    cells = draws.permutation(stage.grid**2).tolist()
    colours = {kind: colour, other: other_colour} if question.question_type == COLOUR else {}
    # The kind asked about and its companion come first; in a full grid bystanders stay away.
    things = [_thing(k, colours.get(k), cell, draws, sprites, stage) for k, cell in zip(wanted, cells, strict=False)]
    return Scene(number, tuple(things)), question


def edits_of(scene: Scene, question: SceneQuestion, edit: str) -> list[SceneEdit]:
    """The edits of a scene that keep a question sensible.

    CV, covariant: one thing of the kind asked about is removed, where that changes the answer (counts, and the only
    thing of its kind where it is asked whether there is one). IV, invariant: all things of another kind are removed.

    Args:
        scene: The scene.
        question: What is asked about it.
        edit: "cv" or "iv".

    Returns:
        All such edits; none where there is nothing to remove.

    Example:
        >>> scene = Scene(0, (Thing(0, 0, 0, 0, (0, 0)), Thing(1, 0, 0, 1, (0, 0))))
        >>> [edited.scene.count(0) for edited in edits_of(scene, SceneQuestion(COUNT, 0), "cv")]
        [0]
    """
    if edit == "iv":
        others = dict.fromkeys(thing.kind for thing in scene.things if thing.kind != question.kind)
        return [
            SceneEdit(kind + 1, scene.without([p for p, thing in enumerate(scene.things) if thing.kind == kind]))
            for kind in others
        ]
    count = scene.count(question.kind)
    if question.question_type == COLOUR or (question.question_type == EXISTS and count > 1):
        return []
    places = [place for place, thing in enumerate(scene.things) if thing.kind == question.kind]
    return [SceneEdit(place + 1, scene.without([place])) for place in places]


def _colour(draws: np.random.Generator, sprites: Sprites) -> int:
    return int(draws.integers(len(sprites.colours))) if sprites.colours else 0


def _thing(
    kind: int, colour: int | None, cell: int, draws: np.random.Generator, sprites: Sprites, stage: Stage
) -> Thing:
    room = stage.cell_size - stage.thing_size + 1
    shift = (int(draws.integers(room)), int(draws.integers(room)))
    exemplar = int(draws.integers(len(sprites.pictures[kind])))
    return Thing(kind, _colour(draws, sprites) if colour is None else colour, exemplar, cell, shift)
