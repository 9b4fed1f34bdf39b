"""New names for the entities of one dialogue."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dair_hf.dialog.rows import NO_NAME, normalize_name

# Values of other slots. New names must suit all turns of the dialogue, and a row has the states up to its own turn
# only, so these are always excluded.
_CATEGORIES = frozenset(
    "north south east west centre center cheap moderate expensive yes no free any hotel guesthouse restaurant "
    "attraction taxi train monday tuesday wednesday thursday friday saturday sunday one two three four five".split()
)
RESERVED = NO_NAME | _CATEGORIES

# A shuffle leaves a name unchanged with probability 1/2 at most (two letters), so that not all draws fail.
_DRAWS = 64
_GAPS = re.compile(r"(\s+)")


class Renaming(NamedTuple):
    """New names of one dialogue."""

    new_names: dict[str, str]
    owners: dict[str, list[str]]
    slots: dict[str, set[str]]

    def owner(self, value: str, slot: str) -> str | None:
        """Return the key of the entity that a value of `slot` means: by name, else by slot, else the first."""
        spelling = normalize_name(value)
        keys = self.owners.get(spelling)
        if not keys or spelling in NO_NAME:
            return None
        if spelling in keys:
            return spelling
        return next((key for key in keys if slot in self.slots[key]), keys[0])


def _scramble(name: str, generator: random.Random) -> str:
    """Shuffle the letters within each word, and the words. Digits, punctuation and white space keep their positions."""
    pieces = _GAPS.split(name)
    indices = [index for index in range(0, len(pieces), 2) if pieces[index]]
    words = [_anagram(pieces[index], generator) for index in indices]
    for index, word in zip(indices, _shuffled(words, generator), strict=True):
        pieces[index] = word
    return "".join(pieces)


def _anagram(name: str, generator: random.Random) -> str:
    """Shuffle all letters of the name across its words. Digits, punctuation and white space keep their positions."""
    characters = list(name)
    indices = [index for index, character in enumerate(characters) if character.isalpha()]
    letters = _shuffled([characters[index] for index in indices], generator)
    for index, letter in zip(indices, letters, strict=True):
        characters[index] = letter
    return "".join(characters)


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

    A name depends on (method, seed, epoch, dialogue, entity). It is drawn again if it is a spelling of an entity of the
    dialogue, another new name or a reserved word. Entities are renamed in the order of their names, so that the order
    of `names` (the column of a row) does not matter. A shuffled name keeps no word of the old one, unless every draw
    does. Entities with an entry of one of `slots` are renamed.
    """
    owners: dict[str, list[str]] = {}
    listed: dict[str, set[str]] = {}
    canonical: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for entry in names:
        key = normalize_name(entry["name"])
        canonical.setdefault(key, entry["name"])
        listed.setdefault(key, set()).add(entry["slot"])
        if entry["slot"] in slots and key not in NO_NAME:
            chosen[key] = min(entry["slot"], chosen.get(key, entry["slot"]))
        for form in (entry["name"], *entry["forms"]):
            keys = owners.setdefault(normalize_name(form), [])
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
            taken.add(normalize_name(new))
    return Renaming(new_names, owners, listed)


def _draw(method: str, name: str, candidates: Sequence[str], taken: set[str], generator: random.Random) -> str | None:
    if method == "swap":
        first = _below(len(candidates), generator)
        ring = (candidates[(first + step) % len(candidates)] for step in range(len(candidates)))
        return next((candidate for candidate in ring if normalize_name(candidate) not in taken), None)
    second_best = None
    for _ in range(_DRAWS):
        new = _scramble(name, generator)
        if normalize_name(new) in taken:
            continue
        # "rice oshue" would still show that it was the rice house.
        if not _changeable(name).intersection(normalize_name(new).split()):
            return new
        second_best = second_best or new
    return second_best


@lru_cache(maxsize=20_000)
def _changeable(name: str) -> frozenset[str]:
    """Return the words of a name whose letters have more than one order."""
    return frozenset(word for word in normalize_name(name).split() if len({*filter(str.isalpha, word)}) > 1)


def _generator(method: str, seed: int, epoch: int, dialogue_id: str, key: str) -> random.Random:
    # hash() differs between processes. The lengths distinguish ("a", "bc") from ("ab", "c").
    parts = (method, str(seed), str(epoch), dialogue_id, key)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return random.Random(int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "big"))


def _below(bound: int, generator: random.Random) -> int:
    # random() is the only method whose sequence is the same in all versions of Python.
    return int(generator.random() * bound)


def _shuffled(items: list[str], generator: random.Random) -> list[str]:
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        other = _below(last + 1, generator)
        items[last], items[other] = items[other], items[last]
    return items
