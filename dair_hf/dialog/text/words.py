"""The text of a dialogue: tokenised text put together again, words with their places, how alike two strings are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

CLITICS = frozenset({"'s", "'m", "'d", "'re", "'ll", "'ve", "n't", "'t"})
_CLOSING = re.compile(r"[.,!?;:)]+")
_LETTERS = r"[^\W_](?:[^\W_]|[\u0300-\u036f])*"
_WORD = re.compile(rf"{_LETTERS}(?:['’`]{_LETTERS})*|&")
_APOSTROPHES = str.maketrans("", "", "'’`")
_SAME_WORD = {"&": ("and",), "st": ("saint",), "center": ("centre",), "guesthouse": ("guest", "house")}
_SAME_WORD |= {"guesthouses": ("guest", "house"), "bnb": ("b", "and", "b"), "theater": ("theatre",)}


class Words(NamedTuple):
    """The words of a text, column by column: word i is compared by `keys[i]` and is `text[starts[i]:ends[i]]`."""

    keys: list[str]
    starts: list[int]
    ends: list[int]


def history_to_text(history: Sequence[Mapping[str, str]]) -> str:
    """A history as the one string that a model reads.

    Args:
        history: Utterances as in a row, oldest first, each with `speaker` and `text`.

    Example:
        >>> history_to_text([{"speaker": "user", "text": "hi"}, {"speaker": "system", "text": "hello"}])
        '<user> hi <system> hello'
    """
    return " ".join(f"<{utterance['speaker']}> {utterance['text']}" for utterance in history)


def detokenise(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Put tokenised text together again, and say where each token came to stand.

    Clitics ("did n't", "john 's", "queens '"), closing punctuation and brackets join their neighbour; nothing else
    changes, so text that was never tokenised comes back as it is, its runs of white space made one space.

    Args:
        tokens: The tokens, without white space.

    Returns:
        The text, and for each token its (start, end) in it.

    Example:
        >>> detokenise("I did n't see saint john 's .".split())[0]
        "I didn't see saint john's."
    """
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    length = 0
    previous = ""
    for token in tokens:
        glued = not previous or previous == "(" or _joins(previous, token)
        if not glued:
            pieces.append(" ")
            length += 1
        pieces.append(token)
        places.append((length, length + len(token)))
        length += len(token)
        previous = token
    return "".join(pieces), places


@lru_cache(maxsize=100_000)
def _joins(previous: str, token: str) -> bool:
    if token.lower() in CLITICS:
        return previous[-1].isalnum()
    if token == "'":
        return previous[-1] in "sS"
    return _CLOSING.fullmatch(token) is not None


@lru_cache(maxsize=100_000)
def word_keys(word: str) -> tuple[str, ...]:
    """What a word is compared by: lower-case, no apostrophes, no accents, no final "s", spelling variants made one.

    Example:
        >>> word_keys("John's"), word_keys("guesthouse"), word_keys("Café")
        (('john',), ('guest', 'house'), ('cafe',))
    """
    if not word.isascii():
        word = "".join(part for part in unicodedata.normalize("NFKD", word) if not unicodedata.combining(part))
    plain = word.lower().translate(_APOSTROPHES)
    keys = _SAME_WORD.get(plain, (plain,))
    return tuple(key[:-1] if len(key) > 3 and key.endswith("s") else key for key in keys)


def words(text: str) -> Words:
    """The words of a text with their places; punctuation is passed over.

    A word that is compared as two ("guesthouse") stands there twice, both times with the place of the whole.

    Example:
        >>> words("St John's!")
        Words(keys=['saint', 'john'], starts=[0, 3], ends=[2, 9])
    """
    found = Words([], [], [])
    for match in _WORD.finditer(text):
        start, end = match.span()
        for key in word_keys(match[0]):
            found.keys.append(key)
            found.starts.append(start)
            found.ends.append(end)
    return found


@lru_cache(maxsize=100_000)
def similarity(left: str, right: str) -> float:
    """How alike two strings are, in [0, 1]: twice the longest common subsequence over the sum of the lengths.

    This is rapidfuzz's `fuzz.ratio` / 100. The subsequence is found bit by bit in parallel (Hyyrö 2004) in Python's
    integers, so that the linking of names does not depend on whether an optional package is installed.

    Example:
        >>> round(similarity("wartworth", "warkworth"), 3)
        0.889
    """
    if not left or not right:
        return float(left == right)
    places: dict[str, int] = {}
    for index, character in enumerate(left):
        places[character] = places.get(character, 0) | 1 << index
    mask = (1 << len(left)) - 1
    open_bits = mask
    for character in right:
        matched = open_bits & places.get(character, 0)
        open_bits = ((open_bits + matched) | (open_bits - matched)) & mask
    common = len(left) - open_bits.bit_count()
    return 2 * common / (len(left) + len(right))
