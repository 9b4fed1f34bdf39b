"""Training targets of belief states."""

from __future__ import annotations

from pathlib import Path

import pytest

from dair_hf.dialog.readers.multiwoz import read_multiwoz
from dair_hf.dialog.text.state import state_from_row, target_text
from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import parse
from dair_hf.metrics.state.conventions import PRESETS
from dair_hf.metrics.state.joint_goal import joint_goal_correct

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


def test_a_target_has_one_value_per_slot() -> None:
    state = {"hotel-name": ["warkworth house", "warkworth"], "hotel-area": ["east"]}
    assert target_text(state) == "hotel-name = warkworth house ; hotel-area = east"
    assert target_text({}) == target_text({"hotel-name": []}) == ""
    # No answer is right in lower case: the first value is written.
    assert target_text({"hotel-name": ["A", "B"]}, lower_case=True) == "hotel-name = a"


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
    with pytest.raises(DataError, match="^preset: "):
        target_text(state, "best")


@pytest.mark.realdata
def test_targets_of_multiwoz_21_score_as_right_under_every_preset(real_data: Path) -> None:
    rows, _ = read_multiwoz(real_data / "multiwoz21", "test")
    states = [state_from_row(column) for column in rows["state"][::5]]
    for preset in PRESETS:
        written = [parse(target_text(state, preset)) for state in states]
        assert joint_goal_correct(written, states, preset=preset).all(), preset
