"""Numbers in texts, their spelling, and other numbers in the same spelling."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

# A number on its own: no part of a word, a decimal, a time, a date or an ordinal. "1/2" is two numbers, which stay.
_NUMBER = re.compile(
    r"(?<![\w.,:])(?<!\d[-/])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?!\d|\w*\d|st\b|nd\b|rd\b|th\b|[:.,]\d|-\d+-\d)"
)
_FRACTION = re.compile(r"\d\s*/\s*\d")
WORDS = {
    "one": 1, "once": 1, "single": 1, "two": 2, "twice": 2, "double": 2, "doubles": 2, "doubled": 2, "half": 2,
    "halves": 2, "halved": 2, "pair": 2, "pairs": 2, "couple": 2, "both": 2, "three": 3, "thrice": 3, "triple": 3,
    "tripled": 3, "third": 3, "thirds": 3, "four": 4, "quarter": 4, "quarters": 4, "fourth": 4, "fourths": 4,
    "quadruple": 4, "five": 5, "fifth": 5, "fifths": 5, "six": 6, "sixth": 6, "seven": 7, "week": 7, "weeks": 7,
    "weekly": 7, "eight": 8, "eighth": 8, "nine": 9, "ten": 10, "tenth": 10, "eleven": 11, "twelve": 12, "dozen": 12,
    "dozens": 12, "year": 12, "years": 12, "yearly": 12, "annual": 12, "foot": 12, "feet": 12, "twenty": 20, "day": 24,
    "days": 24, "daily": 24, "thirty": 30, "month": 30, "months": 30, "fifty": 50, "hour": 60, "hours": 60,
    "minute": 60, "minutes": 60, "percent": 100, "cent": 100, "cents": 100, "meter": 100, "meters": 100, "hundred": 100,
    "%": 100,
}  # fmt: skip
_WORD = re.compile(r"[a-z]+|%")


class SpelledNumber(NamedTuple):
    """A number in a text, from `start` to before `end`."""

    start: int
    end: int
    value: Fraction
    decimals: int
    has_commas: bool
    is_fixed: bool = False  # part of a fraction such as 1/2, which stays

    def draw(self, generator: random.Random) -> Fraction:
        """Return another number with as many digits before and after the decimal point, each equally likely.

        A number of one digit is 1 to 9, one below 1 is at least its smallest unit, and 0 stays 0.
        """
        unit, whole = 10**self.decimals, int(self.value)
        if self.value == 0:
            return self.value
        low = 10 ** (len(str(whole)) - 1) * unit if whole else 1
        high = 10 ** len(str(whole)) * unit - 1 if whole else unit - 1
        drawn = generator.randint(low, high)
        if self.decimals and drawn % 10 == 0:
            drawn += generator.randint(1, 9)  # or its last digit would be dropped
        return Fraction(drawn, unit)

    def spell(self, value: Fraction) -> str | None:
        """Return a value in this spelling; None if it needs more decimals, or is negative."""
        scaled = value * 10**self.decimals
        if value < 0 or scaled.denominator != 1:
            return None
        whole, rest = divmod(int(scaled), 10**self.decimals)
        text = f"{whole:,}" if self.has_commas else str(whole)
        return f"{text}.{rest:0{self.decimals}d}" if self.decimals else text


def find_numbers(text: str) -> list[SpelledNumber]:
    """Return the numbers of a text in their order, without those in words, ordinals, times, dates and versions.

    Example:
        >>> [str(number.value) for number in find_numbers("At 3:30 she pays $1,200.50 for 12 pens of the 2nd kind, B2")]
        ['2401/2', '12']
    """
    fractions = [match.span() for match in _FRACTION.finditer(text)]
    found = []
    for match in _NUMBER.finditer(text):
        digits, decimals = match[1].replace(",", ""), match[2] or ""
        is_fixed = any(begin < match.end() and match.start() < end for begin, end in fractions)
        value = Fraction(digits + decimals)
        found.append(
            SpelledNumber(match.start(), match.end(), value, max(0, len(decimals) - 1), "," in match[1], is_fixed)
        )
    return found


def values_of_words(text: str) -> set[Fraction]:
    """Return the numbers that words stand for, or may stand for in a calculation: 2 for "twice", 60 for "hours"."""
    return {Fraction(WORDS[word]) for word in _WORD.findall(text.lower()) if word in WORDS}


def rewrite(text: str, changes: Sequence[tuple[SpelledNumber, Fraction]]) -> str:
    """Return a text with other numbers, given in their order, each spelled as the old one.

    Example:
        >>> rewrite("$1,200 for 3", [(find_numbers("$1,200 for 3")[0], Fraction(3750))])
        '$3,750 for 3'
    """
    parts, at = [], 0
    for spelled, value in changes:
        parts += [text[at : spelled.start], str(spelled.spell(value))]
        at = spelled.end
    return "".join([*parts, text[at:]])
