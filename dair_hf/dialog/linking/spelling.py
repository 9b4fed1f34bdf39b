"""Comparison of names: decide whether two spellings mean the same hotel, restaurant, attraction or place."""

from __future__ import annotations

from functools import lru_cache

from dair_hf.dialog.linking.vocabulary import (
    COMMON_WORDS,
    KIND_WORDS,
    SUBJECT_WORDS,
    TOWN_WORDS,
    TYPE_WORDS,
    UNSPECIFIC_WORDS,
)
from dair_hf.dialog.linking.words import similarity, words

Keys = tuple[str, ...]

HOTEL, RESTAURANT, ATTRACTION, PLACE = "hotel", "restaurant", "attraction", "place"
LONG_BB, SHORT_BB = ("bed", "and", "breakfast"), ("b", "and", "b")
MIN_SIMILARITY = 0.82
MIN_WORD_SIMILARITY = 0.6
_TAILS: dict[str, tuple[Keys, ...]] = {
    HOTEL: (LONG_BB, SHORT_BB, ("guest", "house"), ("hotel",), ("house",)),
    RESTAURANT: (("restaurant",),),
    PLACE: (LONG_BB, SHORT_BB, ("guest", "house"), ("hotel",), ("restaurant",)),
    ATTRACTION: (),
}


@lru_cache(maxsize=10_000)
def kind_of(slot: str) -> str:
    """Return the kind of name that a slot for names or places holds: hotel, restaurant, attraction, else place.

    Example:
        >>> kind_of("hotel-name"), kind_of("restaurants_1-restaurant_name"), kind_of("taxi-departure")
        ('hotel', 'restaurant', 'place')
    """
    domain = slot.lower().partition("-")[0]
    # SGD has its attractions in the service Travel_1.
    kinds = {HOTEL: HOTEL, RESTAURANT: RESTAURANT, ATTRACTION: ATTRACTION, "travel": ATTRACTION}
    return next((kind for start, kind in kinds.items() if domain.startswith(start)), PLACE)


@lru_cache(maxsize=100_000)
def name_keys(spelling: str) -> Keys:
    """Return the words by which a name is compared: without a leading "the", with "b & b" written out."""
    keys = tuple(words(spelling).keys)
    if len(keys) > 1 and keys[0] == "the":
        keys = keys[1:]
    for index in range(1, len(keys) - 2):
        if keys[index : index + 3] == SHORT_BB:
            return keys[:index] + LONG_BB + keys[index + 3 :]
    return keys


@lru_cache(maxsize=100_000)
def core(keys: Keys, kind: str) -> Keys:
    """Remove the words that only describe the kind of house ("acorn" of "acorn guest house")."""
    if kind in (RESTAURANT, PLACE) and len(keys) > 1 and keys[0] == "restaurant":
        keys = keys[1:]
    for tail in _TAILS[kind]:
        if len(keys) > len(tail) and keys[-len(tail) :] == tail:
            return keys[: -len(tail)]
    return keys


def contains(longer: Keys, keys: Keys) -> bool:
    """Return whether `keys` are consecutive words of `longer`."""
    return any(longer[start : start + len(keys)] == keys for start in range(len(longer) - len(keys) + 1))


def is_common(keys: Keys, kind: str) -> bool:
    """Return whether a name consists of common words alone, so that it looks like ordinary text."""
    return all(key in COMMON_WORDS and not (kind == PLACE and key == "cambridge") for key in keys)


def identifies(key: str) -> bool:
    """Return whether one word of a name is rare enough to identify it.

    Example:
        >>> identifies("lovell"), identifies("lodge")
        (True, False)
    """
    return len(key) > 2 and not key.isdigit() and key not in UNSPECIFIC_WORDS


def is_type(keys: Keys) -> bool:
    """Return whether words describe a kind of entity, or a town, and name no entity."""
    return all(key in TYPE_WORDS or key in TOWN_WORDS for key in keys) or (len(keys) == 1 and keys[0] in SUBJECT_WORDS)


def is_part(keys: Keys, longer: Keys, kind: str) -> bool:
    """Return whether a name is a part of a longer one, so that both mean one entity if no third name contains it.

    The longer name holds all words of the shorter one, except words for the kind of house.
    """
    if any(map(identifies, keys)):
        return all(key in longer or (key in KIND_WORDS and not identifies(key)) for key in keys)
    return kind != PLACE and not is_type(keys) and contains(longer, keys)


@lru_cache(maxsize=200_000)
def name_similarity(left: Keys, right: Keys) -> float:
    """Return the similarity of two names in [0, 1], or 0 if a word has no counterpart."""
    whole = similarity("".join(left), "".join(right))
    if whole < MIN_SIMILARITY:
        return 0.0
    if len(left) != len(right):
        return whole if whole >= 0.92 else 0.0
    pairs = zip(left, right, strict=True)
    matches = all(similarity(word, other) >= MIN_WORD_SIMILARITY for word, other in pairs)
    return whole if matches or sorted(left) == sorted(right) else 0.0


@lru_cache(maxsize=200_000)
def same_entity(left: Keys, left_kind: str, right: Keys, right_kind: str) -> float:
    """Return the confidence in [0, 1] that two names mean the same entity.

    Names match if they have the same words, differ only in the kind of house, one misspells the other, or one is a
    short form of the other.
    """
    if left == right or "".join(left) == "".join(right) or sorted(left) == sorted(right):
        return 1.0
    left_core, right_core = core(left, left_kind), core(right, right_kind)
    if not is_common(left_core, left_kind) and (left_core == right_core or left_core == right or left == right_core):
        return 0.99
    if PLACE not in (left_kind, right_kind) and left_kind != right_kind:
        return 0.0
    if score := name_similarity(left_core, right_core):
        return score if len("".join(left_core)) >= 5 and len("".join(right_core)) >= 5 else 0.0
    if left_kind == right_kind == PLACE:
        return 0.0
    short, long = sorted((left, right), key=len)
    if len(short) == len(long):
        return 0.0
    # A short form: the first word of the name unless that is common, or several of its words.
    if len(short) == 1:
        short_kind = left_kind if short == left else right_kind
        is_short_form = short_kind != PLACE and not is_common(short, HOTEL) and long[0] == short[0]
    elif is_common(short, HOTEL):
        is_short_form = long[: len(short)] == short
    else:
        is_short_form = contains(long, short)
    return 0.5 if is_short_form else 0.0
