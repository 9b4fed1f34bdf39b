"""Texts of generated dialogues, the names of their places, made of syllables, and the area of each place.

Each word belongs to exactly one of the three name splits.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence

from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS

DOMAINS = ("hotel", "restaurant", "attraction")

AREAS = ("north", "south", "east", "west", "centre")
PRICES = ("cheap", "moderate", "expensive")
STARS = ("2", "3", "4", "5")
FOODS = ("indian", "italian", "chinese", "thai", "french", "british")
TYPES = ("museum", "park", "college", "theatre", "cinema", "church")
PEOPLE = ("1", "2", "3", "4", "5", "6", "7", "8")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
TIMES = ("09:15", "10:30", "11:45", "12:00", "13:15", "15:30", "17:45", "18:00", "19:15", "20:30")

VALUES = {
    "hotel-area": AREAS,
    "hotel-pricerange": PRICES,
    "hotel-stars": STARS,
    "hotel-bookpeople": PEOPLE,
    "hotel-bookday": DAYS,
    "restaurant-area": AREAS,
    "restaurant-pricerange": PRICES,
    "restaurant-food": FOODS,
    "restaurant-bookpeople": PEOPLE,
    "restaurant-booktime": TIMES,
    "attraction-area": AREAS,
    "attraction-type": TYPES,
    "taxi-leaveat": TIMES,
}

# Descriptions by the user. "{hotel-area}" is replaced by a value of the slot.
SEARCH = {
    "hotel": (
        "i need a {hotel-pricerange} hotel in the {hotel-area} .",
        "find me a hotel with {hotel-stars} stars in the {hotel-area} .",
        "is there a {hotel-pricerange} hotel with {hotel-stars} stars ?",
    ),
    "restaurant": (
        "i want {restaurant-food} food in the {restaurant-area} .",
        "is there a {restaurant-pricerange} restaurant in the {restaurant-area} ?",
        "find me a {restaurant-pricerange} restaurant with {restaurant-food} food .",
    ),
    "attraction": (
        "i would like to see a {attraction-type} .",
        "is there a {attraction-type} in the {attraction-area} ?",
        "what can i visit in the {attraction-area} ?",
    ),
}
# "[name]" is replaced by a place, "[other]" by a second one of the same kind.
RECOMMEND = ("how about [name] ?", "i recommend [name] .", "[name] would suit you .", "there is [name] .")
RECOMMEND_TWO = ("there are [name] and [other] .", "i can offer [other] or [name] .")
ACCEPT = {
    "hotel": (
        "great , book it for {hotel-bookpeople} people .",
        "yes , book it from {hotel-bookday} .",
        "i take that , for {hotel-bookpeople} people from {hotel-bookday} .",
    ),
    "restaurant": (
        "great , a table for {restaurant-bookpeople} people .",
        "yes , book it at {restaurant-booktime} .",
        "i take that , for {restaurant-bookpeople} people at {restaurant-booktime} .",
    ),
    "attraction": ("that sounds good .", "yes , i want to see that .", "great , thanks ."),
}
CHOOSE = ("i like [name] .", "then i choose [name] .", "let it be [name] .")
REQUEST = {
    "hotel": (
        "i want to stay at [name] .",
        "can you book the hotel [name] for {hotel-bookpeople} people ?",
        "please reserve [name] from {hotel-bookday} .",
    ),
    "restaurant": (
        "i want to eat at [name] .",
        "book a table at [name] for {restaurant-bookpeople} people .",
        "can you reserve [name] at {restaurant-booktime} ?",
    ),
    "attraction": ("i want to visit [name] .", "tell me about [name] ."),
}
CHANGE = {
    "hotel": ("i would rather stay at [name] .", "please change the hotel to [name] ."),
    "restaurant": ("i would rather eat at [name] .", "please change the restaurant to [name] ."),
    "attraction": ("i would rather visit [name] .", "please change that to [name] ."),
}
DONE = ("done . anything else ?", "it is booked .", "all set . what else ?")
TAXI = (
    "i need a taxi to the {destination} .",
    "get me a taxi from the {departure} to the {destination} .",
    "a taxi should take me from the {departure} at {taxi-leaveat} .",
    "i need a taxi to the {destination} at {taxi-leaveat} .",
)

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
        DataError: The split is unknown, or there are not so many names.

    Example:
        >>> sorted(make_names("train", seed=0, names_per_slot=2))
        ['attraction-name', 'hotel-name', 'restaurant-name']
    """
    if split not in NAME_SPLITS or not 1 <= names_per_slot <= MAX_NAMES_PER_SLOT:
        # The search for another word would not end.
        raise DataError(
            f"expected a split of {NAME_SPLITS} and 1 to {MAX_NAMES_PER_SLOT} names per slot, got {split!r} and "
            f"{names_per_slot}"
        )
    rng = random.Random(f"names/{split}/{seed}")
    taken = _text_words()
    return {
        slot: [
            " ".join(_draw_word(rng, split, taken) for _ in range(rng.choice(_WORDS_IN_A_NAME)))
            for _ in range(names_per_slot)
        ]
        for slot in NAME_SLOTS
    }


def areas_of(names: NameBank) -> dict[str, str]:
    """Give each name an area of the town; each area gets as many names of a slot as another, or one more."""
    return {name: AREAS[number % len(AREAS)] for bank in names.values() for number, name in enumerate(bank)}


def _text_words() -> set[str]:
    """Return all words of the dialogues outside of names."""
    texts: list[str] = [*RECOMMEND, *RECOMMEND_TWO, *CHOOSE, *DONE, *TAXI]
    for templates in (SEARCH, ACCEPT, REQUEST, CHANGE, VALUES):
        for group in templates.values():
            texts.extend(group)
    return {word for text in texts for word in text.split()} | {"hotel", "restaurant", "attraction"}
