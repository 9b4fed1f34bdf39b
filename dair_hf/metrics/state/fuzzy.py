"""Fuzzy comparison of values with the ratios of fuzzywuzzy 0.18 and python-Levenshtein, computed by rapidfuzz.

The ratios of `rapidfuzz.fuzz` would give other results than the published evaluators. `partial_ratio` also tries
substrings that are shorter than the shorter string: it gives 96 for "ian hong house" and "lan hong house", where
fuzzywuzzy gives 93, and mwzeval accepts whatever is above 95. `ratio` differs by rounding errors, which matter at .5.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from dair_hf.errors import DataError

_LATIN_1 = dict.fromkeys(range(128, 256))


def fuzzy_comparison(match: str) -> Callable[[str, str], float]:
    """Return a function that compares two values with a score in [0, 1]."""
    try:
        from rapidfuzz import distance
    except ImportError as error:
        raise DataError("fuzzy matching needs rapidfuzz, which is not installed: pip install rapidfuzz") from error

    def percent(value: str, other: str) -> int:
        length = len(value) + len(other)
        return round(100 * (distance.Indel.similarity(value, other) / length))

    @functools.lru_cache(maxsize=1 << 16)
    def partial95(value: str, other: str) -> float:
        # The shorter string against all substrings of its length that start where a block of common characters puts it.
        shorter, longer = sorted((value, other), key=len)
        if not shorter:
            return float(value == other)
        blocks = distance.Levenshtein.opcodes(shorter, longer).as_matching_blocks()
        starts = {max(0, block.b - block.a) for block in blocks}
        return float(max(percent(shorter, longer[start : start + len(shorter)]) for start in starts) > 95)

    @functools.lru_cache(maxsize=1 << 16)
    def token_sort(value: str, other: str) -> float:
        value, other = _sorted_words(value), _sorted_words(other)
        if not value or not other:
            return float(value == other)
        return percent(value, other) / 100.0

    return partial95 if match == "partial95" else token_sort


def _sorted_words(value: str) -> str:
    """Sort the words of a value as fuzzywuzzy does: characters 128 to 255 are deleted, punctuation becomes spaces."""
    return " ".join(sorted(re.sub(r"\W", " ", value.translate(_LATIN_1)).lower().split()))
