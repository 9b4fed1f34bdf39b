"""Words of a text, and similarity of strings."""

from __future__ import annotations

import pytest
import rapidfuzz.fuzz
from hypothesis import given
from hypothesis import strategies as st

from dair_hf.dialog.linking.words import similarity, words


def test_words_compare_spellings() -> None:
    assert words("St. John's Guesthouse & Café!").keys == ["saint", "john", "guest", "house", "and", "cafe"]
    assert words("Straße").keys == words("STRASSE").keys == ["strasse"]
    text = "the St John's college"
    found = words(text)
    surfaces = [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert surfaces == [
        "the",
        "St",
        "John's",
        "college",
    ]


@given(st.text("abcdé ", max_size=70), st.text("abcdé ", max_size=70))
def test_similarity_is_rapidfuzz_ratio(left: str, right: str) -> None:
    if left and right:
        assert similarity(left, right) == pytest.approx(rapidfuzz.fuzz.ratio(left, right) / 100, abs=1e-12)
