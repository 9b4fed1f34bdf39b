"""Unknown slot names: errors in switches, warnings in predictions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.consistency_items import judge_pairs
from dair_hf.metrics.state.conventions import resolve_pair_convention
from dair_hf.metrics.state.items import pair_turns, read_items
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct
from dair_hf.metrics.state.slot_names import SlotNames

GOLD = {"hotel-area": ["east"], "hotel-pricerange": ["cheap"], "train-leaveat": ["17:15"]}
SGD = {"Hotels_1-star_rating": ["4"]}


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (
            {"domains": "hotle"},
            "domains: no reference has 'hotle'; did you mean 'hotel'? References have: hotel, train",
        ),
        ({"domains": ["hotel", "plane"]}, "domains: no reference has 'plane'; "),
        ({"domains": "Hotel"}, "domains: no reference has 'Hotel'; did you mean 'hotel'?"),
        (
            {"slots": "hotel-aera"},
            "slots: no reference has 'hotel-aera'; did you mean 'hotel-area'? References have: hotel-area, hotel-price",
        ),
        ({"slots": ["hotel-area", "hotel-price range"]}, "'hotel-price range'; did you mean 'hotel-pricerange'?"),
        ({"slots": "train-departing"}, "'train-departing'; did you mean 'train-departure'?"),
        ({"slots": "hotle-area"}, "'hotle-area'; did you mean 'hotel-area'?"),
        ({"slots": "area"}, "slots: no reference has 'area'; "),
        ({"consistency_slots": "hotel-nmae"}, "consistency_slots: no reference has 'hotel-nmae'; did you mean"),
        ({"schema_slots": ["hotel-area"], "slots": "hotel-stars"}, "slots: no reference has 'hotel-stars'; "),
    ],
)
def test_unknown_names_in_switches_are_errors(switches: dict[str, Any], message: str) -> None:
    for call in (joint_goal_accuracy, joint_goal_correct):
        with pytest.raises(DataError) as caught:
            call([GOLD, {}], [GOLD, {}], **switches)
        assert message in str(caught.value)
    turns = read_items([{"row_id": "A/0", "state": GOLD}], "references")
    with pytest.raises(DataError) as caught:
        judge_pairs(pair_turns(turns, turns), resolve_pair_convention(**switches)[1])
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
def test_switches_that_exclude_all_slots_are_errors(preset: str, switches: dict[str, Any]) -> None:
    with pytest.raises(
        DataError, match=r"nothing to compare: no reference has a slot of .*of the references are hotel"
    ):
        joint_goal_accuracy([GOLD], [GOLD], preset=preset, **switches)
    # Single rows without such a slot are no error.
    assert joint_goal_correct([{}], [GOLD], preset, **switches)[0]


def test_domains_of_a_preset_are_checked() -> None:
    with pytest.raises(DataError, match=r"domains attraction\+hospital\+hotel.*references are Hotels_1"):
        joint_goal_accuracy([SGD], [SGD], preset="parlai_v22")
    assert joint_goal_accuracy([SGD], [SGD], domains="Hotels_1")["joint_goal_accuracy"] == 1.0


def test_names_are_compared_as_mwzeval_spells_them() -> None:
    results = joint_goal_accuracy([{"train-leave": "17:15"}], [GOLD], preset="mwzeval", slots=["train-leaveAt"])
    assert results["joint_goal_accuracy"] == 1.0
    assert results["preset"] == "mwzeval(slots=train-leaveAt)"
    assert joint_goal_accuracy([GOLD], [GOLD], slots=["hotel-area", "hotel-stars"])["joint_goal_accuracy"] == 1.0
    assert joint_goal_correct([{}], [{}], domains="Hotels_1")[0]  # no slots to check the domain against


PREDICTED = {"hotel-area": "east", "hotel-price range": "cheap", "train-leaveAt": "17:15"}


@pytest.mark.parametrize(
    ("preset", "unknown", "parts"),
    [
        (
            "any_of",
            {"hotel-price range": 2, "train-leaveAt": 2, "hotel-sauna": 1},
            (
                "predictions have slots that no reference has: 'hotel-price range' (2 turns, counted as wrong; did "
                "you mean 'hotel-pricerange'?), 'train-leaveAt' (2 turns, counted as wrong; did you mean "
                "'train-leaveat'?), 'hotel-sauna' (1 turn, counted as wrong",
                "References have: hotel-area, hotel-pricerange, train-leaveat",
            ),
        ),
        (
            "convlab3",
            {"hotel-price range": 2, "train-leaveAt": 2, "hotel-sauna": 1},
            ("'train-leaveAt' (2 turns, ignored;",),
        ),
        ("mwzeval", {"hotel-sauna": 1}, ("'hotel-sauna' (1 turn, counted as wrong", "have: hotel-area, hotel-price")),
    ],
)
def test_unknown_predicted_slots_are_warned_of(preset: str, unknown: dict[str, int], parts: tuple[str, ...]) -> None:
    with pytest.warns(UserWarning) as caught:
        results = joint_goal_accuracy([PREDICTED, PREDICTED | {"hotel-sauna": "yes"}], [GOLD, GOLD], preset=preset)
    assert results["unknown_slots"] == unknown
    (warning,) = caught
    assert all(part in str(warning.message) for part in parts)


def test_slots_of_multiwoz_and_empty_values_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = joint_goal_accuracy([GOLD | {"hotel-stars": "4", "hotel-sauna": "none"}], [GOLD])
    assert results["unknown_slots"] == {}


def test_warning_lists_five_unknown_slots_and_counts_the_others() -> None:
    with pytest.warns(
        UserWarning, match=r"'a-3' \(1 turn, counted as wrong\), 'a-4' \(1 turn, counted as wrong\), 4 more"
    ):
        joint_goal_accuracy([{f"a-{i}": "x" for i in range(9)}], [{}])


def test_slots_outside_the_schema_are_ignored() -> None:
    predictions = [SGD | {"Hotels_1-phone": ["x"]}, SGD | {"Hotels_1-sauna": ["x"]}]
    settings: dict[str, Any] = {"preset": "sgd_fuzzy", "categorical_slots": ["Hotels_1-star_rating"]}
    with pytest.warns(UserWarning, match="'Hotels_1-phone' .*counted as wrong.*'Hotels_1-sauna' .*counted as wrong"):
        assert joint_goal_accuracy(predictions, [SGD, SGD], **settings)["joint_goal_accuracy"] == 0.0
    settings["schema_slots"] = ["Hotels_1-star_rating", "Hotels_1-phone"]
    with pytest.warns(UserWarning, match=r"has: 'Hotels_1-sauna' \(1 turn, ignored\)"):
        results = joint_goal_accuracy(predictions, [SGD, SGD], **settings)
    assert (results["joint_goal_accuracy"], results["unknown_slots"]) == (0.5, {"Hotels_1-sauna": 1})


def test_fuzzy_matching_without_categorical_slots_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="no slot of the references is in categorical_slots"):
        joint_goal_accuracy([SGD], [SGD], preset="sgd_fuzzy")


def test_categorical_slots_are_found_in_any_spelling() -> None:
    gold, near = {"hotel-price range": ["cheap"]}, {"hotel-price range": "cheap one"}
    assert not joint_goal_correct([near], [gold], "any_of", match="token_sort")[0]
    assert joint_goal_accuracy([near], [gold], preset="sgd_fuzzy")["joint_goal_accuracy"] == 0.0  # not 0.71


def test_spellings_of_the_references_take_precedence() -> None:
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
