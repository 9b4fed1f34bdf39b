"""Words in which two texts differ."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

CONTEXT = 30  # words shown on each side of a difference
MAX_COMPARISONS = 25_000_000  # product of the numbers of words that are compared one by one


class Segment(NamedTuple):
    """Part of a text."""

    text: str
    kind: str = "same"


def _words_of(text: str) -> list[tuple[int, int]]:
    """Return the words of a text as spans `(start, end)` in characters.

    A word is a run of letters, digits and marks. Punctuation marks, symbols, and the wide characters of scripts
    without spaces (Chinese, Japanese) are words of their own.
    """
    spans: list[tuple[int, int]] = []
    is_open = False
    for at, character in enumerate(text):
        kind = unicodedata.category(character)
        if kind[0] == "Z" or character.isspace():
            is_open = False
        elif kind[0] == "M" and spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], at + 1)  # a mark belongs to the character before it
        elif kind[0] in "PS" or unicodedata.east_asian_width(character) in "WF":
            spans.append((at, at + 1))
            is_open = False
        elif is_open:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
            is_open = True
    return spans


def mark_differences(original: str, augmented: str, context: int = CONTEXT) -> tuple[list[Segment], list[Segment]]:
    """Mark the words in which two texts differ, and shorten what is the same."""
    texts, spans = (original, augmented), (_words_of(original), _words_of(augmented))
    words = [[text[start:end] for start, end in of_text] for text, of_text in zip(texts, spans, strict=True)]
    changed: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for ranges in _differences(*words):
        # An insertion marks both texts: the other one at a place between two words.
        changed[0].append(ranges[:2])
        changed[1].append(ranges[2:])
    left, right = (_segments(*parts, context) for parts in zip(texts, spans, changed, strict=True))
    return left, right


def _differences(left: list[str], right: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield ranges of words `(start, end)` of both texts that differ."""
    shortest = min(len(left), len(right))
    head = next((at for at in range(shortest) if left[at] != right[at]), shortest)
    tail = next((at for at in range(shortest - head) if left[-1 - at] != right[-1 - at]), shortest - head)
    inner = left[head : len(left) - tail], right[head : len(right) - tail]
    if len(inner[0]) * len(inner[1]) > MAX_COMPARISONS:
        yield head, len(left) - tail, head, len(right) - tail
        return
    for tag, a, b, c, d in SequenceMatcher(None, *inner, autojunk=False).get_opcodes():
        if tag != "equal":
            yield head + a, head + b, head + c, head + d


def _segments(text: str, words: list[tuple[int, int]], changed: list[tuple[int, int]], context: int) -> list[Segment]:
    """Return the segments of a text with ranges of changed words; an empty range is where the other text has more."""
    segments: list[Segment] = []
    done, at = 0, 0  # words and characters that have a segment

    def add_same(until: int, end: int, before: int, after: int) -> None:
        """Add the words up to `until`, which end at a character: if many, only some `before` and `after` a gap."""
        omitted = until - done - before - after
        if omitted < 2:
            segments.append(Segment(text[at:end]))
            return
        if before:
            segments.append(Segment(text[at : words[done + before - 1][1]]))
        segments.append(Segment(f"{omitted} words", "omitted"))
        if after:
            segments.append(Segment(text[words[until - after][0] : end]))

    for number, (first, last) in enumerate(changed):
        is_empty = first == last
        start = (words[first - 1][1] if first else 0) if is_empty else words[first][0]
        add_same(first, start, context if number else 0, context)
        done, at = last, start
        if not is_empty:
            at = words[last - 1][1]
            segments.append(Segment(text[start:at], "changed"))
    add_same(len(words), len(text), context, 0)
    return [segment for segment in segments if segment.text]
