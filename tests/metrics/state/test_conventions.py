"""Presets against their published evaluators on hand-made turns, and each switch."""

from __future__ import annotations

import re
import warnings
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from dair_hf.metrics.state.conventions import PRESETS, Convention, resolve_convention, resolve_pair_convention
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct, joint_goal_scores
from dair_hf.metrics.state.matching import compare_states
from dair_hf.metrics.state.normalizers import NORMALIZERS, normalize
from tests.fixtures.paths import ROOT

ORDER = ("any_of", "parlai_v22", "dair_released", "trade", "simpletod", "mwzeval", "sgd_fuzzy", "convlab3", "checkdst")
SKIP = None

# (prediction, reference, the score under each preset in ORDER; SKIP: the turn is skipped)
#
# The scores of all presets but any_of are the output of the published evaluators: ParlAI a29567f (multiwoz_v22), the
# authors' release d190610, TRADE b77fcf1, SimpleTOD a6050a4, mwzeval 7f19ee0 with fuzzywuzzy 0.18.0, schema_guided_dst
# c813955 with the schema of MultiWOZ 2.2, ConvLab-3 2a168fc with its 31 slots, CheckDST 36da911. Three kinds of scores
# are computed by hand: predictions with several values, which most evaluators cannot read; alternatives under checkdst,
# whose gold states have one value; and "not mentioned" in gold under trade, which the data of TRADE does not contain.
TURNS: list[tuple[dict[str, Any], dict[str, Any], tuple[float | None, ...]]] = [
    # Right.
    ({"hotel-area": ["east"]}, {"hotel-area": ["east"]}, (1, 1, 1, 1, 1, 1, 1, 1, 1)),
    # Wrong value.
    ({"hotel-area": ["west"]}, {"hotel-area": ["east"]}, (0, 0, 0, 0, 0, 0, 0, 0, 0)),
    # Second of two gold values; it is a substring of the first, so the partial ratio is 100.
    ({"hotel-name": ["warkworth"]}, {"hotel-name": ["warkworth house", "warkworth"]}, (1, 0, 0, 0, 0, 1, 1, 1, 1)),
    # All gold values.
    (
        {"hotel-name": ["warkworth house", "warkworth"]},
        {"hotel-name": ["warkworth house", "warkworth"]},
        (1, 1, 1, 1, 1, 1, 1, 1, 1),
    ),
    # The second predicted value is correct: only an overlap accepts it. Token sort of the first value: 'wrong' and
    # 'house warkworth' share w-r-o, 2 * 3 / (5 + 15) = 0.30.
    ({"hotel-name": ["wrong", "warkworth house"]}, {"hotel-name": ["warkworth house"]}, (0, 0, 0, 0, 0, 0, 0.30, 1, 0)),
    # Dontcare on both sides: mwzeval drops it from gold only, so the prediction has an extra slot.
    (
        {"hotel-area": ["dontcare"], "hotel-stars": ["4"]},
        {"hotel-area": ["dontcare"], "hotel-stars": ["4"]},
        (1, 1, 1, 1, 1, 0, 1, 1, 1),
    ),
    # Dontcare in gold only.
    ({"hotel-stars": ["4"]}, {"hotel-area": ["dontcare"], "hotel-stars": ["4"]}, (0, 1, 1, 0, 0, 1, 0, 0, 0)),
    # Dontcare in the prediction only.
    ({"hotel-area": ["dontcare"], "hotel-stars": ["4"]}, {"hotel-stars": ["4"]}, (0, 1, 1, 0, 0, 0, 0, 0, 0)),
    # None predicted.
    ({"hotel-area": ["none"], "hotel-stars": ["4"]}, {"hotel-stars": ["4"]}, (1, 0, 0, 1, 1, 0, 0, 0, 0)),
    # Not mentioned in gold.
    ({"hotel-stars": ["4"]}, {"hotel-area": ["not mentioned"], "hotel-stars": ["4"]}, (1, 0, 0, 1, 1, 0, 0, 0, 0)),
    # TRADE's table maps 'fun' to none: in gold that is a value, in the prediction it is dropped.
    ({"attraction-type": ["fun"]}, {"attraction-type": ["fun"]}, (1, 1, 1, 0, 1, 1, 1, 1, 1)),
    # Empty answer to an empty state.
    ({}, {}, (1, SKIP, SKIP, 1, 1, 1, 1, 1, 1)),
    # Empty answer to a filled state.
    ({}, {"train-day": ["monday"]}, (0, SKIP, SKIP, 0, 0, 0, 0, 0, 0)),
    # One extra slot.
    ({"hotel-area": ["east"], "hotel-stars": ["4"]}, {"hotel-area": ["east"]}, (0, 0, 0, 0, 0, 0, 0, 0, 0)),
    # One missing slot.
    ({"hotel-area": ["east"]}, {"hotel-area": ["east"], "hotel-stars": ["4"]}, (0, 0, 0, 0, 0, 0, 0, 0, 0)),
    # A domain outside the seven, which ConvLab-3 does not have either.
    ({"bus-day": ["monday"], "hotel-area": ["east"]}, {"hotel-area": ["east"]}, (0, 1, 1, 0, 0, 0, 0, 1, 1)),
    # Center and centre.
    ({"hotel-area": ["center"]}, {"hotel-area": ["centre"]}, (0, 0, 0, 0, 0, 0, 0, 0, 1)),
    # Capitals in the prediction.
    ({"hotel-name": ["Warkworth House"]}, {"hotel-name": ["warkworth house"]}, (0, 0, 0, 0, 0, 1, 1, 1, 0)),
    # Capitals in gold, which ParlAI lower-cases.
    ({"hotel-name": ["warkworth house"]}, {"hotel-name": ["Warkworth House"]}, (0, 1, 1, 0, 0, 1, 1, 1, 0)),
    # Missing space. Partial ratio: 11 characters against substrings of 11 of 12, 20 / 22 = 91. Token sort: 2 * 11 / 23
    # = 0.96.
    ({"restaurant-name": ["currygarden"]}, {"restaurant-name": ["curry garden"]}, (0, 0, 0, 0, 0, 0, 0.96, 1, 0)),
    # One-digit hour: '9:15' is within '09:15'. Token sort: '15 9' and '09 15' share 2 of 4 and 5, 4 / 9 = 0.44.
    ({"train-leaveat": ["9:15"]}, {"train-leaveat": ["09:15"]}, (0, 0, 0, 0, 0, 1, 0.44, 0, 0)),
    # Values that contain all delimiters.
    (
        {"restaurant-name": ["a; b | c = d, e - f"]},
        {"restaurant-name": ["a; b | c = d, e - f"]},
        (1, 1, 1, 1, 1, 1, 1, 1, 1),
    ),
    # Values that differ after comma and space, where the released code cuts them. Token sort: 'by express holiday inn'
    # (22) and 'by express river the' (20) share 'by express ' and 'i ', 2 * 13 / 42 = 0.62.
    (
        {"hotel-name": ["express, by holiday inn"]},
        {"hotel-name": ["express, by the river"]},
        (0, 0, 1, 0, 0, 0, 0.62, 0, 1),
    ),
    # Comma without space.
    ({"hotel-name": ["lodge,east"]}, {"hotel-name": ["lodge,west"]}, (0, 0, 0, 0, 0, 0, 0.50, 0, 1)),
    # Slot names with capitals and spaces, which mwzeval normalizes.
    (
        {"train-arriveBy": ["17:15"], "hotel-price range": ["cheap"]},
        {"train-arriveby": ["17:15"], "hotel-pricerange": ["cheap"]},
        (0, 0, 0, 0, 0, 1, 0, 0, 0),
    ),
    # Short slot name.
    ({"taxi-leave": ["17:15"]}, {"taxi-leaveat": ["17:15"]}, (0, 0, 0, 0, 0, 1, 0, 0, 0)),
    # Slot name without book.
    ({"hotel-people": ["2"]}, {"hotel-bookpeople": ["2"]}, (0, 0, 0, 0, 0, 0, 0, 0, 0)),
    # One extra slot, spelled differently than in the schema.
    ({"hotel-area": ["east"], "hotel-price range": ["cheap"]}, {"hotel-area": ["east"]}, (0, 0, 0, 0, 0, 0, 1, 1, 0)),
    # One extra slot, which MultiWOZ does not have.
    ({"hotel-area": ["east"], "hotel-wifi": ["yes"]}, {"hotel-area": ["east"]}, (0, 0, 0, 0, 0, 0, 1, 1, 0)),
    # One extra slot, in a capitalized domain.
    ({"hotel-area": ["east"], "Hotel-stars": ["4"]}, {"hotel-area": ["east"]}, (0, 1, 1, 0, 0, 0, 1, 1, 1)),
    # One extra slot, in another domain.
    ({"hotel-area": ["east"], "taxi-destination": ["ely"]}, {"hotel-area": ["east"]}, (0, 0, 0, 0, 0, 0, 0, 0, 0)),
    # Dontcare in another spelling.
    (
        {"hotel-area": ["do n't care"], "hotel-stars": ["4"]},
        {"hotel-area": ["dontcare"], "hotel-stars": ["4"]},
        (0, 0, 0, 0, 0, 0, 0, 0, 0),
    ),
    # Empty answer to dontcare alone.
    ({}, {"hotel-area": ["dontcare"]}, (0, SKIP, SKIP, 0, 0, 1, 0, 0, 0)),
    # Different first letter: 13 of 14 are equal, 93 %.
    ({"restaurant-name": ["ian hong house"]}, {"restaurant-name": ["lan hong house"]}, (0, 0, 0, 0, 0, 0, 0.93, 0, 0)),
    # Accented letter, which fuzzywuzzy deletes before it sorts tokens.
    ({"restaurant-name": ["caf\u00e9 uno"]}, {"restaurant-name": ["caf uno"]}, (0, 0, 0, 0, 0, 0, 1, 0, 0)),
    # Error in gold that TRADE's table corrects.
    ({"hotel-type": ["guest house"]}, {"hotel-type": ["guesthouse"]}, (0, 0, 0, 1, 0, 1, 0, 1, 0)),
    # The same in the prediction, to which the table is not applied.
    ({"hotel-type": ["guesthouse"]}, {"hotel-type": ["guest house"]}, (0, 0, 0, 0, 0, 1, 0, 1, 0)),
    # Free parking.
    ({"hotel-parking": ["free"]}, {"hotel-parking": ["free parking"]}, (0, 0, 0, 1, 0, 0, 0, 0, 0)),
    # 4-star.
    ({"hotel-stars": ["4-star"]}, {"hotel-stars": ["4"]}, (0, 0, 0, 0, 0, 1, 0, 0, 1)),
    # Alternatives in one string. Token sort: 'chinese thai' and 'chinese', 2 * 7 / 19 = 0.74.
    ({"restaurant-food": ["thai|chinese"]}, {"restaurant-food": ["chinese"]}, (0, 0, 0, 0, 0, 1, 0.74, 1, 0)),
]


def test_readme_describes_all_presets_and_normalizers() -> None:
    text = (ROOT / "dair_hf/metrics/joint_goal_accuracy/README.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)`.* \| .{9,} \|$", text, re.MULTILINE)
    assert described == list(PRESETS), "the table of presets in the README of joint_goal_accuracy"
    switch = re.search(r"`normalizer`\s([\w|]+)", text)
    assert switch and switch[1].split("|") == list(NORMALIZERS), "the switch `normalizer` in that README"
    assert get_args(get_type_hints(Convention)["normalizer"]) == tuple(NORMALIZERS)


@pytest.mark.parametrize("preset", ORDER)
def test_presets_on_all_turns(preset: str) -> None:
    column = ORDER.index(preset)
    predictions, references = [turn[0] for turn in TURNS], [turn[1] for turn in TURNS]
    convention = PRESETS[preset]
    scores, scored = joint_goal_scores(predictions, references, convention)
    correct = joint_goal_correct(predictions, references, preset)
    assert correct.dtype == np.bool_
    for (prediction, reference, expected), score, is_scored, is_correct in zip(
        TURNS, scores, scored, correct, strict=True
    ):
        assert is_scored == (expected[column] is not SKIP)
        if expected[column] is SKIP:
            assert not compare_states(prediction, reference, convention).answered
            continue
        assert score == pytest.approx(expected[column], abs=1e-9), prediction
        assert is_correct == (expected[column] == 1), prediction
    with pytest.warns(UserWarning, match="predictions have slots that no reference has: .*'hotel-wifi'"):
        results = joint_goal_accuracy(predictions, references, preset=preset, intervals=False)
    of_preset = [score for turn in TURNS if (score := turn[2][column]) is not None]
    numerator, denominator = sum(of_preset), len(of_preset)
    assert results["joint_goal_accuracy_numerator"] == pytest.approx(numerator)
    assert results["joint_goal_accuracy_denominator"] == denominator
    assert results["joint_goal_accuracy"] == pytest.approx(numerator / denominator)
    assert results["turns_skipped"] == len(TURNS) - denominator
    assert results["preset"] == preset


@pytest.mark.parametrize(
    ("prediction", "reference", "switch", "before", "after"),
    [
        ({"a-x": "2"}, {"a-x": ["1", "2"]}, {"alternatives": "first"}, 1, 0),
        ({"a-x": ["1", "2"]}, {"a-x": ["1"]}, {"alternatives": "all"}, 1, 0),
        ({"a-x": ["0", "1"]}, {"a-x": ["1"]}, {"alternatives": "overlap"}, 0, 1),
        ({}, {"a-x": ["dontcare"]}, {"dontcare": "drop_both"}, 0, 1),
        ({"a-x": "dontcare"}, {}, {"dontcare": "drop_both"}, 0, 1),
        ({"a-x": "dontcare"}, {"a-x": ["dontcare"]}, {"dontcare": "drop_gold"}, 1, 0),
        ({"a-x": "none"}, {}, {"none": "literal"}, 1, 0),
        ({}, {"a-x": ["none"]}, {"none": "omit_predicted"}, 1, 0),
        ({"a-x": "long name of it"}, {"a-x": ["name of it"]}, {"match": "partial95"}, 0, 1),
        ({"a-x": "garden curry"}, {"a-x": ["curry garden"]}, {"match": "token_sort"}, 0, 1),
        ({"hotel-area": "the east"}, {"hotel-area": ["east the"]}, {"match": "token_sort"}, 0, 0),
        ({"hotel-area": "west"}, {"hotel-area": ["east", "west"]}, {"match": "token_sort"}, 1, 0),
        ({"a-x": "A  B"}, {"a-x": ["a b"]}, {"normalizer": "lower"}, 0, 1),
        ({"a-x": "NONE"}, {}, {"normalizer": "lower"}, 0, 1),
        ({"a-x": "1", "b-x": "1"}, {"a-x": ["1"]}, {"extra": "ignore"}, 0, 1),
        ({"a-x": "1", "b-x": "1"}, {"a-x": ["1"], "b-x": ["none"]}, {"extra": "ignore"}, 0, 1),
        ({"a-x": "1"}, {"a-x": ["dontcare"]}, {"extra": "ignore", "dontcare": "drop_gold"}, 0, 1),
        ({"hotel-wifi": "1"}, {}, {"extra": "penalise_known"}, 0, 1),
        ({"a-x": "1", "b-x": "1"}, {"a-x": ["1"]}, {"domains": ["a"]}, 0, 1),
        ({"a-x": "1", "a-y": "1"}, {"a-x": ["1"]}, {"slots": "a-x"}, 0, 1),
    ],
)
def test_each_switch(
    prediction: dict[str, Any], reference: dict[str, Any], switch: dict[str, Any], before: float, after: float
) -> None:
    assert joint_goal_correct([prediction], [reference])[0] == before
    assert joint_goal_correct([prediction], [reference], "any_of", **switch)[0] == after
    name = resolve_convention("any_of", **switch)[0]
    assert name.startswith("any_of(")
    assert next(iter(switch)) in name


@pytest.mark.parametrize(
    ("preset", "prediction", "reference", "score"),
    [
        # The schema of MultiWOZ 2.2 has the slots of buses, the list of ConvLab-3 does not.
        ("sgd_fuzzy", {"hotel-area": "east", "bus-departure": "ely"}, {"hotel-area": ["east"]}, 0),
        ("sgd_fuzzy", {"hotel-area": "east", "bus-time": "9"}, {"hotel-area": ["east"]}, 1),
        ("convlab3", {"hotel-area": "east", "bus-departure": "ely"}, {"hotel-area": ["east"]}, 1),
        # mwzeval looks for dontcare before it normalizes values.
        ("mwzeval", {"hotel-name": "Dontcare"}, {"hotel-name": ["Dontcare"]}, 1),
        ("mwzeval", {}, {"hotel-name": ["Dontcare"]}, 0),
        ("mwzeval", {}, {"hotel-name": ["dontcare"]}, 1),
    ],
)
def test_corners_as_in_the_evaluators(preset: str, prediction: Any, reference: Any, score: int) -> None:
    with warnings.catch_warnings(action="ignore"):  # of unknown slots
        assert joint_goal_correct([prediction], [reference], preset)[0] == score


NAMES = ("hotel-name", "restaurant-name")


@pytest.mark.parametrize(
    ("preset", "switches", "name", "rules"),
    [
        ("any_of", {}, "any_of", {"empty_answer": "score", "slots": None, "dontcare": "keep"}),
        ("parlai_v22", {}, "parlai_v22(empty_answer=score)", {"slots": None, "dontcare": "drop_both"}),
        ("sgd_fuzzy", {}, "sgd_fuzzy, scores of 1", {}),
        ("dair_released", {}, "dair_released(empty_answer=score)", {"slots": NAMES, "dontcare": "keep"}),
        # What is stated is kept, and the name shows where it differs from the rules of the preset for pairs.
        (
            "dair_released",
            {"dontcare": "drop_both"},
            "dair_released(dontcare=drop_both, empty_answer=score)",
            {"slots": NAMES, "dontcare": "drop_both"},
        ),
        (
            "dair_released",
            {"slots": "hotel-name"},
            "dair_released(slots=hotel-name, empty_answer=score)",
            {"slots": ("hotel-name",), "dontcare": "drop_both", "consistency_slots": None},
        ),
        ("any_of", {"consistency_slots": "hotel-name"}, "any_of(consistency_slots=hotel-name)", {"slots": NAMES[:1]}),
    ],
)
def test_rules_of_pairs(preset: str, switches: dict[str, Any], name: str, rules: dict[str, Any]) -> None:
    shown, convention = resolve_pair_convention(preset, **switches)
    assert shown == name
    assert {key: getattr(convention, key) for key in rules} == rules
    assert convention.empty_answer == "score"


@pytest.mark.parametrize(
    ("normalizer", "slot", "value", "expected"),
    [
        ("trade", "hotel-bookday", "we", "wednesday"),
        ("trade", "hotel-area", "we", "west"),
        ("trade", "attraction-type", "galleria", "none"),
        ("trade", "hotel-type", "galleria", "galleria"),
        ("trade", "hotel-stars", "3 star hotel", "3 star hotel"),
        ("trade", "hotel-internet", "free internet", "yes"),
        ("trade", "police-name", "fun", "fun"),
        ("trade", "train-day", "any", "dontcare"),
        ("mwzeval", "restaurant-name", "Nando's", "nandos"),
        ("mwzeval", "attraction-name", "cafe & bar", "cafe and bar"),
        ("mwzeval", "restaurant-food", "portugese", "portuguese"),
        ("mwzeval", "hotel-parking", "free", "yes"),
        ("mwzeval", "hotel-area", "free", "free"),
        ("mwzeval", "train-leaveat", "after 9:05", "09:05"),
        ("mwzeval", "train-arriveby", "1715", "17:15"),
        ("mwzeval", "train-arriveby", "5 p.m.", "17:00"),
        ("mwzeval", "train-arriveby", "5:30 pm", "17:30"),
        ("mwzeval", "taxi-leaveat", "noon", "12:00"),
        ("mwzeval", "taxi-leaveat", "by 8 am", "08:00"),
        ("mwzeval", "taxi-leaveat", "08 : 30 .", "08:30"),
        ("mwzeval", "taxi-leaveat", "evening", "evening"),
        ("mwzeval", "taxi-leaveat", "by9", "00:00"),
        ("mwzeval", "train-booktime", "5 pm", "5 pm"),
        ("checkdst", "hotel-area", "Centre", "Centre"),
        ("parlai", "hotel-name", " A  b", "a b"),
        ("strip_space", "hotel-name", " A b\tC", "abc"),
        ("first_piece", "hotel-name", "A, b, c", "a"),
        ("none", "hotel-name", " A, b", " A, b"),
    ],
)
def test_normalizers(normalizer: str, slot: str, value: str, expected: str) -> None:
    assert normalize(normalizer, slot, value) == expected


@pytest.mark.parametrize(
    ("value", "other", "partial", "token_sort"),
    [
        # `partial_ratio` and `token_sort_ratio` of fuzzywuzzy 0.18.0 with python-Levenshtein 0.12.2
        ("the warkworth house", "warkworth hause", 93, 82),
        ("saint johns", "saint john s", 91, 96),
        ("bridge guest house", "bridge guest hous", 100, 97),
        ("b & b, north", "north b b", 56, 100),
        ("???", "!!!", 0, 100),
        ("???", "a", 0, 0),
        ("caf\u00e9 uno", "caf uno", 86, 100),
        ("Lovell Lodge", "lodge lovell", 43, 100),
        ("a_b", "a b", 67, 67),
        ("express by holiday inn cambridge", "holiday inn", 100, 51),
        ("17:15", "1715", 75, 44),
    ],
)
def test_fuzzy_ratios(value: str, other: str, partial: int, token_sort: int) -> None:
    for predicted, gold in ((value, other), (other, value)):
        states: Any = [{"police-address": predicted}], [{"police-address": [gold]}]
        assert joint_goal_correct(*states, match="partial95")[0] == (partial > 95)
        scores, _ = joint_goal_scores(*states, resolve_convention(match="token_sort")[1])
        assert scores[0] == pytest.approx(token_sort / 100, abs=1e-9)


# (precision, recall, F1) from mwzeval 7f19ee0 (`get_dst`) and ConvLab-3 2a168fc (`evaluate_unified_datasets`) for the
# turns above whose predictions have one value per slot.
@pytest.mark.parametrize(
    ("preset", "figures"),
    [("mwzeval", (0.5869565217, 0.6923076923, 0.6352941176)), ("convlab3", (0.6315789474, 0.5581395349, 0.5925925926))],
)
def test_slot_precision_recall_and_f1_of_the_evaluators(preset: str, figures: tuple[float, float, float]) -> None:
    turns = [turn for turn in TURNS if all(len(values) == 1 for values in turn[0].values())]
    assert len(turns) == 38
    with pytest.warns(UserWarning, match="no reference has"):
        results = joint_goal_accuracy([t[0] for t in turns], [t[1] for t in turns], preset=preset, intervals=False)
    assert [results[f"slot_{key}"] for key in ("precision", "recall", "f1")] == pytest.approx(figures, abs=1e-9)
