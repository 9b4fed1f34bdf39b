"""When two spellings of a name mean the same hotel, restaurant, attraction or place."""

from __future__ import annotations

from functools import lru_cache

from dair_hf.dialog.text.common_words import ORDINARY_WORDS, TOWN_WORDS
from dair_hf.dialog.text.words import similarity, word_keys, words

Keys = tuple[str, ...]

HOTEL, RESTAURANT, ATTRACTION, PLACE = "hotel", "restaurant", "attraction", "place"
LIKENESS = 0.82
LIKENESS_OF_WORDS = 0.6


def _keys(phrases: str) -> frozenset[str]:
    return frozenset(key for word in phrases.split() for key in word_keys(word))


# A name made of such words alone ("the place", "ask", "college") is only a mention where the annotation says so.
COMMON_WORDS = _keys(
    "a an and ask at bar bed bb breakfast bridge by cafe cam cambridge center centre church cinema city club college "
    "dontcare evening for free garden gallery galleria good guest guesthouse hall hotel hotels house in inn is it "
    "lodge luck museum night nightclub north not of on one park place pool price restaurant school south east west "
    "station street swimming swimmingpool taxi the theatre to town train airport two university visit with yes no"
)
# A name made of such words alone says what is looked for ("preferably a college"), not which one.
TYPE_WORDS = _keys(
    "a an any boat church cinema club college colleges concert concerthall entertainment gallery guest guesthouse hall "
    "hotel hotspot house museum night nightclub park pool restaurant sports swimming swimmingpool the theatre"
)
SUBJECT_WORDS = _keys("archaeology archeology architecture art arts history music science technology")
STREET_WORDS = _keys(
    "street road place lane avenue way close square hill parade rd terrace drive ring common court causeway"
)
MORE_WORDS = _keys("and or on for in with to is called")
# What one may call another's house by ("the cafe jello museum" is the cafe jello gallery), but not hall for college.
KIND_WORDS = _keys(
    "and b bar bed bistro breakfast cafe cinema club gallery guest hotel house inn lodge museum nightclub restaurant "
    "the theatre"
)
# A part of a name that ends so is still a name after "the": "the fun house" of "funky fun house".
NAME_HEADS = _keys("church college gallery garden hall house inn kitchen lodge museum park pool school theatre")
_UNSPECIFIC_WORDS = ORDINARY_WORDS | STREET_WORDS | SUBJECT_WORDS
FUNCTION_WORDS = _keys("a an and at by for from in is of on or the to with")
_TAILS: dict[str, tuple[Keys, ...]] = {
    HOTEL: (("bed", "and", "breakfast"), ("b", "and", "b"), ("guest", "house"), ("hotel",), ("house",)),
    RESTAURANT: (("restaurant",),),
    PLACE: (("bed", "and", "breakfast"), ("b", "and", "b"), ("guest", "house"), ("hotel",), ("restaurant",)),
    ATTRACTION: (),
}
LONG_BB, SHORT_BB = ("bed", "and", "breakfast"), ("b", "and", "b")


@lru_cache(maxsize=10_000)
def kind_of(slot: str) -> str:
    """Hotel, restaurant or attraction for a slot that holds such names, else place.

    Example:
        >>> kind_of("hotel-name"), kind_of("restaurants_1-restaurant_name"), kind_of("taxi-departure")
        ('hotel', 'restaurant', 'place')
    """
    domain, _, name = slot.lower().partition("-")
    if "name" in name:
        for kind in (HOTEL, RESTAURANT, ATTRACTION):
            if domain.startswith(kind) or name.startswith(kind):
                return kind
    return PLACE


@lru_cache(maxsize=100_000)
def name_keys(spelling: str) -> Keys:
    """The words a name is compared by: no leading "the", "b & b" written out."""
    keys = tuple(words(spelling).keys)
    if len(keys) > 1 and keys[0] == "the":
        keys = keys[1:]
    for index in range(len(keys) - 2):
        if keys[index : index + 3] == SHORT_BB and index > 0:
            return keys[:index] + LONG_BB + keys[index + 3 :]
    return keys


@lru_cache(maxsize=100_000)
def core(keys: Keys, kind: str) -> Keys:
    """The keys without the words that only say what it is ("acorn" of "acorn guest house")."""
    if kind in (RESTAURANT, PLACE) and len(keys) > 1 and keys[0] == "restaurant":
        keys = keys[1:]
    for tail in _TAILS[kind]:
        if len(keys) > len(tail) and keys[-len(tail) :] == tail:
            return keys[: -len(tail)]
    return keys


def is_common(keys: Keys, kind: str) -> bool:
    """Whether a name consists of common words alone, so that it cannot be told from ordinary text."""
    return all(key in COMMON_WORDS and not (kind == PLACE and key == "cambridge") for key in keys)


def identifies(key: str) -> bool:
    """Whether one word of a name is rare enough to stand for it.

    Example:
        >>> identifies("lovell"), identifies("lodge")
        (True, False)
    """
    return len(key) > 2 and not key.isdigit() and key not in _UNSPECIFIC_WORDS


def is_type(keys: Keys) -> bool:
    """Whether a name slot names no entity but what kind of entity is meant, or the town.

    Example:
        >>> is_type(("college",)), is_type(("cambridge", "college")), is_type(("cambridge", "arts", "theatre"))
        (True, True, False)
    """
    return all(key in TYPE_WORDS or key in TOWN_WORDS for key in keys) or (len(keys) == 1 and keys[0] in SUBJECT_WORDS)


def is_part(keys: Keys, longer: Keys, kind: str) -> bool:
    """Whether a name is another way to say a longer one, provided that no third name contains it as well.

    All words that identify it are words of the longer one, and what else it says is in there too or only says what
    kind of house it is.

    Example:
        >>> is_part(("cafe", "jello", "museum"), ("cafe", "jello", "gallery"), ATTRACTION)
        True
        >>> is_part(("clare", "hall"), ("clare", "college"), ATTRACTION)
        False
    """
    rare = [key for key in keys if identifies(key)]
    if rare:
        return all(key in longer or (key in KIND_WORDS and not identifies(key)) for key in keys)
    if kind == PLACE or is_type(keys):
        return False
    return any(longer[head : head + len(keys)] == keys for head in range(len(longer) - len(keys) + 1))


@lru_cache(maxsize=200_000)
def alike(left: Keys, right: Keys) -> float:
    """Likeness of two sequences of words, 0 where a word has no counterpart."""
    whole = similarity("".join(left), "".join(right))
    if whole < LIKENESS:
        return 0.0
    if len(left) == len(right):
        if any(similarity(one, other) < LIKENESS_OF_WORDS for one, other in zip(left, right, strict=True)):
            return whole if sorted(left) == sorted(right) else 0.0
        return whole
    return whole if whole >= 0.92 else 0.0


@lru_cache(maxsize=200_000)
def same_entity(left: Keys, left_kind: str, right: Keys, right_kind: str) -> float:
    """How surely two names mean the same entity: 0 not, 1 surely.

    Equal words, or equal but for what kind of house it is, or a misspelling, or one a shorter way to say the other.
    """
    if left == right or "".join(left) == "".join(right) or sorted(left) == sorted(right):
        return 1.0
    left_core, right_core = core(left, left_kind), core(right, right_kind)
    if not is_common(left_core, left_kind) and (left_core == right_core or left_core == right or left == right_core):
        return 0.99
    if PLACE not in (left_kind, right_kind) and left_kind != right_kind:
        return 0.0
    if likeness := alike(left_core, right_core):
        return likeness if len("".join(left_core)) >= 5 and len("".join(right_core)) >= 5 else 0.0
    if left_kind == right_kind == PLACE:
        return 0.0
    short, long = sorted((left, right), key=len)
    shorter_kind = left_kind if short == left else right_kind
    if len(short) < len(long) and (len(short) > 1 or shorter_kind != PLACE):
        # A part of a name stands for it, where it says more than that it is some house; one word only as the first.
        heads = range(len(long) - len(short) + 1 if len(short) > 1 and not is_common(short, HOTEL) else 1)
        if (len(short) > 1 or not is_common(short, HOTEL)) and any(
            long[head : head + len(short)] == short for head in heads
        ):
            return 0.5
    return 0.0
