"""Spans of names in text: normalized spelling, word boundaries and overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

# Values of a name slot that name nothing.
NO_NAME = frozenset(
    {"", "?", "none", "not mentioned", "dontcare", "don't care", "do n't care", "dont care", "do not care"}
)

# Values that dialogues say in other words ("free parking").
UNSPOKEN = NO_NAME | {"yes", "no"}
# "not(x)" is how some states of MultiWOZ 2.1 exclude x.
_EXCLUSION = re.compile(r"not\((.+)\)")

Span = TypeVar("Span", bound=tuple[Any, ...])


@lru_cache(maxsize=50_000)
def normalize_name(name: str) -> str:
    """Fold case and reduce white space to single spaces.

    Example:
        >>> normalize_name(" The  Warkworth House")
        'the warkworth house'
    """
    return " ".join(name.split()).casefold()


def excluded_value(value: str) -> str | None:
    """Return x of a value "not(x)", which excludes x; None for any other value.

    Example:
        >>> excluded_value("not(acorn house)"), excluded_value("acorn house")
        ('acorn house', None)
    """
    match = _EXCLUSION.fullmatch(value)
    return None if match is None else match[1]


def on_word_boundary(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is not empty and cuts no word (run of letters and digits).

    Example:
        >>> on_word_boundary("the hotels", 4, 9), on_word_boundary("the hotel.", 4, 9)
        (False, True)
    """
    if not 0 <= start < end <= len(text):
        return False
    if start > 0 and text[start - 1].isalnum() and text[start].isalnum():
        return False
    return not (end < len(text) and text[end - 1].isalnum() and text[end].isalnum())


def contains_name(text: str, name: str) -> bool:
    """Return whether `name` occurs in `text` as whole words.

    Example:
        >>> contains_name("the cowboy", "cow"), contains_name("the cow.", "cow")
        (False, True)
    """
    start = text.find(name)
    while start >= 0:
        if on_word_boundary(text, start, start + len(name)):
            return True
        start = text.find(name, start + 1)
    return False


def without_overlap(spans: Iterable[Span]) -> list[Span]:
    """Keep the longest of spans that overlap; of equally long ones the first.

    Args:
        spans: Tuples that begin with start and end.

    Returns:
        The spans that remain, sorted by start.

    Example:
        >>> without_overlap([(0, 4, "oak"), (0, 9, "oak house"), (12, 15, "elm")])
        [(0, 9, 'oak house'), (12, 15, 'elm')]
    """
    remaining: list[Span] = []
    for span in sorted(spans, key=lambda span: span[0] - span[1]):
        if all(span[1] <= other[0] or other[1] <= span[0] for other in remaining):
            remaining.append(span)
    return sorted(remaining, key=lambda span: span[0])
