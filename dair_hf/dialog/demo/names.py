"""Names of generated places, made of syllables, and the area of each place.

Each word belongs to exactly one of the three name splits.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence

from dair_hf.dialog.demo.texts import AREAS, text_words
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS

NameBank = Mapping[str, Sequence[str]]
NAMES_PER_SLOT = 24
# Far below the four million words of a split, so that drawing new ones never ends in a search for the last.
MAX_NAMES_PER_SLOT = 10_000
NAME_SPLITS = ("train", "validation", "test")

_ONSETS = tuple("b br c ch d dr f fl g gr h j k l m n p pl qu r s sh st t th tr v w y z".split())
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "", "d", "f", "k", "l", "m", "n", "p", "r", "s", "t", "x")
_WORDS_IN_A_NAME = (1, 1, 2, 2, 3)


def _word_split(word: str) -> str:
    """Return the name split of a word; each split has a fixed third of all words."""
    return NAME_SPLITS[zlib.crc32(word.encode()) % len(NAME_SPLITS)]


def _draw_word(rng: random.Random, split: str, taken: set[str]) -> str:
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        if 4 <= len(word) <= 7 and word not in taken and _word_split(word) == split:
            taken.add(word)
            return word


def make_names(split: str, seed: int = 0, names_per_slot: int = NAMES_PER_SLOT) -> dict[str, list[str]]:
    """Draw a bank of names. No word is in two names or in two splits.

    Args:
        split: "train", "validation" or "test". Banks of different splits share no word, with any seeds.
        seed: Random seed.
        names_per_slot: Number of names for each of hotel, restaurant and attraction, from 1 to 10,000.

    Returns:
        Name slot -> names of one to three lower-case words.

    Raises:
        DataError: The split is unknown, or the number of names is out of range.

    Example:
        >>> sorted(make_names("train", seed=0, names_per_slot=2))
        ['attraction-name', 'hotel-name', 'restaurant-name']
    """
    if split not in NAME_SPLITS:
        raise DataError(f"unknown name split {split!r}; choose one of {', '.join(NAME_SPLITS)}")
    if not 1 <= names_per_slot <= MAX_NAMES_PER_SLOT:
        raise DataError(f"names_per_slot={names_per_slot}; it must be from 1 to {MAX_NAMES_PER_SLOT}")
    rng = random.Random(f"names/{split}/{seed}")
    taken = text_words()
    return {
        slot: [
            " ".join(_draw_word(rng, split, taken) for _ in range(rng.choice(_WORDS_IN_A_NAME)))
            for _ in range(names_per_slot)
        ]
        for slot in NAME_SLOTS
    }


def areas_of(names: NameBank) -> dict[str, str]:
    """Give each name an area of the town; each area gets as many names of a slot as another, or one more.

    Example:
        >>> sorted(areas_of({"hotel-name": ["jona", "tibul", "wacho"]}).items())
        [('jona', 'north'), ('tibul', 'south'), ('wacho', 'east')]
    """
    return {name: AREAS[number % len(AREAS)] for bank in names.values() for number, name in enumerate(bank)}
