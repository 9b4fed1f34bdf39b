"""New names for the entities of one dialogue: how a name is drawn, and which names must not be drawn."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

METHODS = ("scramble", "anagram", "gibberish", "swap")

# What a state can hold in a name slot without naming anything. Never renamed.
NO_NAME = frozenset(
    {"", "?", "none", "not mentioned", "dontcare", "don't care", "do n't care", "dont care", "do not care"}
)
# Values of other slots. A row knows only the state up to its own turn, but its names must be those of all turns of the
# dialogue, so these are excluded whatever the state holds.
_CATEGORIES = frozenset(
    "north south east west centre center cheap moderate expensive yes no free any hotel guesthouse restaurant "
    "attraction taxi train monday tuesday wednesday thursday friday saturday sunday one two three four five".split()
)
RESERVED = NO_NAME | _CATEGORIES

# A name that can change is drawn as it was with chance 1/2 at most (two letters): so many draws do not all fail.
_DRAWS = 64
_GAPS = re.compile(r"(\s+)")
_ONSETS = (
    "b",
    "br",
    "ch",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "sk",
    "t",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ee", "oo", "ou")
_CODAS = ("", "", "", "b", "ck", "d", "g", "l", "m", "n", "p", "r", "sh", "st", "t", "x")


class Renaming(NamedTuple):
    """The new names of one dialogue.

    Attributes:
        new_names: Key of an entity (its normalised canonical name) -> its new name. Entities that stay are absent.
        owners: Normalised spelling -> keys of the entities spelled so, in the order of the dialogue's names.
        slots: Key -> the name slots that the entity was listed with.
    """

    new_names: dict[str, str]
    owners: dict[str, list[str]]
    slots: dict[str, set[str]]

    def owner(self, value: str, slot: str) -> str | None:
        """The entity that a value of `slot` refers to: by canonical name, else one listed with this slot, else any."""
        spelling = normalise(value)
        keys = self.owners.get(spelling)
        if not keys or spelling in NO_NAME:
            return None
        if spelling in keys:
            return spelling
        return next((key for key in keys if slot in self.slots[key]), keys[0])


@lru_cache(maxsize=20_000)
def normalise(text: str) -> str:
    """Reduce a spelling to what tells names apart: case folded, runs of whitespace as one space, none at the ends.

    Example:
        >>> normalise(" The  Warkworth House")
        'the warkworth house'
    """
    return " ".join(text.split()).casefold()


def match_case(surface: str, name: str) -> str:
    """Give `name` the case pattern of `surface`: lower, UPPER or Title Case (any word with an initial capital).

    A surface without cased letters, and a name whose letters do not survive the change of case, leave `name` as it is.

    Example:
        >>> match_case("the Warkworth House", "hhrwu easrtokow"), match_case("NANDOS", "dsonan")
        ('Hhrwu Easrtokow', 'DSONAN')
    """
    if surface.islower():
        styled = name.lower()
    elif surface.isupper() and sum(character.isupper() for character in surface) > 1:
        styled = name.upper()
    elif any(word[0].isupper() for word in surface.split()):
        styled = "".join(word[:1].upper() + word[1:] for word in _GAPS.split(name.lower()))
    else:
        return name
    return styled if styled.casefold() == name.casefold() else name


def scramble(name: str, generator: random.Random) -> str:
    """Shuffle the letters within each word, and the order of the words. Digits, marks and gaps keep their places.

    Example:
        >>> new = scramble("curry garden", random.Random(0))
        >>> sorted("".join(sorted(word)) for word in new.split())
        ['adegnr', 'crruy']
    """
    pieces = _GAPS.split(name)
    places = [index for index in range(0, len(pieces), 2) if pieces[index]]
    words = [anagram(pieces[index], generator) for index in places]
    for index, word in zip(places, _shuffled(words, generator), strict=True):
        pieces[index] = word
    return "".join(pieces)


def anagram(name: str, generator: random.Random) -> str:
    """Shuffle all letters of the name across its words. Spaces, digits and marks keep their places.

    Example:
        >>> sorted(anagram("cambridge", random.Random(0))) == sorted("cambridge")
        True
    """
    characters = list(name)
    places = [index for index, character in enumerate(characters) if character.isalpha()]
    letters = _shuffled([characters[index] for index in places], generator)
    for index, letter in zip(places, letters, strict=True):
        characters[index] = letter
    return "".join(characters)


def gibberish(generator: random.Random) -> str:
    """Draw 3 to 11 made-up words, whatever the name was: what the paper's released code does.

    Example:
        >>> 3 <= len(gibberish(random.Random(0)).split()) <= 11
        True
    """
    return " ".join(_word(generator) for _ in range(3 + _below(9, generator)))


def rename(
    names: Sequence[Mapping[str, Any]],
    *,
    method: str,
    slots: frozenset[str],
    bank: Mapping[str, Sequence[str]] | None,
    seed: int,
    epoch: int,
    dialogue_id: str,
) -> Renaming:
    """Draw the new names of one dialogue.

    Every draw depends on (method, seed, epoch, dialogue, entity) and on nothing else; only where it would collide with
    a spelling of an entity of the dialogue, with another new name or with a reserved word it is drawn again. The
    entities are served in the order of their names, so the order in which a reader lists them does not matter. A
    shuffled name keeps no word of the old one, unless every order drawn does.

    Args:
        names: The row's `names`: dicts with `slot`, `name` and `forms`; entries of equal name are one entity.
        method: One of `METHODS`.
        slots: An entity is renamed if one of its entries has one of these slots.
        bank: For `swap`: slot -> names to draw from.
        seed: Any integer.
        epoch: Any integer; another one gives other names.
        dialogue_id: The dialogue's id.

    Returns:
        The names, with the tables to look them up by spelling.
    """
    owners: dict[str, list[str]] = {}
    listed: dict[str, set[str]] = {}
    canonical: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for entry in names:
        key = normalise(entry["name"])
        canonical.setdefault(key, entry["name"])
        listed.setdefault(key, set()).add(entry["slot"])
        if entry["slot"] in slots and key not in NO_NAME:
            chosen[key] = min(entry["slot"], chosen.get(key, entry["slot"]))
        for form in (entry["name"], *entry["forms"]):
            keys = owners.setdefault(normalise(form), [])
            if key not in keys:
                keys.append(key)
    taken = set(owners) | RESERVED
    new_names: dict[str, str] = {}
    for key in sorted(chosen):
        generator = _generator(method, seed, epoch, dialogue_id, key)
        candidates = bank[chosen[key]] if bank is not None else ()
        new = _draw(method, canonical[key], candidates, taken, generator)
        if new is not None:
            new_names[key] = new
            taken.add(normalise(new))
    return Renaming(new_names, owners, listed)


def _draw(method: str, name: str, candidates: Sequence[str], taken: set[str], generator: random.Random) -> str | None:
    if method == "swap":
        first = _below(len(candidates), generator)
        ring = (candidates[(first + step) % len(candidates)] for step in range(len(candidates)))
        return next((candidate for candidate in ring if normalise(candidate) not in taken), None)
    second_best = None
    for _ in range(_DRAWS):
        if method == "gibberish":
            new = gibberish(generator)
        else:
            new = scramble(name, generator) if method == "scramble" else anagram(name, generator)
        if normalise(new) in taken:
            continue
        # "rice oshue" would still tell that it was the rice house.
        if not _changeable(name).intersection(normalise(new).split()):
            return new
        second_best = second_best or new
    return second_best


@lru_cache(maxsize=20_000)
def _changeable(name: str) -> frozenset[str]:
    """The words of a name that have another order of letters."""
    return frozenset(word for word in normalise(name).split() if len({*filter(str.isalpha, word)}) > 1)


def _generator(method: str, seed: int, epoch: int, dialogue_id: str, key: str) -> random.Random:
    # Not hash(): it differs between processes. Lengths keep ("a", "bc") and ("ab", "c") apart.
    parts = (method, str(seed), str(epoch), dialogue_id, key)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return random.Random(int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "big"))


def _below(bound: int, generator: random.Random) -> int:
    # random() is the one method whose sequence Python promises to keep over its versions.
    return int(generator.random() * bound)


def _shuffled(items: list[str], generator: random.Random) -> list[str]:
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        other = _below(last + 1, generator)
        items[last], items[other] = items[other], items[last]
    return items


def _word(generator: random.Random) -> str:
    syllables = 1 + _below(3, generator)
    parts = (part[_below(len(part), generator)] for _ in range(syllables) for part in (_ONSETS, _VOWELS, _CODAS))
    return "".join(parts)
