"""Evaluation of rows with several partners: metrics by hand, order of views, and each view predicted once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from dair_hf import DataError, PairEvaluator, TensorPairs
from dair_hf.evaluation.statistics import correctness_metrics
from dair_hf.evaluation.views import PairViews, views_of
from tests.fixtures import points, tiny

# Five rows of three dialogues: two partners, the first, the second, none, three.
ORIGINAL = np.array([1, 1, 0, 1, 1])
AUGMENTED = np.array([[1, 0, 9], [1, 9, 9], [9, 1, 9], [9, 9, 9], [1, 1, 0]])  # 9: absent
PARTNERS = AUGMENTED != 9
DIALOGUES = ["a", "a", "b", "b", "c"]


def test_metrics_of_several_partners_by_hand() -> None:
    found = correctness_metrics(ORIGINAL, AUGMENTED, PARTNERS, DIALOGUES)
    # Pairs: row 0 right-right, right-wrong; row 1 right-right; row 2 wrong-right; row 4 right-right twice, right-wrong.
    assert (found["rows"], found["pairs"], found["partners"]) == (5, 4, 7)
    assert (found["cm_numerator"], found["cm_denominator"]) == (4, 6)
    assert (found["reverse_cm_numerator"], found["reverse_cm_denominator"]) == (4, 5)
    # Row 3 is one view more, which is right.
    assert (found["cm_all_rows_numerator"], found["cm_all_rows_denominator"]) == (5, 7)
    expected = {
        "original_accuracy": 4 / 5,
        "augmented_accuracy": 6 / 8,
        "original_accuracy_pairs": 6 / 7,
        "augmented_accuracy_pairs": 5 / 7,
        "cm": 4 / 6,
        "cm_all_rows": 5 / 7,
        "both_correct": 4 / 7,
        "pos_to_neg": 2 / 7,
        "neg_to_pos": 1 / 7,
        "neg_to_neg": 0.0,
        "reverse_cm": 4 / 5,
        "both_views_accuracy": (6 + 5) / 14,
        "all_correct": 1 / 4,  # row 1
        "cm_partner_1": 3 / 3,
        "cm_partner_2": 1 / 2,
        "cm_partner_3": 0 / 1,
        "augmented_accuracy_partner_1": 3 / 3,
        "augmented_accuracy_partner_2": 2 / 3,
        "augmented_accuracy_partner_3": 0 / 1,
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-12), key
        if key.endswith("partner_3"):  # of one row
            assert math.isnan(found[f"{key}_low"])
        else:
            assert found[f"{key}_low"] <= value <= found[f"{key}_high"], key
    changed = np.where(PARTNERS, [[0, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 1]], 9)
    flips = correctness_metrics(ORIGINAL, AUGMENTED, PARTNERS, answer_changed=changed, intervals=False)
    assert (flips["flipped"], flips["neg_to_neg_flipped"]) == (pytest.approx(4 / 7), 0.0)


def test_intervals_have_whole_rows_as_units() -> None:
    """Two partners that always agree give the intervals of one, not those of twice as many pairs."""
    random = np.random.default_rng(0)
    original, first = random.random(60) < 0.8, random.random(60) < 0.6
    one = correctness_metrics(original, first)
    two = correctness_metrics(original, np.stack([first, first], axis=1))
    for key in ("cm", "both_correct", "pos_to_neg"):
        assert [two[key + end] for end in ("", "_low", "_high")] == [one[key + end] for end in ("", "_low", "_high")]
    assert two["all_correct"] == two["both_correct"]
    halves = correctness_metrics(np.tile(original, 2), np.tile(first, 2))
    assert halves["cm_high"] - halves["cm_low"] < 0.8 * (two["cm_high"] - two["cm_low"])


def test_one_column_of_partners_is_one_partner() -> None:
    assert correctness_metrics([1, 0, 1], np.array([[1], [1], [0]])) == correctness_metrics([1, 0, 1], [1, 1, 0])
    tensors = correctness_metrics(
        torch.tensor(ORIGINAL), torch.tensor(AUGMENTED), torch.tensor(PARTNERS), intervals=False
    )
    assert tensors == correctness_metrics(ORIGINAL, AUGMENTED, PARTNERS, intervals=False)


def test_cm_of_a_partner_number_follows_its_own_answers() -> None:
    """The answer changes for the first partner of rows 0 and 1, and for no second partner."""
    same = np.array([[False, True], [False, True], [True, True]])
    augmented = np.array([[1, 1], [0, 1], [1, 0]])
    found = correctness_metrics([1, 1, 1], augmented, same_answer=same, intervals=False)
    assert (found["cm_numerator"], found["cm_denominator"]) == (1, 2)
    assert (found["cm_same_answer_numerator"], found["cm_same_answer_denominator"]) == (3, 4)
    assert (found["cm_partner_1"], found["cm_partner_1_denominator"]) == (0.5, 2)
    assert (found["cm_partner_2_numerator"], found["cm_partner_2_denominator"]) == (2, 3)


# ---- views and evaluator ----

ROWS: dict[str, list[Any]] = {
    "row_id": ["a", "b", "c", "d", "e"],
    "input_ids": [[1], [2], [3], [4], [5]],
    "labels": [[1], [2, 2], [3], [4], [5]],
    "augmented_input_ids": [[11, 1], [12], None, None, [15]],
    "augmented_labels": [[11], [12], None, None, [15]],
    "augmented_2_input_ids": [[21], None, [23], None, [25]],
    "augmented_2_labels": [[21, 1, 1], None, [23], None, [25]],
    "augmented_4_input_ids": [None, None, None, None, [45]],
    "augmented_4_labels": [None, None, None, None, [45]],
}
ORDER = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (1, 1), (4, 1), (0, 2), (2, 2), (4, 2), (4, 4)]


def test_originals_come_first_then_each_number_of_a_partner() -> None:
    views = PairViews(datasets.Dataset.from_dict(ROWS))
    assert list(zip(views.rows.tolist(), views.variants.tolist(), strict=True)) == ORDER
    firsts = [feature["input_ids"][0] for feature in views.features(range(len(views)))]
    assert firsts == [row + 1 + 10 * variant for row, variant in ORDER]
    assert [labels[0] for labels in views.column("labels")] == firsts
    assert views.lengths().tolist() == [1] * 5 + [2] + [1] * 6
    assert views.target_lengths().tolist() == [1, 2, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1]
    assert len(views.distinct()[0]) == len(views)
    assert len(views.originals()) == 5
    assert views.describe_view(11) == "row 'e' (augmented_4 view)"


def test_labels_without_a_column_are_inherited() -> None:
    rows = {name: values for name, values in ROWS.items() if name not in ("augmented_labels", "augmented_2_labels")}
    views = PairViews(datasets.Dataset.from_dict({**rows, "augmented_4_labels": ROWS["augmented_4_labels"]}))
    assert [labels[0] for labels in views.column("labels")] == [1, 2, 3, 4, 5, 1, 2, 5, 1, 3, 5, 45]
    with pytest.raises(DataError, match="augmented_2_text"):
        PairViews(datasets.Dataset.from_dict({**ROWS, "text": ["t"] * 5, "augmented_text": ["t"] * 5})).column("text")


def test_tensors_and_rows_have_the_same_views() -> None:
    x, _, labels = points.points(4)
    views = [{"x": x + number, "labels": labels} for number in range(3)]
    mask = torch.tensor([[True, True], [False, True], [False, False], [True, False]])
    pairs = TensorPairs(views[0], views[1:], has_partner=mask)
    tensors, rows = views_of(pairs), PairViews(points.rows_of(pairs))
    assert tensors.variants.tolist() == rows.variants.tolist() and tensors.rows.tolist() == rows.rows.tolist()
    assert set(tensors.column_names) == set(rows.column_names)
    assert tensors.column("x") == rows.column("x")
    order = range(len(tensors))[::-1]
    assert tensors.features(order)["x"].tolist() == [row["x"] for row in rows.features(order)]
    assert tensors.values("augmented_2_x") == rows.values("augmented_2_x")


def same(predictions: list[Any], references: list[Any]) -> list[bool]:
    return [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]


def test_predictions_of_any_system() -> None:
    evaluator = PairEvaluator(same, answers=lambda predictions: predictions, scores={"length": lengths})
    found = evaluator(
        ["a", "b", "x", "d", "e"],
        {1: ["a1", "b1", None, None, "e1"], 2: ["no", None, "c2", None, "e2"], 3: [None] * 4 + ["longer"]},
        ["a", "b", "c", "d", "e"],
        {1: ["a1", "b1", None, None, "e1"], 2: ["a2", None, "c2", None, "e2"], 3: [None] * 4 + ["e3"]},
        clusters=DIALOGUES,
        subsets={"first": [True, True, False, False, False]},
    )
    expected = correctness_metrics(ORIGINAL, AUGMENTED, PARTNERS, DIALOGUES)
    assert {key: found[key] for key in expected} == pytest.approx(expected, nan_ok=True)
    assert found["flipped"] == 1.0
    assert found["original_length"] == 1.0
    assert found["augmented_length"] == (6 * 2 + 1 + 6) / 8  # row d counts with its original
    assert (found["first_cm_numerator"], found["first_cm_denominator"], found["first_all_correct"]) == (2, 3, 0.5)
    assert np.isnan(found["first_cm_partner_3"])
    shared = evaluator(["a"], {1: ["a"], 2: ["b"]}, ["a"], intervals=False)  # the references of the originals
    assert (shared["cm_partner_1"], shared["cm_partner_2"]) == (1.0, 0.0)


def lengths(predictions: list[Any], references: list[Any]) -> list[int]:
    return [len(prediction) for prediction in predictions]


@pytest.mark.parametrize(
    ("augmented", "references"),
    [
        ({0: ["a"]}, None),
        ({1: ["a"], 2: ["a", "b"]}, None),
        ({1: ["a"], 2: ["a"]}, {1: ["a"]}),
        ({1: ["a"], 2: ["a"]}, ["a"]),
    ],
)
def test_incomplete_predictions_are_refused(augmented: Any, references: Any) -> None:
    with pytest.raises(DataError, match="partners from 1 on"):
        PairEvaluator(same)(["a"], augmented, ["a"], references, intervals=False)


# ---- the trainer ----


def test_each_view_is_predicted_once_and_written_with_its_variant(tmp_path: Path) -> None:
    rows = tiny.pairs("gpt2", 7, target_lengths=(1, 3))
    second = tiny.pairs("gpt2", 7, seed=3, target_lengths=(1, 3), partner=lambda row: row in (0, 1, 6))
    for name in [name for name in second.column_names if name.startswith("augmented_")]:
        rows = rows.add_column(name.replace("augmented_", "augmented_2_"), second[name][:])
    made = tiny.trainer(tmp_path, "gpt2", None, sample_loss="causal")
    seen: list[Any] = []

    def record(predictions: list[Any], references: list[Any]) -> list[bool]:
        seen.append((predictions, references))
        return [len(reference) % 2 == 0 for reference in references]

    path = tmp_path / "predictions.jsonl"
    found = made.evaluate_pairs(rows, record, predictions_file=path, intervals=False, max_new_tokens=4)
    ((predictions, references),) = seen
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    variants = ["original"] * 7 + ["augmented"] * 5 + ["augmented_2"] * 3
    assert [line["variant"] for line in lines] == variants
    assert [line["row_id"] for line in lines[12:]] == [rows["row_id"][row] for row in (0, 1, 6)]
    assert [line["prediction"] for line in lines] == predictions and [line["reference"] for line in lines] == references
    right = {(line["row_id"], line["variant"]): line["correct"] for line in lines}
    pairs = [(right[row, "original"], value) for (row, variant), value in right.items() if variant != "original"]
    assert (found["cm_numerator"], found["cm_denominator"]) == (
        sum(a and b for a, b in pairs),
        sum(a for a, _ in pairs),
    )
    assert (found["rows"], found["pairs"], found["partners"]) == (7, 6, 8)
