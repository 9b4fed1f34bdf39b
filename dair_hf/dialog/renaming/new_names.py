"""New names for the entities of one dialogue."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dair_hf.dialog.text.spans import NO_NAME, normalize_name

METHODS = ("scramble", "anagram", "gibberish", "swap")

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
_ARTICLE = re.compile(r"(?<![^\W_])([Aa])[Nn]?(\s+[\"'‘“(]?)$")
# Vowels that sound like "you" or "won" ("a european", "a ukrainian", "a one-way"), and what else begins with a vowel
# sound ("an hour", "an 18th").
_YOU_OR_WON = r"eu|ewe|once|one\b|u(?:k\b|kr|ganda|rugu|cla|ni(?![mn])|s[as]?\b|ser?s?\b|sual|topi)"
_VOWEL_SOUND = re.compile(rf"(?!{_YOU_OR_WON})[aeiou]|h(?:our|ono|ones|eir)|8|1[18](?!\d\b)")
_ONSETS = tuple("b br ch d dr f fl g gr h j k l m n p pl r s sk t".split())
_VOWELS = tuple("a e i o u ai ee oo ou".split())
_CODAS = ("", "", "", "b", "ck", "d", "g", "l", "m", "n", "p", "r", "sh", "st", "t", "x")


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


def match_case(surface: str, name: str) -> str:
    """Give `name` the case pattern of `surface`: lower, UPPER or Title Case (any word with an initial capital).

    The name is unchanged if `surface` has no cased letters or if the change of case would alter its letters.
    """
    if surface.islower():
        styled = name.lower()
    elif surface.isupper() and sum(character.isupper() for character in surface) > 1:
        styled = name.upper()
    elif any(word[0].isupper() for word in surface.split()):
        styled = "".join(word[:1].upper() + word[1:] for word in _GAPS.split(name.lower()))
    else:
        return name
    return styled if len(styled) == len(name) and styled.lower() == name.lower() else name


def fit_article(text: str, name: str) -> str:
    """Return the text before a name with its last word, if that is "a" or "an", as the name needs it."""
    n = "" if _VOWEL_SOUND.match(name.lower()) is None else "N" if len(name) > 1 and name.isupper() else "n"
    return _ARTICLE.sub(rf"\g<1>{n}\g<2>", text)


def scramble(name: str, generator: random.Random) -> str:
    """Shuffle the letters within each word, and the words. Digits, punctuation and white space keep their positions.

    Example:
        >>> new = scramble("curry garden", random.Random(0))
        >>> sorted("".join(sorted(word)) for word in new.split())
        ['adegnr', 'crruy']
    """
    pieces = _GAPS.split(name)
    indices = [index for index in range(0, len(pieces), 2) if pieces[index]]
    words = [anagram(pieces[index], generator) for index in indices]
    for index, word in zip(indices, _shuffled(words, generator), strict=True):
        pieces[index] = word
    return "".join(pieces)


def anagram(name: str, generator: random.Random) -> str:
    """Shuffle all letters of the name across its words. Digits, punctuation and white space keep their positions.

    Example:
        >>> sorted(anagram("cambridge", random.Random(0))) == sorted("cambridge")
        True
    """
    characters = list(name)
    indices = [index for index, character in enumerate(characters) if character.isalpha()]
    letters = _shuffled([characters[index] for index in indices], generator)
    for index, letter in zip(indices, letters, strict=True):
        characters[index] = letter
    return "".join(characters)


def gibberish(generator: random.Random) -> str:
    """Draw 3 to 11 made-up words, as the paper's released code does.

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

    A name depends on (method, seed, epoch, dialogue, entity). It is drawn again if it is a spelling of an entity of the
    dialogue, another new name or a reserved word. Entities are renamed in the order of their names, so that the order
    of `names` does not matter. A shuffled name keeps no word of the old one, unless every draw does.

    Args:
        names: Column `names` of a row; entries of equal name are one entity.
        method: One of `METHODS`.
        slots: Entities with an entry of one of these slots are renamed.
        bank: For `swap`: slot -> names to draw from.
        seed: Any integer.
        epoch: Any integer.
        dialogue_id: Id of the dialogue.
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
        if method == "gibberish":
            new = gibberish(generator)
        else:
            new = scramble(name, generator) if method == "scramble" else anagram(name, generator)
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


def _word(generator: random.Random) -> str:
    syllables = 1 + _below(3, generator)
    parts = (part[_below(len(part), generator)] for _ in range(syllables) for part in (_ONSETS, _VOWELS, _CODAS))
    return "".join(parts)
