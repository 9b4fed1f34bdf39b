"""Slot names that nobody knows: refused in the settings, said of predictions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.pair_consistency import judge_pairs
from dair_hf.metrics.state.items import pair_turns, read_items
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct
from dair_hf.metrics.state.slot_names import SlotNames

HELD = {"hotel-area": ["east"], "hotel-pricerange": ["cheap"], "train-leaveat": ["17:15"]}
SGD = {"Hotels_1-star_rating": ["4"]}


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"domains": "hotle"}, "domains: no reference holds 'hotle'; did you mean 'hotel'? They hold hotel, train"),
        ({"domains": ["hotel", "plane"]}, "domains: no reference holds 'plane'; "),
        ({"domains": "Hotel"}, "domains: no reference holds 'Hotel'; did you mean 'hotel'?"),
        (
            {"slots": "hotel-aera"},
            "slots: no reference holds 'hotel-aera'; did you mean 'hotel-area'? They hold hotel-area, hotel-pricerange",
        ),
        ({"slots": ["hotel-area", "hotel-price range"]}, "'hotel-price range'; did you mean 'hotel-pricerange'?"),
        ({"slots": "train-departing"}, "'train-departing'; did you mean 'train-departure'?"),
        ({"slots": "hotle-area"}, "'hotle-area'; did you mean 'hotel-area'?"),
        ({"slots": "area"}, "slots: no reference holds 'area'; "),
        ({"consistency_slots": "hotel-nmae"}, "consistency_slots: no reference holds 'hotel-nmae'; did you mean"),
        ({"schema_slots": ["hotel-area"], "slots": "hotel-stars"}, "slots: no reference holds 'hotel-stars'; "),
    ],
)
def test_unknown_names_in_the_settings_are_refused(switches: dict[str, Any], message: str) -> None:
    for call in (joint_goal_accuracy, joint_goal_correct):
        with pytest.raises(DataError) as caught:
            call([HELD, {}], [HELD, {}], **switches)
        assert message in str(caught.value)
    items = [{"row_id": "A/0", "state": HELD}]
    with pytest.raises(DataError) as caught:
        judge_pairs(pair_turns(read_items(items, "predictions"), read_items(items, "references")), **switches)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "switches"),
    [
        ("any_of", {"domains": "police"}),
        ("any_of", {"domains": "train", "slots": "hotel-area"}),
        ("any_of", {"slots": "hotel-stars"}),
        ("mwzeval", {"slots": "train-arriveBy"}),
    ],
)
def test_figures_of_nothing_are_refused(preset: str, switches: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"nothing is left to compare: no reference holds a slot of .*they hold hotel"):
        joint_goal_accuracy([HELD], [HELD], preset=preset, **switches)
    # Row by row it is no error: a part of the data may well hold no such slot.
    assert joint_goal_correct([{}], [HELD], preset, **switches)[0]


def test_the_domains_of_a_preset_are_checked_too() -> None:
    with pytest.raises(DataError, match=r"domains attraction\+hospital\+hotel.*they hold Hotels_1"):
        joint_goal_accuracy([SGD], [SGD], preset="parlai_v22")
    assert joint_goal_accuracy([SGD], [SGD], domains="Hotels_1")["joint_goal_accuracy"] == 1.0


def test_known_names_pass_as_mwzeval_spells_them() -> None:
    found = joint_goal_accuracy([{"train-leave": "17:15"}], [HELD], preset="mwzeval", slots=["train-leaveAt"])
    assert found["joint_goal_accuracy"] == 1.0
    assert found["preset"] == "mwzeval(slots=train-leaveAt)"
    assert joint_goal_accuracy([HELD], [HELD], slots=["hotel-area", "hotel-stars"])["joint_goal_accuracy"] == 1.0
    assert joint_goal_correct([{}], [{}], domains="Hotels_1")[0]  # no reference holds a slot that it could be held to


PREDICTED = {"hotel-area": "east", "hotel-price range": "cheap", "train-leaveAt": "17:15"}


@pytest.mark.parametrize(
    ("preset", "unknown", "parts"),
    [
        (
            "any_of",
            {"hotel-price range": 2, "train-leaveAt": 2, "hotel-sauna": 1},
            (
                "predictions hold slots that no reference holds: 'hotel-price range' (2 turns, counted as wrong; did "
                "you mean 'hotel-pricerange'?), 'train-leaveAt' (2 turns, counted as wrong; did you mean "
                "'train-leaveat'?), 'hotel-sauna' (1 turn, counted as wrong",
                "The references hold hotel-area, hotel-pricerange, train-leaveat",
            ),
        ),
        (
            "convlab3",
            {"hotel-price range": 2, "train-leaveAt": 2, "hotel-sauna": 1},
            ("'train-leaveAt' (2 turns, ignored;",),
        ),
        ("mwzeval", {"hotel-sauna": 1}, ("'hotel-sauna' (1 turn, counted as wrong", "hold hotel-area, hotel-price")),
    ],
)
def test_unknown_predicted_slots_are_said(preset: str, unknown: dict[str, int], parts: tuple[str, ...]) -> None:
    with pytest.warns(UserWarning) as caught:
        found = joint_goal_accuracy([PREDICTED, PREDICTED | {"hotel-sauna": "yes"}], [HELD, HELD], preset=preset)
    assert found["unknown_slots"] == unknown
    (warning,) = caught
    assert all(part in str(warning.message) for part in parts)


def test_slots_of_multiwoz_and_empty_values_are_no_news() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = joint_goal_accuracy([HELD | {"hotel-stars": "4", "hotel-sauna": "none"}], [HELD])
    assert found["unknown_slots"] == {}


def test_many_unknown_slots_are_counted() -> None:
    with pytest.warns(
        UserWarning, match=r"'a-3' \(1 turn, counted as wrong\), 'a-4' \(1 turn, counted as wrong\), 4 more"
    ):
        joint_goal_accuracy([{f"a-{i}": "x" for i in range(9)}], [{}])


def test_a_schema_tells_errors_from_what_the_evaluator_ignores() -> None:
    predictions = [SGD | {"Hotels_1-phone": ["x"]}, SGD | {"Hotels_1-sauna": ["x"]}]
    settings: dict[str, Any] = {"preset": "sgd_fuzzy", "categorical_slots": ["Hotels_1-star_rating"]}
    with pytest.warns(UserWarning, match="'Hotels_1-phone' .*counted as wrong.*'Hotels_1-sauna' .*counted as wrong"):
        assert joint_goal_accuracy(predictions, [SGD, SGD], **settings)["joint_goal_accuracy"] == 0.0
    settings["schema_slots"] = ["Hotels_1-star_rating", "Hotels_1-phone"]
    with pytest.warns(UserWarning, match=r"holds: 'Hotels_1-sauna' \(1 turn, ignored\)"):
        found = joint_goal_accuracy(predictions, [SGD, SGD], **settings)
    assert (found["joint_goal_accuracy"], found["unknown_slots"]) == (0.5, {"Hotels_1-sauna": 1})


def test_fuzzy_matching_without_a_categorical_slot_is_said() -> None:
    with pytest.warns(UserWarning, match="none of the references' slots is in categorical_slots"):
        joint_goal_accuracy([SGD], [SGD], preset="sgd_fuzzy")


def test_categorical_slots_in_any_spelling() -> None:
    gold, near = {"hotel-price range": ["cheap"]}, {"hotel-price range": "cheap one"}
    assert not joint_goal_correct([near], [gold], "any_of", match="token_sort")[0]
    assert joint_goal_accuracy([near], [gold], preset="sgd_fuzzy")["joint_goal_accuracy"] == 0.0  # not 0.71


def test_spellings_of_the_references_win() -> None:
    names = SlotNames(["hotel-price range", "train-people"])
    assert "hotel-price range" in names
    assert "hotel-pricerange" not in names
    assert "train-bookpeople" not in names
    assert "hotel-bookpeople" in names
    assert "hotel-people" in names
    assert names.nearest("train-bookpeople") == "train-people"
    assert names.nearest("hotel-zzz") is None
    assert [names.schema_lacks(slot) for slot in ("hotel-zzz", "hotel-stars", "Hotel-area")] == [True, False, True]
    assert [SlotNames(SGD).schema_lacks(slot) for slot in ("Hotels_1-zzz", "Hotel-area")] == [False, False]
    assert [SlotNames([]).schema_lacks(slot) for slot in ("hotel-zzz", "Hotel-area")] == [True, False]
