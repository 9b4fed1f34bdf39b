"""Joint goal accuracy and related figures by hand, of both views, of texts, and speed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from dair_hf.errors import BeliefTextWarning, DataError
from dair_hf.metrics.state.belief_text import read_belief
from dair_hf.metrics.state.conventions import PRESETS
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct, joint_goal_scores

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


def test_undefined_ratios_are_nan() -> None:
    results = joint_goal_accuracy([{}], [{}])
    assert results["joint_goal_accuracy"] == 1.0
    undefined = ("slot_precision", "slot_recall", "slot_f1", "joint_goal_accuracy_names", "joint_goal_accuracy_low")
    assert all(math.isnan(results[key]) for key in undefined)
    all_skipped = joint_goal_accuracy([{}], [{}], preset="parlai_v22")
    assert math.isnan(all_skipped["joint_goal_accuracy"])
    assert all_skipped["turns_skipped"] == 1


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
    with pytest.raises(DataError, match="row_id.*B/0"):
        joint_goal_accuracy([*predictions[:3], predictions[4]], [*references[:3], references[4]])


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
    gold = [{"row_id": str(row), "state": {"hotel-area": "west"}} for row in range(4)]
    texts = ["hotel-area = west", "hotel area", " ", '{"hotel-area": true}']
    lines = [{"row_id": str(row), "prediction": text} for row, text in enumerate(texts)]
    with pytest.warns(BeliefTextWarning, match=r"^2 of 4 predictions, such as predictions\[1\]"):
        found = joint_goal_accuracy(lines, gold, preset=preset, intervals=False)
    assert (found["joint_goal_accuracy"], found["turns_skipped"]) == (1 / 3, 1)
    scores, scored = joint_goal_scores(map(read_belief, texts), [g["state"] for g in gold], PRESETS[preset])
    assert (scores.tolist(), scored.tolist()) == ([1.0, 0.0, 0.0, 0.0], [True, True, False, True])
