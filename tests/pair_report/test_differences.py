"""Differences: what is marked, what is left out, and that no character is lost."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dair_hf.pair_report import differences
from dair_hf.pair_report.differences import _words_of, mark_differences

TEXT = st.text(alphabet=st.sampled_from("ab ,.é\u0301\n喝茶🙂<&"), max_size=40)


def changed(segments: list[differences.Segment]) -> list[str]:
    return [segment.text for segment in segments if segment.kind == "changed"]


@pytest.mark.parametrize(
    ("original", "augmented", "marked"),
    [
        ("book the lensfield , please", "book narug yerdrc , please", (["the lensfield"], ["narug yerdrc"])),
        ("a b c", "a c", (["b"], [])),
        ("", "new text", ([], ["new text"])),
        ("same", "same", ([], [])),
        ("same  words", "same words", ([], [])),  # spaces are no words
        ("a good, short film", "a bad, short film!", (["good"], ["bad", "!"])),
        ("我要喝茶", "我要喝水", (["茶"], ["水"])),
        ("cafe\u0301 x", "cafe x", (["cafe\u0301"], ["cafe"])),
        ("x=1", "x=2", (["1"], ["2"])),
    ],
)
def test_marked_are_the_words_that_differ(original: str, augmented: str, marked: tuple[list[str], list[str]]) -> None:
    left, right = mark_differences(original, augmented)
    assert (changed(left), changed(right)) == marked


@given(TEXT, TEXT)
@example("<<", "<<<")
@example("a", "b a")
def test_no_character_is_lost(original: str, augmented: str) -> None:
    left, right = mark_differences(original, augmented, context=1000)
    assert ("".join(s.text for s in left), "".join(s.text for s in right)) == (original, augmented)
    # What is not marked is the same in both, but for spaces.
    plain = [
        [words for s in segments if s.kind == "same" for words in [s.text[a:b] for a, b in _words_of(s.text)]]
        for segments in (left, right)
    ]
    assert plain[0] == plain[1]


def test_long_texts_are_shortened_around_differences() -> None:
    words = [f"w{number}" for number in range(200)]
    other = [*words[:100], "new", *words[101:]]
    left, right = mark_differences(" ".join(words), " ".join(other), context=3)
    assert [s.text for s in left] == ["97 words", "w97 w98 w99 ", "w100", " w101 w102 w103", "96 words"]
    assert [s.kind for s in left] == ["omitted", "same", "changed", "same", "omitted"]
    assert changed(right) == ["new"]


def test_what_is_only_appended_or_put_before_keeps_its_neighbours() -> None:
    words = [f"w{number}" for number in range(50)]
    for other, kept in (([*words, "new"], "w48 w49"), (["new", *words], "w0 w1")):
        left, right = mark_differences(" ".join(words), " ".join(other), context=2)
        assert [s.text.strip() for s in left if s.kind == "same"] == [kept]
        assert changed(left) == [] and changed(right) == ["new"]


def test_equal_long_texts_show_their_beginning() -> None:
    text = " ".join(["word"] * 50)
    (shown, note), _ = mark_differences(text, text, context=4)
    assert (shown.text, note.text) == ("word word word word", "46 words")


def test_huge_differences_are_not_compared_word_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "MAX_COMPARISONS", 5)
    left, _ = mark_differences("same a b c end", "same x b y end")
    assert changed(left) == ["a b c"]
