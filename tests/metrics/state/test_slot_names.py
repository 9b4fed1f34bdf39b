"""Slot names of predictions that references lack: warnings, counts, and what they cost."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from dair_hf.errors import SlotNameWarning
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct
from dair_hf.metrics.state.matching import _SlotNames

GOLD = {"hotel-area": ["east"], "hotel-pricerange": ["cheap"], "train-leaveat": ["17:15"]}
SGD = {"Hotels_1-star_rating": ["4"]}
PREDICTED = {"hotel-area": "east", "hotel-price range": "cheap", "train-leaveAt": "17:15"}


def test_names_are_compared_as_mwzeval_spells_them() -> None:
    results = joint_goal_accuracy([{"train-leave": "17:15"}], [GOLD], preset="mwzeval", slots=["train-leaveAt"])
    assert results["joint_goal_accuracy"] == 1.0
    assert results["preset"] == "mwzeval(slots=train-leaveAt)"
    assert joint_goal_accuracy([GOLD], [GOLD], slots=["hotel-area", "hotel-stars"])["joint_goal_accuracy"] == 1.0
    assert joint_goal_accuracy([SGD], [SGD], domains="Hotels_1")["joint_goal_accuracy"] == 1.0
    # Single rows without a compared slot, or without any, are no error.
    assert joint_goal_correct([{}], [GOLD], domains="police")[0]
    assert joint_goal_correct([{}], [{}], domains="Hotels_1")[0]


@pytest.mark.parametrize(
    ("preset", "unknown", "part"),
    [
        ("any_of", {"hotel-price range": 2, "train-leaveAt": 2, "hotel-sauna": 1}, "(2 turns, counted as wrong)"),
        ("convlab3", {"hotel-price range": 2, "train-leaveAt": 2, "hotel-sauna": 1}, "(2 turns, ignored)"),
        ("mwzeval", {"hotel-sauna": 1}, "'hotel-sauna' (1 turns, counted as wrong)"),
    ],
)
def test_unknown_predicted_slots_are_warned_of(preset: str, unknown: dict[str, int], part: str) -> None:
    with pytest.warns(SlotNameWarning) as caught:
        results = joint_goal_accuracy([PREDICTED, PREDICTED | {"hotel-sauna": "yes"}], [GOLD, GOLD], preset=preset)
    assert results["unknown_slots"] == unknown
    (warning,) = caught
    assert part in str(warning.message) and all(slot in str(warning.message) for slot in unknown)


def test_slots_of_multiwoz_and_empty_values_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = joint_goal_accuracy([GOLD | {"hotel-stars": "4", "hotel-sauna": "none"}], [GOLD])
    assert results["unknown_slots"] == {}


def test_slots_outside_the_schema_are_ignored() -> None:
    predictions = [SGD | {"Hotels_1-phone": ["x"]}, SGD | {"Hotels_1-sauna": ["x"]}]
    settings: dict[str, Any] = {"preset": "sgd_fuzzy", "categorical_slots": ["Hotels_1-star_rating"]}
    with pytest.warns(SlotNameWarning, match="'Hotels_1-phone' .*counted as wrong.*'Hotels_1-sauna' .*as wrong"):
        assert joint_goal_accuracy(predictions, [SGD, SGD], **settings)["joint_goal_accuracy"] == 0.0
    settings["schema_slots"] = ["Hotels_1-star_rating", "Hotels_1-phone"]
    with pytest.warns(SlotNameWarning, match=r"has: 'Hotels_1-sauna' \(1 turns, ignored\)"):
        results = joint_goal_accuracy(predictions, [SGD, SGD], **settings)
    assert (results["joint_goal_accuracy"], results["unknown_slots"]) == (0.5, {"Hotels_1-sauna": 1})


def test_categorical_slots_are_found_in_any_spelling_and_their_lack_is_warned_of() -> None:
    with pytest.warns(SlotNameWarning, match="categorical_slots"):
        joint_goal_accuracy([SGD], [SGD], preset="sgd_fuzzy")
    gold, near = {"hotel-price range": ["cheap"]}, {"hotel-price range": "cheap one"}
    assert not joint_goal_correct([near], [gold], "any_of", match="token_sort")[0]
    assert joint_goal_accuracy([near], [gold], preset="sgd_fuzzy")["joint_goal_accuracy"] == 0.0  # not 0.71


def test_spellings_of_the_references_take_precedence() -> None:
    names = _SlotNames(["hotel-price range", "train-people"])
    known = ("hotel-price range", "hotel-pricerange", "train-bookpeople", "hotel-bookpeople", "hotel-people")
    assert [slot in names for slot in known] == [True, False, False, True, True]
    assert [names.schema_lacks(slot) for slot in ("hotel-zzz", "hotel-stars", "Hotel-area")] == [True, False, True]
    assert [_SlotNames(SGD).schema_lacks(slot) for slot in ("Hotels_1-zzz", "Hotel-area")] == [False, False]
    assert [_SlotNames([]).schema_lacks(slot) for slot in ("hotel-zzz", "Hotel-area")] == [True, False]
