"""Consistency metric of hand-worked states, of the predictions of a run, and of rows with several partners."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import UndefinedMetricWarning
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.evaluation.views import PairIndex
from dair_hf.metrics.consistency_items import (
    _PairCorrectness,
    consistency_metrics,
    judge_pairs,
    read_correctness,
)
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy


def views(name: str, original: Any, augmented: Any = None) -> list[dict[str, Any]]:
    rows = [{"row_id": name, "state": original}]
    return rows if augmented is None else [*rows, {"row_id": name, "variant": "augmented", "state": augmented}]


# Fifteen rows of four dialogues: (row, gold of both views, predictions of both views, H of both views by hand).
PAIRS: list[tuple[str, tuple[Any, ...], tuple[Any, ...], str]] = [
    ("A/0", ({"hotel-name": ["a", "b"]}, {"hotel-name": ["c", "d"]}), ({"hotel-name": "b"}, {"hotel-name": "d"}), "11"),
    ("A/1", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "a"}), "10"),
    ("A/2", ({"hotel-area": ["dontcare"]},), ({"hotel-area": "dontcare"},), "1-"),
    ("A/3", ({"hotel-area": ["dontcare"]},), ({},), "0-"),
    ("B/0", ({}, {}), ({}, {}), "11"),
    ("B/1", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({}, {}), "00"),
    ("B/2", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "c"}, {"hotel-name": "c"}), "01"),
    ("B/3", ({"hotel-name": ["a; b"]}, {"hotel-name": ["c, d"]}), ({"hotel-name": "a; b"}, {"hotel-name": "c"}), "10"),
    ("C/0", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "c"}), "11"),
    ("C/1", ({"hotel-stars": ["4"]},), ({"hotel-stars": "4", "hotel-area": "none"},), "1-"),
    ("C/2", ({"train-day": ["monday"]},), ({"train-day": "friday"},), "0-"),
    (
        "C/3",
        ({"hotel-name": ["a"], "hotel-area": ["x"]}, {"hotel-name": ["c"], "hotel-area": ["x"]}),
        ({"hotel-name": "a", "hotel-area": "y"}, {"hotel-name": "c", "hotel-area": "y"}),
        "00",
    ),
    ("D/0", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "c e"}), "10"),
    ("D/1", ({"hotel-name": ["a"]}, {"hotel-name": ["c"]}), ({"hotel-name": "a"}, {"hotel-name": "c"}), "11"),
    ("D/2", ({"hotel-name": ["dontcare"]},), ({},), "0-"),
]


def consistency(predictions: list[Any], references: list[Any], preset: str = "any_of") -> dict[str, Any]:
    return consistency_metrics(judge_pairs(predictions, references, preset)[1])


def consistency_of_pairs(preset: str = "any_of") -> dict[str, Any]:
    references = [row for name, gold, _, _ in PAIRS for row in views(name, *gold)]
    predictions = [row for name, _, predicted, _ in PAIRS for row in views(name, *predicted)]
    return consistency(predictions[::-1], references, preset)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # 11: A0 B0 C0 D1; 10: A1 B3 D0; 01: B2; 00: B1 C3; without augmented view A2 C1 correct, A3 C2 D2 wrong.
        # Of 10 pairs 4 are correct on both views, 2 on neither. All rows: 9 and 6. The gold states of B0 are the same.
        ("any_of", (3, 6, 1, 1, 6, 9, 4 / 10, 3 / 10, 1 / 10, 2 / 10)),
        # dair_released compares the two names only, cut at comma and space: B3 becomes 11, C3 too (its wrong area does
        # not count), A3 and C2 become correct (they have no name). It requires all alternatives: A0 becomes 00.
        # dontcare is a value of a name, so D2 stays wrong.
        # 11: B0 B3 C0 C3 D1; 10: A1 D0; 01: B2; 00: A0 B1; without augmented view A2 A3 C1 C2 correct, D2 wrong.
        ("dair_released", (4, 6, 1, 1, 9, 11, 5 / 10, 2 / 10, 1 / 10, 2 / 10)),
    ],
)
def test_consistency_of_hand_worked_states(preset: str, expected: tuple[float, ...]) -> None:
    results = consistency_of_pairs(preset)
    names = ("cm", "cm_same_answer", "cm_all_rows")
    counts = [f"{name}_{part}" for name in names for part in ("numerator", "denominator")]
    keys = (*counts, "both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")
    assert [results[key] for key in keys] == pytest.approx(list(expected))
    assert results["pairs"] == 10


def correctness(pattern: str) -> list[dict[str, Any]]:
    """Rows from pairs of characters such as "10"; "-" means no augmented view."""
    value = {"1": True, "0": False, "-": None}
    return [
        {"row_id": f"A/{i}", "original_correct": value[pair[0]], "augmented_correct": value[pair[1]]}
        for i, pair in enumerate(pattern.split())
    ]


def test_correctness_gives_the_same_results_as_states() -> None:
    rows = correctness(" ".join(pair for *_, pair in PAIRS))
    for row, (name, *_) in zip(rows, PAIRS, strict=True):
        row["row_id"] = name
    given, judged = consistency_metrics(read_correctness(rows)), consistency_of_pairs()
    # Without references CM is over all pairs.
    assert (given["cm_numerator"], given["cm_denominator"], "cm_same_answer" in given) == (4, 7, False)
    for key in ("both_correct", "neg_to_neg", "cm_all_rows", "cm_all_rows_low", "original_accuracy_pairs_high"):
        assert given[key] == judged[key]


@pytest.mark.parametrize("own_file", [False, True])
def test_predictions_of_an_evaluation_have_its_intervals(own_file: bool, tmp_path: Path) -> None:
    """The rows r/0 to r/7 of four documents: both metrics take these as units, not the one prefix of all ids."""
    states, wrong = ["hotel-area = east"] * 8, "hotel-area = west"
    predictions = [wrong if row in (1, 4) else states[row] for row in range(8)]
    augmented = [wrong if row in (1, 4, 5, 6) else states[row] for row in range(8)]
    evaluator = PairEvaluator(lambda predictions, references: list(map(str.__eq__, predictions, references)))
    index = PairIndex(np.ones(8, dtype=bool), [f"r/{row}" for row in range(8)])
    documents = list("aabbccdd")
    found = evaluator.evaluate_views(index, [*predictions, *augmented], states * 2, documents)
    path = tmp_path / "predictions.jsonl"
    index.write(path, found.predictions, found.references, found.correct, documents)
    lines = gold = [json.loads(line) for line in path.read_text().splitlines()]
    if own_file:  # which names no clusters
        views = [{"row_id": f"r/{row}", "variant": v} for v in ("original", "augmented") for row in range(8)]
        gold = [view | {"state": {"hotel-area": "east"}} for view in views]
    for results in (consistency_metrics(read_correctness(lines)), consistency(lines, gold)):
        for key in ("both_correct_low", "both_correct_high", "cm_low", "cm_high", "augmented_accuracy_low"):
            assert results[key] == pytest.approx(found.metrics[key], rel=1e-12), key
        # Right in both views: 1, 1, 0 and 2 of the 2 rows of a document. The variance of their mean share 4 / 8 is
        # 4 / 3 * (0 + 0 + 1 + 1) / 64, and 3.182 the t quantile of three degrees of freedom (Wilson's limits).
        trials = 0.25 / (4 / 3 * 2 / 64)
        for limit in (results["both_correct_low"], results["both_correct_high"]):
            assert (0.5 - limit) ** 2 == pytest.approx(3.182446**2 * limit * (1 - limit) / trials, rel=1e-5)
    results = joint_goal_accuracy(lines, gold)
    for view in ("original", "augmented"):
        for end in ("low", "high"):
            expected = found.metrics[f"{view}_accuracy_{end}"]
            assert results[f"{view}_joint_goal_accuracy_{end}"] == pytest.approx(expected, rel=1e-12)


def test_rows_of_one_cluster_are_named() -> None:
    rows = [{"row_id": f"r/{row}", "original_correct": row > 0, "augmented_correct": True} for row in range(4)]
    with pytest.warns(UndefinedMetricWarning, match="all 4 rows, such as 'r/0', are in the same cluster, 'r'"):
        assert math.isnan(consistency_metrics(read_correctness(rows))["both_correct_low"])
    states = [{"row_id": f"r/{row}", "state": {"hotel-area": "east"}} for row in range(4)]
    with pytest.warns(UndefinedMetricWarning, match="all 4 rows, such as 'r/0', are in the same cluster, 'r'"):
        assert math.isnan(joint_goal_accuracy(states, states)["joint_goal_accuracy_low"])
    # Units of their own, by another name of the rows or by a cluster.
    for independent in (
        [row | {"row_id": row["row_id"].replace("/", "-")} for row in rows],
        [row | {"cluster": number} for number, row in enumerate(rows)],
        [{key: row[key] for key in row if key != "row_id"} | {"cluster": number} for number, row in enumerate(rows)],
    ):
        assert consistency_metrics(read_correctness(independent))["both_correct_low"] > 0


# Row A/0 has the partners 1 and 3, A/1 the second, B/0 none.
RIGHT = {
    ("A/0", "original"): True,
    ("A/0", "augmented"): True,
    ("A/0", "augmented_3"): False,
    ("A/1", "original"): True,
    ("A/1", "augmented_2"): True,
    ("B/0", "original"): False,
}


def judged(right: dict[tuple[str, str], bool]) -> list[_PairCorrectness]:
    rows = [{"row_id": row, "variant": variant, "correct": value} for (row, variant), value in right.items()]
    return read_correctness(rows[::-1])


def test_every_partner_is_a_pair_with_its_original() -> None:
    assert judged(RIGHT) == [
        _PairCorrectness("B/0", "B", False),
        _PairCorrectness("A/1", "A", True, {2: True}),
        _PairCorrectness("A/0", "A", True, {1: True, 3: False}),
    ]
    found = consistency_metrics(judged(RIGHT), intervals=False)
    assert (found["rows"], found["pairs"], found["partners"]) == (3, 2, 3)
    assert (found["cm_numerator"], found["cm_denominator"], found["all_correct"]) == (2, 3, 0.5)
    assert (found["cm_partner_1"], found["cm_partner_2"], found["cm_partner_3"]) == (1.0, 1.0, 0.0)


def test_states_of_several_partners() -> None:
    gold = [{"row_id": row, "variant": variant, "state": {"hotel-area": "east"}} for row, variant in RIGHT]
    predicted = [
        line | {"state": {"hotel-area": "west"}} if line["variant"] == "augmented_3" else line for line in gold
    ]
    found = consistency_metrics(judge_pairs(predicted, gold)[1], intervals=False)
    assert (found["cm_numerator"], found["cm_denominator"], found["all_correct"]) == (2, 3, 0.5)
    goal = joint_goal_accuracy(predicted, gold, intervals=False)
    # Three partners, of which one is wrong, and the original of the row without one.
    assert (goal["augmented_joint_goal_accuracy"], goal["original_joint_goal_accuracy"]) == (3 / 4, 1.0)
    assert (goal["augmented_turns"], goal["original_turns"]) == (4, 3)
