"""Dialog rows: builder, text of a history, and training targets of belief states."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from dair_hf.dialog.rows import (
    FEATURES,
    Mention,
    NameEntry,
    RowBuilder,
    Utterance,
    contains_name,
    on_word_boundary,
    target_text,
    without_overlap,
)
from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import parse
from dair_hf.metrics.state.conventions import PRESETS
from dair_hf.metrics.state.joint_goal import joint_goal_correct
from tests.fixtures.dialogs import require_sound_rows

TALK = [Utterance("user", "is oak house free?"), Utterance("system", "Oak House is."), Utterance("user", "ok")]
NAMES = [NameEntry("hotel-name", "oak house", ["oak house", "Oak House"])]
MENTIONS = [Mention("hotel-name", "oak house", 1, 0, 9), Mention("hotel-name", "oak house", 0, 3, 12)]
STATES: dict[int, dict[str, list[str]]] = {0: {}, 2: {"hotel-name": ["oak house", "oak"], "hotel-area": ["east"]}}


def build(**changes: Any) -> Dataset:
    args: dict[str, Any] = {"utterances": TALK, "states": STATES, "mentions": MENTIONS, "names": NAMES} | changes
    builder = RowBuilder()
    builder.add_dialogue("d", **args)
    return builder.build()


def test_rows_are_exactly_these() -> None:
    rows = build()
    assert rows.features == FEATURES
    first = {"slot": "hotel-name", "name": "oak house", "turn": 0, "start": 3, "end": 12}
    names = [{"slot": "hotel-name", "name": "oak house", "forms": ["oak house", "Oak House"]}]
    history = [{"speaker": speaker, "text": text} for speaker, text in TALK]
    assert rows.to_list() == [
        {
            "row_id": "d/0",
            "dialogue_id": "d",
            "turn_id": 0,
            "history": history[:1],
            "state": [],
            "entities": [first],
            "names": names,
        },
        {
            "row_id": "d/1",
            "dialogue_id": "d",
            "turn_id": 1,
            "history": history,
            "state": [
                {"slot": "hotel-area", "values": ["east"]},
                {"slot": "hotel-name", "values": ["oak house", "oak"]},
            ],
            "entities": [first, first | {"turn": 1, "start": 0, "end": 9}],
            "names": names,
        },
    ]
    require_sound_rows(rows)


@pytest.mark.parametrize(
    "mention",
    [
        ("oak house", 0, 3, 11), ("oak house", 0, 3, 3), ("oak house", 0, 3, 99), ("oak house", 7, 0, 1),
        ("elm", 0, 3, 12),
    ],
)  # fmt: skip
def test_mentions_that_are_no_span_of_a_name_are_refused(mention: Any) -> None:
    with pytest.raises(DataError, match=mention[0]):
        build(mentions=[Mention("hotel-name", *mention)])


def test_word_boundaries() -> None:
    text = "St. John's (café)"
    whole = [(0, 2), (4, 8), (4, 10), (12, 16)]
    assert all(on_word_boundary(text, *span) for span in whole)
    assert not any(on_word_boundary(text, *span) for span in [(1, 2), (4, 7), (12, 15), (5, 5), (-1, 2), (0, 99)])


def test_the_longest_of_overlapping_spans_remains() -> None:
    spans = [(4, 9, "first"), (6, 11, "second"), (0, 3, "third"), (5, 6, "fourth"), (9, 12, "fifth")]
    assert without_overlap(spans) == [(0, 3, "third"), (4, 9, "first"), (9, 12, "fifth")]
    assert contains_name("the cowboy met a cow", "cow") and not contains_name("the cowboy", "cow")


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
    assert target_text({"hotel-name": ["A", "B"]}, lower_case=True) == "hotel-name = a"  # none is right: the first
    assert target_text({}) == target_text({"hotel-name": []}) == ""
    with pytest.raises(DataError, match="^preset: "):
        target_text(state, "best")
