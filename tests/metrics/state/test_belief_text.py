"""Belief text: lossless for any strings, and parsed from any output."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dair_hf.metrics.state.belief_text import parse, read_belief, state_to_text

AWKWARD = st.text(alphabet=st.sampled_from(list("\\;=|_ensrt \n\r\t a\u00a0\u2028é")), max_size=8)
STRINGS = st.one_of(st.text(max_size=12), AWKWARD)
STATES = st.dictionaries(STRINGS, st.lists(STRINGS, max_size=4), max_size=5)


@given(STATES, STATES)
def test_different_states_have_different_texts(first: dict[str, list[str]], second: dict[str, list[str]]) -> None:
    assert (state_to_text(first) == state_to_text(second)) == (list(first.items()) == list(second.items()))


@given(STRINGS | st.text(alphabet=st.characters(codec=None), max_size=20))
@example("\\")
@example("a = b \\")
@example(";;; = | = ;")
@example("\ud800 = \udfff")
def test_parse_never_raises(text: str) -> None:
    state = parse(text)
    assert all(slot and values and all(values) for slot, values in state.items())


@given(STATES)
@example({})
@example({"": []})
@example({"": [""]})
@example({" ": [" ", "  "], "\\": ["\\e", "\\_", "\\"]})
@example({"hotel-name": ["a ; b = c | d \\", "line\nbreak", "\ttab "]})
def test_parse_restores_any_state_without_empty_slots_and_values(state: dict[str, list[str]]) -> None:
    text = state_to_text(state)
    filled = {slot: [value for value in values if value] for slot, values in state.items()}
    restored = parse(text)
    assert restored == {slot: values for slot, values in filled.items() if slot and values}
    assert list(restored) == [slot for slot in state if slot in restored]
    assert "\n" not in text


def test_the_format_is_short_and_readable() -> None:
    state = {"hotel-name": ["warkworth house", "warkworth"], "hotel-area": ["east"]}
    assert state_to_text(state) == "hotel-name = warkworth house | warkworth ; hotel-area = east"
    assert state_to_text({}) == ""
    assert state_to_text({"hotel-name": []}) == "hotel-name"
    assert state_to_text({"hotel-name": [" a"]}) == "hotel-name = \\_a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("no structure at all", {}),
        ("hotel-area=east;hotel-stars=4", {"hotel-area": ["east"], "hotel-stars": ["4"]}),
        ("hotel-area = east ; hotel-na", {"hotel-area": ["east"]}),
        ("hotel-area = east ; hotel-name =", {"hotel-area": ["east"]}),
        ("hotel-area = east ; hotel-area = west", {"hotel-area": ["west"]}),
        ("= east ; ; | ;", {}),
        ("hotel-name = a=b", {"hotel-name": ["a=b"]}),
        ("hotel-name = a | | b", {"hotel-name": ["a", "b"]}),
        ("hotel-name = c:\\dos\\", {"hotel-name": ["c:\\dos\\"]}),
    ],
)
def test_parse_of_broken_output(text: str, expected: dict[str, list[str]]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "hotel-area = east, hotel-stars = 4",
        "hotel-area=east hotel-stars=4",
        "hotel-area = east | hotel-stars = 4",
        "hotel-area = east / hotel-stars = 4",
        "hotel-area = east\thotel-stars = 4",
        "hotel-area = east\nhotel-stars: 4",
        "hotel-area: east ; hotel-stars = 4",
        "hotel area east ; hotel-stars = 4",
        "{hotel-area: east, hotel-stars: 4}",
        "= east ; hotel-stars = 4",
        "none",
    ],
)
def test_text_in_other_notations_is_not_well_formed(text: str) -> None:
    assert not read_belief(text).is_well_formed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hotel-area = east ;",
        "hotel-area = east ; hotel-st",
        "hotel-name = a=b",
        "price range = cheap ; food = fish, chips and more | fish / chips",
        "restaurant-time = 10:15 ; restaurant-name = the old: new",
        r"hotel-area = \e",
    ],
)
def test_text_of_a_state_is_well_formed_even_if_cut_short(text: str) -> None:
    assert read_belief(text).is_well_formed


SLOTS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters=":,"), min_size=1)


@settings(max_examples=40)
@given(st.dictionaries(SLOTS, st.lists(STRINGS, min_size=1, max_size=4), max_size=5))
def test_what_is_written_is_well_formed(state: dict[str, list[str]]) -> None:
    assert read_belief(state_to_text(state)).is_well_formed
