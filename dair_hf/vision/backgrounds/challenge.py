"""The background challenge from either of its sources: ImageNet-9, or the drawn stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.vision.backgrounds import imagenet9
from dair_hf.vision.backgrounds.drawn import BackgroundsConfig, evaluation_sets, load_foregrounds, train_pairs
from dair_hf.vision.backgrounds.imagenet9 import ImageNet9Config
from dair_hf.vision.backgrounds.pictures import PictureCollator
from dair_hf.vision.settings import require_choice

DRAWN, PUBLIC = "drawn", "imagenet9"
SOURCES = (DRAWN, PUBLIC)


@dataclass
class ChallengeConfig:
    """Which pictures.

    Raises:
        DataError: An unknown source.

    Example:
        >>> ChallengeConfig().source
        'drawn'
    """

    source: str = field(
        default=DRAWN,
        metadata={"help": "drawn: the stand-in; imagenet9: the folders of the public data.", "choices": SOURCES},
    )

    def __post_init__(self) -> None:
        require_choice("source", self.source, SOURCES)


class Challenge(NamedTuple):
    """What a run is trained and judged on.

    Attributes:
        name: Of the pictures.
        config: Their settings.
        train: (seed, whether partners are wanted) -> training rows.
        tests: Variant -> test rows.
        collator: Makes batches of rows; None where the rows are tensors.
        content: Name of a part -> what identifies its rows.
        missing: Part -> rows that it lacks and that were left out.
    """

    name: str
    config: BackgroundsConfig | ImageNet9Config
    train: Callable[[int, bool], Any]
    tests: Mapping[str, Any]
    collator: PictureCollator | None
    content: dict[str, str]
    missing: dict[str, list[str]]


def load_challenge(source: ChallengeConfig, drawn: BackgroundsConfig, public: ImageNet9Config) -> Challenge:
    """Draw the pictures, or find the files of the public ones.

    Args:
        source: Which of the two.
        drawn: Settings of the stand-in.
        public: Settings of ImageNet-9; its `evaluate_on` holds for both.

    Returns:
        The same rows for every method and seed.

    Raises:
        DataError: As `backgrounds` and `imagenet9` raise it.

    Example:
        >>> drawn = BackgroundsConfig(train_each=1, test_each=1)
        >>> challenge = load_challenge(ChallengeConfig(), drawn, ImageNet9Config())
        >>> len(challenge.tests), len(challenge.train(0, True))
        (8, 9)
    """
    if source.source == PUBLIC:
        data = imagenet9.load_imagenet9(public)
        content = {"train": data.train._fingerprint, **{name: rows._fingerprint for name, rows in data.tests.items()}}

        def cut(seed: int, partners: bool) -> Any:
            return imagenet9.train_pairs(data, public, seed, partners)

        collator = PictureCollator(public.input_size)
        return Challenge("ImageNet-9", public, cut, data.tests, collator, content, data.missing)
    things = load_foregrounds(drawn)

    def draw(seed: int, partners: bool) -> Any:
        pairs = train_pairs(things, drawn, seed)
        return pairs if partners else pairs.originals()

    content = {name: tensor_fingerprint(found.pictures) for name, found in things.items()}
    tests = evaluation_sets(things, drawn, public.evaluate_on)
    return Challenge(f"{drawn.foreground} on stripes", drawn, draw, tests, None, content, {})
