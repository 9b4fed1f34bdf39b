"""Normalization of answers as in the official evaluation of VQA.

The rules follow the evaluation code that is published with version 2 of the data (Antol et al., "VQA: Visual
Question Answering", 2015). Apostrophes and colons do not count as punctuation there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

_ARTICLES = frozenset({"a", "an", "the"})
_NUMBER_WORDS: Mapping[str, str] = MappingProxyType(
    {"none": "0"}
    | {word: str(n) for n, word in enumerate("zero one two three four five six seven eight nine ten".split())}
)
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'

# Words whose missing apostrophe is restored if exactly one is missing: "dont", "couldnt've", "couldn'tve".
_CONTRACTED = """
    ain't aren't can't couldn't couldn't've could've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've shouldn't shouldn't've should've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've weren't we've what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't wouldn't
    wouldn't've would've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""
_DIGITS_AROUND_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
# The published code passes a flag with the value 32 to `re.sub` in place of the maximum number of replacements.
_MAX_PERIODS = 32


def _without_one_apostrophe(word: str) -> list[str]:
    return [word[:i] + word[i + 1 :] for i, character in enumerate(word) if character == "'"]


_CONTRACTIONS: Mapping[str, str] = MappingProxyType(
    {broken: word for word in _CONTRACTED.split() for broken in _without_one_apostrophe(word)}
    | {"somebody'd": "somebodyd"}  # the only published entry that removes an apostrophe
)


def strip_spaces(answer: str) -> str:
    r"""Replace line ends and tabs by spaces and remove the spaces around an answer, as for undisputed answers.

    Example:
        >>> strip_spaces(" Two\tdogs\n")
        'Two dogs'
    """
    return answer.replace("\n", " ").replace("\t", " ").strip()


def _replace_punctuation(text: str) -> str:
    """Replace marks by spaces, or remove them next to a space or with a comma between digits; remove periods."""
    joins = _DIGITS_AROUND_COMMA.search(text) is not None
    replaced = {
        ord(mark): "" if joins or f"{mark} " in text or f" {mark}" in text else " "
        for mark in _PUNCTUATION
        if mark in text
    }
    return _PERIOD.sub("", text.translate(replaced), count=_MAX_PERIODS)


def _normalize_words(text: str) -> str:
    """Lower-case a text, write number words up to ten as digits, remove articles and restore apostrophes."""
    words = (_NUMBER_WORDS.get(word, word) for word in text.lower().split())
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


@functools.lru_cache(maxsize=1 << 18)  # VQA v2 has about 200,000 distinct answers
def normalize_answer(answer: str) -> str:
    """Normalize an answer as the official evaluation does if annotators disagree.

    The result is empty for an answer that consists of articles and punctuation.

    Example:
        >>> normalize_answer("A T-shirt."), normalize_answer("ten o'clock"), normalize_answer("1,500")
        ('t shirt', "10 o'clock", '1500')
    """
    return _normalize_words(_replace_punctuation(strip_spaces(answer)))
