"""Words of a text with their positions, normalized for comparison, and the similarity of two strings."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

_LETTERS = r"[^\W_](?:[^\W_]|[\u0300-\u036f])*"
_WORD = re.compile(rf"{_LETTERS}(?:['’`]{_LETTERS})*|&")
_APOSTROPHES = str.maketrans("", "", "'’`")
_SAME_WORD = {"&": ("and",), "st": ("saint",), "center": ("centre",), "guesthouse": ("guest", "house")}
_SAME_WORD |= {"guesthouses": ("guest", "house"), "bnb": ("b", "and", "b"), "theater": ("theatre",)}


class Words(NamedTuple):
    """Words of a text: word i is `text[starts[i]:ends[i]]` and is compared by `keys[i]`."""

    keys: list[str]
    starts: list[int]
    ends: list[int]


@lru_cache(maxsize=100_000)
def word_keys(word: str) -> tuple[str, ...]:
    """Normalize a word for comparison: folded case, no apostrophes, accents or final "s", one spelling for variants."""
    if not word.isascii():
        word = "".join(part for part in unicodedata.normalize("NFKD", word) if not unicodedata.combining(part))
    plain = word.casefold().translate(_APOSTROPHES)
    keys = _SAME_WORD.get(plain, (plain,))
    return tuple(key[:-1] if len(key) > 3 and key.endswith("s") else key for key in keys)


def words(text: str) -> Words:
    """Find the words of a text, without punctuation.

    A word that is compared as two ("guesthouse") is listed twice, both times with the position of the whole word.

    Example:
        >>> words("St John's!")
        Words(keys=['saint', 'john'], starts=[0, 3], ends=[2, 9])
    """
    result = Words([], [], [])
    for match in _WORD.finditer(text):
        start, end = match.span()
        for key in word_keys(match[0]):
            result.keys.append(key)
            result.starts.append(start)
            result.ends.append(end)
    return result


@lru_cache(maxsize=100_000)
def similarity(left: str, right: str) -> float:
    """Return the similarity of two strings in [0, 1]: twice their longest common subsequence over their total length.

    Equals `fuzz.ratio` / 100 of rapidfuzz, which is optional, so that rows do not depend on what is installed. The
    subsequence is computed bit-parallel (Hyyrö 2004) in Python integers.

    Example:
        >>> round(similarity("wartworth", "warkworth"), 3)
        0.889
    """
    if not left or not right:
        return float(left == right)
    positions: dict[str, int] = {}
    for index, character in enumerate(left):
        positions[character] = positions.get(character, 0) | 1 << index
    mask = (1 << len(left)) - 1
    open_bits = mask
    for character in right:
        matched = open_bits & positions.get(character, 0)
        open_bits = ((open_bits + matched) | (open_bits - matched)) & mask
    common = len(left) - open_bits.bit_count()
    return 2 * common / (len(left) + len(right))
