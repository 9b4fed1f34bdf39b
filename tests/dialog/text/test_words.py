"""Detokenising, words, likeness."""

from __future__ import annotations

import pytest
import rapidfuzz.fuzz
from hypothesis import given
from hypothesis import strategies as st

from dair_hf.dialog.text.words import detokenise, history_to_text, similarity, words


@pytest.mark.parametrize(
    ("tokenised", "expected"),
    [
        ("I did n't see Saint John 's college .", "I didn't see Saint John's college."),
        ("queens ' college , please !", "queens' college, please!"),
        ("they 're ( I think ) open ; we 'll go ...", "they're (I think) open; we'll go..."),
        ("city centre north b & b", "city centre north b & b"),
        ("at 12:30 ?", "at 12:30?"),
        ("it costs 5.40 pounds .", "it costs 5.40 pounds."),
        ("Text that was never tokenised, isn't it?", "Text that was never tokenised, isn't it?"),
        ("", ""),
    ],
)
def test_detokenise(tokenised: str, expected: str) -> None:
    assert detokenise(tokenised.split())[0] == expected


@given(st.lists(st.text(min_size=1, max_size=5).filter(lambda token: token.split() == [token]), max_size=12))
def test_detokenise_keeps_every_token_at_its_place(tokens: list[str]) -> None:
    text, places = detokenise(tokens)
    assert [text[start:end] for start, end in places] == tokens
    assert "".join(text.split()) == "".join(tokens)


def test_words_compare_spellings() -> None:
    assert words("St. John's Guesthouse & Café!").keys == ["saint", "john", "guest", "house", "and", "cafe"]
    text = "the St John's college"
    found = words(text)
    assert [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)] == ["the", "St", "John's", "college"]


@given(st.text("abcdé ", max_size=70), st.text("abcdé ", max_size=70))
def test_similarity_is_rapidfuzz_ratio(left: str, right: str) -> None:
    if left and right:
        assert similarity(left, right) == pytest.approx(rapidfuzz.fuzz.ratio(left, right) / 100, abs=1e-12)


def test_history_text() -> None:
    history = [{"speaker": "user", "text": "hi"}, {"speaker": "system", "text": "yes ?"}]
    assert history_to_text(history) == "<user> hi <system> yes ?"
    assert history_to_text([]) == ""
