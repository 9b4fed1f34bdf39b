"""Belief text: lossless for any strings, and parsed from any output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dair_hf.dialog.readers.multiwoz import read_multiwoz
from dair_hf.dialog.text.state import parse, state_from_row, state_to_text, target_text
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import PRESETS
from dair_hf.metrics.state.joint_goal import joint_goal_correct

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
    assert target_text(state) == "hotel-name = warkworth house ; hotel-area = east"
    assert state_to_text({}) == target_text({}) == target_text({"hotel-name": []}) == ""
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


# Alternatives, values without meaning, delimiters and cases, as in the data sets.
HARD_STATES = [
    {},
    {"hotel-name": ["warkworth house", "warkworth"], "hotel-area": ["centre", "center"]},
    {"hotel-area": ["dontcare"], "hotel-stars": ["4"]},
    {"hotel-area": ["dontcare", "centre"], "train-leaveat": ["17:15", "5:15 pm"]},
    {"restaurant-name": ["a; b = c | d", "e\\f"], "restaurant-food": ["fish, and chips", "fish"]},
    {"hotel-name": ["hotel du vin", "Hotel du Vin"], "bus-day": ["monday", "Monday"]},
    {"hotel-name": ["", "acorn house"], "hotel-type": [], "taxi-departure": [" the junction "]},
]


@pytest.mark.parametrize("lower_case", [False, True])
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_targets_score_as_right_under_every_preset(preset: str, lower_case: bool) -> None:
    written = [target_text(state, preset, lower_case=lower_case) for state in HARD_STATES]
    assert joint_goal_correct(map(parse, written), HARD_STATES, preset=preset).all()
    if lower_case:
        assert written == [text.lower() for text in written]


def test_the_preset_determines_the_target() -> None:
    state = {"hotel-area": ["dontcare", "centre", "center"], "hotel-name": ["A", "b"], "hotel-stars": ["dontcare"]}
    expected = {
        "any_of": "hotel-area = dontcare ; hotel-name = A ; hotel-stars = dontcare",
        "parlai_v22": "hotel-area = dontcare | centre | center ; hotel-name = a | b ; hotel-stars = dontcare",
        "mwzeval": "hotel-name = A",  # removes slots with dontcare from gold states and counts predicted ones as errors
    }
    # "parlai_v22" demands all alternatives in lower case and ignores dontcare on both sides.
    assert {preset: target_text(state, preset) for preset in expected} == expected
    # TRADE's table of corrections is applied to gold values only.
    assert target_text({"hotel-type": ["guesthouse"]}, "trade") == "hotel-type = guest house"
    assert target_text({"hotel-name": ["A", "b"]}, lower_case=True) == "hotel-name = b"  # the gold value in lower case
    with pytest.raises(DataError, match="preset: unknown name 'best'"):
        target_text(state, "best")


@pytest.mark.realdata
def test_targets_of_multiwoz_21_score_as_right_under_every_preset(real_data: Path) -> None:
    rows, _ = read_multiwoz(real_data / "multiwoz21", "test")
    states = [state_from_row(column) for column in rows["state"][::5]]
    for preset in PRESETS:
        written = [parse(target_text(state, preset)) for state in states]
        assert joint_goal_correct(written, states, preset=preset).all(), preset
