"""Metrics of files whose rows have several partners, such as the predictions of a run."""

from __future__ import annotations

from typing import Any

import evaluate
import pytest

import dair_hf.metrics
from dair_hf.errors import DataError
from dair_hf.metrics.consistency_items import (
    PairCorrectness,
    compare_models,
    consistency_metrics,
    read_correctness,
)
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy

# Row A/0 has the partners 1 and 3, A/1 the second, B/0 none.
RIGHT = {
    ("A/0", "original"): True,
    ("A/0", "augmented"): True,
    ("A/0", "augmented_3"): False,
    ("A/1", "original"): True,
    ("A/1", "augmented_2"): True,
    ("B/0", "original"): False,
}


def lines(right: dict[tuple[str, str], bool] = RIGHT) -> list[dict[str, Any]]:
    return [{"row_id": row, "variant": variant, "correct": value} for (row, variant), value in right.items()]


def read(items: list[dict[str, Any]]) -> list[PairCorrectness]:
    return read_correctness(items)


def test_views_are_joined_to_rows() -> None:
    assert read(lines()[::-1]) == [
        PairCorrectness("B/0", "B", False),
        PairCorrectness("A/1", "A", True, {2: True}),
        PairCorrectness("A/0", "A", True, {1: True, 3: False}),
    ]


def test_every_partner_is_a_pair_with_its_original() -> None:
    found = consistency_metrics(read(lines()), intervals=False)
    assert (found["rows"], found["pairs"], found["partners"]) == (3, 2, 3)
    assert (found["cm_numerator"], found["cm_denominator"], found["all_correct"]) == (2, 3, 0.5)
    assert (found["cm_partner_1"], found["cm_partner_2"], found["cm_partner_3"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("variant", ["augmented_1", "augmented_02", "augmented_x", "Augmented", 2])
def test_other_variants_are_refused(variant: Any) -> None:
    with pytest.raises(DataError, match="variant must be 'original' or 'augmented', found"):
        read([*lines(), {"row_id": "B/0", "variant": variant, "correct": True}])


def test_models_are_compared_on_all_partners() -> None:
    other = {view: not value if view[0] == "A/0" else value for view, value in RIGHT.items()}
    found = compare_models(read(lines()), read(lines(other)))
    assert (found["original"]["only_a"], found["original"]["only_b"]) == (1, 0)
    assert (found["augmented"]["only_a"], found["augmented"]["only_b"]) == (1, 1)
    fewer = [line for line in lines() if line["variant"] != "augmented_3"]
    with pytest.raises(DataError, match="1 rows have an augmented view for one model only .*A/0"):
        compare_models(read(lines()), read(fewer))


def states(wrong: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """States of the views; those of some variants are wrong."""
    return [
        {"row_id": row, "variant": variant, "state": {"hotel-area": ["west" if variant in wrong else "east"]}}
        for row, variant in RIGHT
    ]


def test_states_of_several_partners() -> None:
    gold, predicted = states(), states(("augmented_3",))
    metric = evaluate.load(dair_hf.metrics.consistency)
    found = metric.compute(predictions=predicted, references=gold, intervals=False)
    assert (found["cm_numerator"], found["cm_denominator"], found["all_correct"]) == (2, 3, 0.5)
    goal = joint_goal_accuracy(predicted, gold, intervals=False)
    # Three partners, of which one is wrong, and the original of the row without one.
    assert (goal["augmented_joint_goal_accuracy"], goal["original_joint_goal_accuracy"]) == (3 / 4, 1.0)
    assert (goal["augmented_turns"], goal["original_turns"]) == (4, 3)
