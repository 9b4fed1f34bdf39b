"""Joint goal accuracy and related figures, matching by id, input shapes, speed."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import BeliefTextWarning, DataError
from dair_hf.metrics.state.belief_text import read_belief
from dair_hf.metrics.state.conventions import PRESETS
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct, joint_goal_scores
from tests.fixtures.cpu_time import cpu_time

PREDICTIONS = [
    {"row_id": "A/0", "state": {"hotel-name": "acorn", "hotel-area": "east"}},
    {"row_id": "A/1", "state": {"hotel-name": "acorn", "train-day": "monday"}},
    {"row_id": "B/0", "state": {"restaurant-name": "tang", "hotel-area": "west"}},
    {"row_id": "B/1", "state": {}},
]
REFERENCES = [
    {"row_id": "A/0", "state": {"hotel-name": ["acorn", "acorn house"], "hotel-area": ["east"]}},
    {"row_id": "A/1", "state": {"hotel-name": ["acorn"], "hotel-stars": ["4"], "train-day": ["monday"]}},
    {"row_id": "B/0", "state": {"restaurant-name": ["thanh"], "hotel-area": ["dontcare"]}},
    {"row_id": "B/1", "state": {}},
]


def test_hand_worked_figures() -> None:
    results = joint_goal_accuracy(PREDICTIONS, REFERENCES)
    # Correct: A/0 and B/1. Slots (hits, predicted, gold): A/0 2, 2, 2; A/1 2, 2, 3; B/0 0, 2, 2.
    assert (results["joint_goal_accuracy_numerator"], results["joint_goal_accuracy_denominator"]) == (2, 4)
    assert results["slot_precision"] == pytest.approx(4 / 6)
    assert results["slot_recall"] == pytest.approx(4 / 7)
    assert results["slot_f1"] == pytest.approx(8 / 13)
    # Names: A/0 and A/1 correct (its missing slot is not a name), B/0 wrong, B/1 has none.
    assert (results["joint_goal_accuracy_names_numerator"], results["joint_goal_accuracy_names_denominator"]) == (2, 3)
    by_domain = {domain: tuple(inner.values())[1:] for domain, inner in results["by_domain"].items()}
    assert by_domain == {"hotel": (1, 3), "restaurant": (0, 1), "train": (1, 1)}
    counts = ("turns", "turns_skipped", "empty_predictions", "empty_references", "references_with_dontcare")
    assert [results[key] for key in counts] == [4, 0, 1, 1, 1]
    assert results["preset"] == "any_of"
    assert results["switches"]["alternatives"] == "any"
    # Both dialogues have 1 of 2 correct: the score interval of 1/2 in two trials, 12.706 the t quantile of one degree.
    for limit in (results["joint_goal_accuracy_low"], results["joint_goal_accuracy_high"]):
        assert (0.5 - limit) ** 2 == pytest.approx(12.7062**2 * limit * (1 - limit) / 2, rel=1e-4)


def test_precision_counts_pairs_if_all_alternatives_are_required() -> None:
    results = joint_goal_accuracy(
        [{"hotel-name": ["a", "b"]}], [{"hotel-name": ["b", "c"], "hotel-area": ["x"]}], preset="parlai_v22"
    )
    # Predicted pairs: (name, a), (name, b). Gold pairs: (name, b), (name, c), (area, x). One is common.
    assert (results["slot_precision"], results["slot_recall"]) == (pytest.approx(1 / 2), pytest.approx(1 / 3))


def test_ignored_slots_do_not_lower_precision() -> None:
    references, predictions = [{"hotel-area": ["x"]}], [{"hotel-area": ["x"], "hotel-stars": ["4"]}]
    for alternatives in ("any", "all"):
        results = joint_goal_accuracy(predictions, references, alternatives=alternatives, extra="ignore")
        assert (results["joint_goal_accuracy"], results["slot_precision"], results["slot_recall"]) == (1.0, 1.0, 1.0)
        assert joint_goal_accuracy(predictions, references, alternatives=alternatives)["slot_precision"] == 0.5


def test_undefined_ratios_are_nan() -> None:
    results = joint_goal_accuracy([{}], [{}])
    assert results["joint_goal_accuracy"] == 1.0
    undefined = ("slot_precision", "slot_recall", "slot_f1", "joint_goal_accuracy_names", "joint_goal_accuracy_low")
    assert all(math.isnan(results[key]) for key in undefined)
    all_skipped = joint_goal_accuracy([{}], [{}], preset="parlai_v22")
    assert math.isnan(all_skipped["joint_goal_accuracy"])
    assert all_skipped["turns_skipped"] == 1


def test_rows_are_matched_by_id_not_by_order() -> None:
    expected = joint_goal_accuracy(PREDICTIONS, REFERENCES)
    assert joint_goal_accuracy(PREDICTIONS[::-1], REFERENCES) == expected
    plain_predictions = [item["state"] for item in PREDICTIONS]
    plain_references = [item["state"] for item in REFERENCES]
    ids = [item["row_id"] for item in REFERENCES]
    separate = joint_goal_accuracy(
        plain_predictions[::-1], plain_references, prediction_ids=ids[::-1], reference_ids=[id.split("/") for id in ids]
    )
    assert separate == expected
    assert joint_goal_accuracy(plain_predictions[::-1], plain_references)["joint_goal_accuracy_numerator"] == 0


def test_views_are_not_averaged() -> None:
    def item(row_id: str, area: str | None, variant: str = "original") -> dict[str, Any]:
        return {"row_id": row_id, "variant": variant, "state": {} if area is None else {"hotel-area": area}}

    references = [
        item("A/0", "east"), item("A/0", "west", "augmented"), item("A/1", "east"),
        item("B/0", "north"), item("B/0", "south", "augmented"),
    ]  # fmt: skip
    predictions = [
        item("A/0", "east"), item("A/0", "east", "augmented"), item("A/1", "east"),
        item("B/0", "north"), item("B/0", None, "augmented"),
    ]  # fmt: skip
    results = joint_goal_accuracy(predictions[::-1], references)
    # Original: all three rows are right. Augmented: A/0 and B/0 wrong; A/1 has no augmented view and counts as it is.
    ends = ("numerator", "denominator")
    assert [results[f"original_joint_goal_accuracy_{end}"] for end in ends] == [3, 3]
    assert [results[f"augmented_joint_goal_accuracy_{end}"] for end in ends] == [1, 3]
    assert (results["original_slot_recall"], results["augmented_slot_recall"]) == (1.0, 1 / 3)
    assert (results["original_empty_predictions"], results["augmented_empty_predictions"]) == (0, 1)
    assert results["augmented_by_domain"]["hotel"]["joint_goal_accuracy"] == 1 / 3
    assert "joint_goal_accuracy" not in results
    assert results["preset"] == "any_of"
    # One view alone has plain keys, whichever it is.
    alone = [item("A/0", "east", "augmented")]
    assert joint_goal_accuracy(alone, alone)["joint_goal_accuracy"] == 1.0
    with pytest.raises(DataError, match=r"1 augmented views have no original view \(e\.g\. B/0\)"):
        joint_goal_accuracy([*predictions[:3], predictions[4]], [*references[:3], references[4]])


@pytest.mark.parametrize(
    "state",
    [
        {"hotel-area": ["east"], "hotel-stars": ["4"]},
        {"hotel-area": "east", "hotel-stars": 4},
        {"hotel-area": "east", "hotel-stars": 4.0},
        {"hotel-area": "east", "hotel-stars": np.int64(4)},
        {"hotel-area": "east", "hotel-stars": [np.float32(4.0)]},
        {"hotel-area": "east", "hotel-stars": np.uint8(4)},
        {"id": "A/0", "prediction": "hotel-area = east ; hotel-stars = 4", "correct": True},
        {"row_id": "A/0", "variant": "original", "prediction": {"hotel": {"area": "east", "stars": 4}}},
        {"hotel": {"area": "east", "stars": ["4"]}},
        [{"slot": "hotel-area", "values": ["east"]}, {"slot": "hotel-stars", "values": ["4"]}],
        '{"hotel-area": "east", "hotel-stars": "4"}',
        {"id": "A/0", "state": {"hotel-area": ["east"], "hotel-stars": ["4"]}},
        {"dialogue_id": "A", "turn_id": 0, "state": '{"hotel": {"area": "east", "stars": 4}}'},
    ],
)
def test_all_accepted_shapes_give_the_same_result(state: Any) -> None:
    reference: Any = {"hotel-area": ["east"], "hotel-stars": ["4"]}
    if isinstance(state, dict) and {"state", "prediction"} & state.keys():
        reference = {"row_id": "A/0", "state": reference}
    assert joint_goal_accuracy([state], [reference])["slot_f1"] == 1.0


def test_slot_named_state() -> None:
    assert joint_goal_correct([{"state": ["ca"]}], [{"state": ["ca", "california"]}])[0]
    assert not joint_goal_correct([{"state": "ny"}], [{"state": ["ca"]}])[0]


@pytest.mark.parametrize(
    ("predictions", "references", "ids", "message"),
    [
        ([{}], [{}, {}], None, "found 1 predictions for 2 references"),
        (PREDICTIONS[:3], REFERENCES, None, "1 (e.g. B/1 (original)) without prediction, 0 without reference"),
        (PREDICTIONS, REFERENCES[:2], None, "0 without prediction, 2 (e.g. B/0 (original), B/1 (original))"),
        ([*PREDICTIONS, PREDICTIONS[0]], REFERENCES, None, "predictions[4]: the id A/0 (original) was already used at"),
        ([*PREDICTIONS[:3], {}], REFERENCES, None, "predictions: 1 of 4 items have no id, the first at predictions[3]"),
        (PREDICTIONS, [{}] * 4, None, "predictions have ids and references have none"),
        ([{}], [{}], ["a", "b"], "predictions: found 2 ids for 1 items"),
        ([], [], None, "nothing to score: predictions and references contain no turns"),
        (["hotel-area = east"], [{}], None, "predictions[0]: invalid JSON at column 1"),
        ([{"a-x": None}], [{}], None, "predictions[0]: the slot 'a-x' has None"),
        ([{"a-x": [["y"]]}], [{}], None, "predictions[0]: the slot 'a-x' has ['y']"),
        ([3], [{}], None, "predictions[0]: a state must be an object"),
        ([[{"slot": "a"}]], [{}], None, "a state as a list needs"),
        ([["hotel-area"]], [{}], None, "a state as a list needs {'slot': ..., 'values': [...]}, found 'h"),
        ([[{"slot": ["a"], "values": []}]], [{}], None, "a slot must be a name such as 'hotel-area', found ['a']"),
        ([{3: "x"}], [{}], None, "predictions[0]: a slot must be a name such as 'hotel-area', found 3"),
        ([{"": "x"}], [{}], None, "a slot must be a name such as 'hotel-area', found ''"),
        ([{"text": "x", "augmented_text": "y"}], [{}], None, "'augmented_text' is a column of pairs and no slot"),
        ([[{"slot": "a-x", "values": "1"}] * 2], [{}], None, "predictions[0]: the slot 'a-x' is repeated; put all its"),
        ([{"a": {"x": "1"}, "a-x": "2"}], [{}], None, "predictions[0]: the slot 'a-x' is repeated"),
        ([{"a-x": "2", "a": {"x": "1"}}], [{}], None, "predictions[0]: the slot 'a-x' is repeated"),
        (['{"a-x": "1", "a-x": "2"}'], [{}], None, "predictions[0]: invalid JSON at column 1 ('a-x' is repeated)"),
        (['{"a-x": NaN}'], [{}], None, "predictions[0]: invalid JSON at column 1 (NaN is not allowed in JSON)"),
        (
            ['{"\\ud800-x": "1"}'],
            [{}],
            None,
            "predictions[0]: invalid JSON at column 3 (\\ud800 is half of a surrogate pair)",
        ),
        ([{"a-x": float("nan")}], [{}], None, "predictions[0]: the slot 'a-x' has nan"),
        ([{"a-x": [["y" * 999]]}], [{}], None, "...; use a string or a list of strings"),
        ([{"row_id": "A/0", "text": "x"}], [{}], None, "predictions[0]: the key 'state' is missing"),
        ([{"id": "A/0", "hotel-area": "x"}], [{}], None, "the key 'state' is missing; found 'id', 'hotel-area'"),
        ([{"turn_id": 0, "hotel-area": "x"}], [{}], None, "the key 'state' is missing; found 'turn_id', 'hotel-area'"),
        ([{"row_id": "A/0", "reference": "x"}], [{}], None, "predictions[0]: the key 'state' is missing"),
        ([{"a-x": np.float64("nan")}], [{}], None, "predictions[0]: the slot 'a-x' has"),
        ([{"a-x": np.bool_(True)}], [{}], None, "predictions[0]: the slot 'a-x' has"),
        ([{"row_id": "A/0", "state": None}], [{}], None, "predictions[0]: a state must be an object of slots"),
        (
            [{"row_id": "A/0", "state": "a-x = 1"}],
            [{}],
            None,
            "predictions[0]: invalid JSON at column 1 (Expecting value)",
        ),
        ([{"row_id": "A/0", "state": ["a-x"]}], [{}], None, "predictions[0]: a state as a list needs"),
        ([[{"row_id": "A/0", "state": {}}]], [{}], None, "predictions[0]: found a list of items, starting with {'row"),
        ([{"row_id": "", "state": {}}], [{}], None, "row_id must be a string or an integer, found ''"),
        ([{"row_id": ["A", 0], "state": {}}], [{}], None, "row_id must be a string or an integer, found ['A'"),
        (
            [{"dialogue_id": "A", "turn_id": True, "state": {}}],
            [{}],
            None,
            "turn_id must be a string or an integer, found True",
        ),
        (
            [{"dialogue_id": ["A"], "turn_id": 0, "state": {}}],
            [{}],
            None,
            "dialogue_id must be a string or an integer, found ['A",
        ),
        ([{}], [{}], [["A"]], "an id must be a string, (dialogue, turn) or (dialogue, turn, variant), found ['A"),
        ([{"row_id": True, "state": {}}], [{}], None, "row_id must be a string or an integer, found True"),
        ([{"dialogue_id": "A", "state": {}}], [{}], None, "found dialogue_id without turn_id"),
        ([{"turn_id": 0, "state": {}}], [{}], None, "predictions[0]: found turn_id without dialogue_id"),
        (
            [{"row_id": "A", "variant": "swapped", "state": {}}],
            [{}],
            None,
            "variant must be 'original' or 'augmented', found 'swapped'",
        ),
    ],
)
def test_errors_of_invalid_input(predictions: Any, references: Any, ids: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        joint_goal_accuracy(predictions, references, prediction_ids=ids)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250


def test_speed_on_fifteen_thousand_turns() -> None:
    rng = random.Random(0)
    slots = ["hotel-area", "hotel-name", "hotel-stars", "train-day", "train-departure", "restaurant-food"]
    states = [{slot: [rng.choice(["a b", "c d", "dontcare", "centre"])] for slot in slots} for _ in range(15_000)]
    for preset in ("any_of", "mwzeval"):
        with cpu_time() as spent:
            joint_goal_correct(states, states, preset)
        assert spent.seconds < 2.5  # measured: 0.7 and 0.9


def set_of_items(text: str) -> set[tuple[str, str]]:
    """Belief text as the evaluators of SimpleTOD and DAIR see it: a set of slots with values, without none."""
    fields = [field.split(" = ") for field in text.split(" ; ") if " = " in field]
    return {(slot, value) for slot, value in fields if value != "none"}


@pytest.mark.parametrize("preset", PRESETS)
def test_repeated_slots_are_right_as_sets_of_items_are(preset: str) -> None:
    if PRESETS[preset].match != "exact":
        pytest.importorskip("rapidfuzz")
    gold = {"hotel-area": ["west"], "hotel-stars": ["4"]}
    fields = ["hotel-area = west", "hotel-area = east", "hotel-area = none", "hotel-stars = 4", "hotel-stars = 5"]
    if PRESETS[preset].none == "literal":
        fields.remove("hotel-area = none")
    texts = [" ; ".join(chosen) for count in range(5) for chosen in itertools.product(fields, repeat=count)]
    found = joint_goal_correct([read_belief(text) for text in texts], [gold] * len(texts), preset)
    items = {("hotel-area", "west"), ("hotel-stars", "4")}
    expected = [set_of_items(text) == items for text in texts]
    assert 10 < sum(expected) < len(texts) / 2
    assert found.tolist() == expected
    lines = [{"row_id": str(number), "prediction": text} for number, text in enumerate(texts)]
    references = [{"row_id": str(number), "state": gold} for number in range(len(texts))]
    summary = joint_goal_accuracy(lines, references, preset=preset, empty_answer="score", intervals=False)
    assert summary["joint_goal_accuracy_numerator"] == pytest.approx(sum(expected)) or preset == "sgd_fuzzy"


@pytest.mark.parametrize("preset", ["parlai_v22", "dair_released"])
def test_garbled_answers_are_not_skipped(preset: str) -> None:
    """The released code skips empty answers only."""
    gold = [{"row_id": str(row), "state": {"hotel-area": "west"}} for row in range(3)]
    texts = ["hotel-area = west", "hotel area", " "]
    lines = [{"row_id": str(row), "prediction": text} for row, text in enumerate(texts)]
    with pytest.warns(
        BeliefTextWarning, match=r"^1 of 3 predictions, such as predictions\[1\], are text in another form"
    ):
        found = joint_goal_accuracy(lines, gold, preset=preset, intervals=False)
    assert (found["joint_goal_accuracy"], found["turns_skipped"]) == (0.5, 1)
    scores, scored = joint_goal_scores(map(read_belief, texts), [g["state"] for g in gold], PRESETS[preset])
    assert (scores.tolist(), scored.tolist()) == ([1.0, 0.0, 0.0], [True, True, False])
