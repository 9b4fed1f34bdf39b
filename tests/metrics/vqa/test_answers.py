"""Normalisation of answers: rules worked out by hand, and what the published code makes of the same texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dair_hf.metrics.vqa.answers import (
    CONTRACTIONS,
    NUMBER_WORDS,
    normalize_answer,
    normalize_words,
    replace_punctuation,
    strip_spaces,
)

# (text, what the evaluation code that is published with version 2 of the data makes of it), run once over all words of
# its tables and over texts that try its rules at their edges.
PINNED = json.loads(Path(__file__).with_name("pinned_vqa.json").read_text(encoding="utf-8"))["normalized"]


def test_the_published_results() -> None:
    assert len(PINNED) > 200
    assert [[text, normalize_answer(text)] for text, _ in PINNED] == PINNED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a dog", "dog"),
        ("An Apple", "apple"),
        ("the a an", ""),
        ("theory of ants", "theory of ants"),  # articles are whole words
        ("A's", "a's"),
    ],
)
def test_articles(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def test_number_words() -> None:
    words = "zero one two three four five six seven eight nine ten".split()
    assert [normalize_answer(word) for word in words] == [str(number) for number in range(11)]
    assert [normalize_answer(word.upper()) for word in words] == [str(number) for number in range(11)]
    assert normalize_answer("none") == "0"
    assert normalize_answer("eleven") == "eleven"
    assert normalize_answer("someone") == "someone"
    assert normalize_answer("forty-two") == "forty 2"
    assert len(NUMBER_WORDS) == 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dont know", "don't know"),
        ("Im", "im"),  # "Im" is in the published table, but words come to it in lower case
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("couldntve", "couldntve"),  # two are missing
        ("don't", "don't"),
        ("lets", "lets"),
        ("shes", "shes"),
        ("somebody'd", "somebodyd"),
        ("twas", "'twas"),
    ],
)
def test_contractions(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def test_contractions_lack_one_apostrophe() -> None:
    for broken, word in CONTRACTIONS.items():
        if broken == "somebody'd":
            continue
        assert broken.replace("'", "") == word.replace("'", "")
        assert broken.count("'") == word.count("'") - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red/white", "red white"),
        ("red / white", "red  white"),  # beside a space: dropped; the spaces are joined with the words
        ("black-and-white", "black and white"),
        ("black-and -white", "blackand white"),  # one of them stands beside a space: both are dropped
        ("yes, sir", "yes sir"),
        ("what?!", "what  "),
        ("man's", "man's"),
        ("2:30", "2:30"),
        ("50% *#$&", "50% *#$&"),  # no marks of the list
    ],
)
def test_punctuation(text: str, expected: str) -> None:
    assert replace_punctuation(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,000", "1000"),
        ("10,000,000", "10000000"),
        ("1,000-2,000/x", "10002000x"),  # a comma between digits: every mark is dropped
        ("1, 000", "1 000"),
        ("one,two", "one two"),
        ("3.5", "3.5"),
        (".5", ".5"),
        ("5.", "5"),
        ("p.m.", "pm"),
        ("no.1", "no.1"),  # a digit follows
        ("." * 33, "."),  # only the first 32 periods go
    ],
)
def test_commas_and_periods(text: str, expected: str) -> None:
    assert replace_punctuation(text) == expected


def test_spaces() -> None:
    assert strip_spaces("\n a\tb \n") == "a b"
    assert strip_spaces("A  b") == "A  b"
    assert normalize_words("  A  b\u00a0 c ") == "b c"
    assert normalize_answer("line\nend") == "line end"
