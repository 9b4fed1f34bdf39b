"""Normalization of answers against the published evaluation code and hand-made cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces

# (text, output of the evaluation code published with version 2 of the data) for all words of its tables and for edge
# cases of its rules.
PINNED = json.loads(Path(__file__).with_name("pinned_vqa.json").read_text(encoding="utf-8"))["normalized"]


def test_output_of_the_published_code() -> None:
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dont know", "don't know"),
        ("Im", "im"),  # "Im" is in the published table, but words are looked up in lower case
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("red/white", "red white"),
        ("red / white", "red white"),  # next to a space: removed
        ("black-and-white", "black and white"),
        ("black-and -white", "blackand white"),  # one mark is next to a space: both are removed
        ("yes, sir", "yes sir"),
        ("what?!", "what"),
        ("man's", "man's"),
        ("2:30", "2:30"),
        ("50% *#$&", "50% *#$&"),  # not in the list
    ],
)
def test_punctuation(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,000", "1000"),
        ("10,000,000", "10000000"),
        ("1,000-2,000/x", "10002000x"),  # comma between digits: all marks are removed
        ("1, 000", "1 000"),
        ("red,blue", "red blue"),
        ("3.5", "3.5"),
        (".5", ".5"),
        ("5.", "5"),
        ("p.m.", "pm"),
        ("no.1", "no.1"),  # a digit follows
        ("." * 33, "."),  # only the first 32 periods are removed
    ],
)
def test_commas_and_periods(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def test_spaces() -> None:
    assert strip_spaces("\n a\tb \n") == "a b"
    assert strip_spaces("A  b") == "A  b"
    assert normalize_answer("  A  b\u00a0 c ") == "b c"
    assert normalize_answer("line\nend") == "line end"
