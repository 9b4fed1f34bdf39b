"""Views in their order, what is judged on them and what is written of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from dair_hf import DataError, EpochPairs, TensorPairs
from dair_hf.errors import UndefinedMetricWarning
from dair_hf.evaluation.tensor_views import TensorViews
from dair_hf.evaluation.views import PairViews

ROWS: dict[str, list[Any]] = {
    "row_id": ["a/0", "a/1", "b/0"],
    "dialogue_id": ["a", "a", "b"],
    "input_ids": [[4], [4, 5], [4, 5, 6]],
    "labels": [[7], [8], [9]],
    "augmented_input_ids": [[5, 5, 5], None, [6]],
    "augmented_labels": [[17], None, [19]],
}
MODEL_COLUMNS = ["input_ids", "labels", "augmented_input_ids", "augmented_labels"]


def views() -> PairViews:
    return PairViews(datasets.Dataset.from_dict(ROWS))


def test_originals_come_first_then_the_partners_there_are() -> None:
    found = views()
    assert found.rows.tolist() == [0, 1, 2, 0, 2]
    assert found.variants.tolist() == [0, 0, 0, 1, 1]
    assert (len(found), found.has_partner.tolist()) == (5, [True, False, True])


def test_features_lengths_and_columns_belong_to_the_view() -> None:
    found = views()
    expected = [{"input_ids": [5, 5, 5], "labels": [17]}, {"input_ids": [4, 5], "labels": [8]}]
    assert found.select_columns(MODEL_COLUMNS).features([3, 1]) == expected
    assert found.lengths().tolist() == [1, 2, 3, 3, 1]
    assert found.column("labels") == [[7], [8], [9], [17], [19]]


def test_data_without_partners_or_tokens() -> None:
    plain = PairViews(datasets.Dataset.from_dict({"x": [0.5, 1.5], "labels": [0, 1]}))
    assert (len(plain), plain.lengths().tolist(), plain.column("labels")) == (2, [0, 0], [0, 1])
    absent = PairViews(datasets.Dataset.from_dict({"x": [0.5], "augmented_x": [None]}))
    assert (len(absent), absent.column("x")) == (1, [0.5])


def test_epoch_pairs_are_viewed_as_they_stand() -> None:
    pairs = EpochPairs(lambda epoch: datasets.Dataset.from_dict({"x": [epoch], "augmented_x": [epoch + 5]}))
    pairs.set_epoch(2)
    assert PairViews(pairs).column("x") == [2, 7]


def test_judging_by_hand() -> None:
    # Originals right, wrong, right; partners of row 0 and 2: wrong, right.
    found = views().judge([True, False, True, False, True], accuracy_name="joint_goal_accuracy", n_bootstrap=0)
    assert found["original_joint_goal_accuracy"] == pytest.approx(2 / 3)
    assert found["augmented_joint_goal_accuracy"] == pytest.approx(1 / 3)
    assert found["original_joint_goal_accuracy_pairs"] == 1.0
    assert found["augmented_joint_goal_accuracy_pairs"] == 0.5
    assert (found["cm_numerator"], found["cm_denominator"], found["rows"], found["pairs"]) == (1, 2, 3, 2)
    assert (found["both_correct"], found["pos_to_neg"], found["neg_to_neg"]) == (0.5, 0.5, 0.0)


def test_a_score_or_a_word_is_no_correctness(tmp_path: Path) -> None:
    for values, message in (
        ([1, 0, 1, 0.1, 1], r"is_correct: row 'a/0' \(augmented view\) holds 0.1; correctness is True or False"),
        (["no"] * 5, r"is_correct: row 'a/0' \(original view\) holds 'no'"),
        ([1, 1, 1, 1, 1, 7], "is_correct: value 5 holds 7"),
    ):
        with pytest.raises(DataError, match=message):
            views().judge(values, n_bootstrap=0)
        with pytest.raises(DataError, match=message):
            views().write(tmp_path / "p.jsonl", list("abcde"), list("ABCDE"), values)
    assert not list(tmp_path.iterdir())
    unnamed = TensorViews(TensorPairs({"x": torch.tensor([1, 2])}, {"x": torch.tensor([5, 6])}))
    with pytest.raises(DataError, match=r"row '1' \(augmented view\) holds 2"):
        unnamed.judge(torch.tensor([1, 0, 1, 2]), n_bootstrap=0)


def test_flips_of_answers_and_graded_scores_by_hand() -> None:
    # Answers: originals a, b, c; partners of row 0: b (changed), of row 2: c (the same, right both times).
    found = views().judge(
        [False, True, True, False, True],
        answers=["a", "b", "c", "b", "c"],
        scores={"soft": [0.3, 1.0, 0.9, 0.0, 0.6]},
        n_bootstrap=0,
    )
    assert (found["flipped"], found["neg_to_neg_flipped"], found["neg_to_neg"]) == (1 / 2, 1 / 2, 1 / 2)
    # Row 1 has no partner and counts as its original in both.
    assert found["original_soft"] == pytest.approx((0.3 + 1.0 + 0.9) / 3)
    assert found["augmented_soft"] == pytest.approx((0.0 + 1.0 + 0.6) / 3)
    same = views().judge([False, True, True, False, True], answers=["a", "b", "c", "a", "c"], n_bootstrap=0)
    assert (same["flipped"], same["neg_to_neg_flipped"], same["neg_to_neg"]) == (0.0, 0.0, 1 / 2)
    without = views().judge([False, True, True, False, True], n_bootstrap=0)
    assert "flipped" not in without
    with pytest.raises(DataError, match=r"soft answered with shape \[2\] for 5"):
        views().judge([True] * 5, scores={"soft": [0.1, 0.2]})


def test_intervals_resample_dialogues_where_the_data_names_them() -> None:
    found = views().judge([True, True, False, True, False], n_bootstrap=200)
    # Two dialogues, all right and all wrong: the bootstrap can only give 0, 2/3 or 1.
    assert (found["original_accuracy_low"], found["original_accuracy_high"]) == (0.0, 1.0)
    named = views().judge([True, True, False, True, False], clusters="dialogue_id", n_bootstrap=200)
    assert named == pytest.approx(found, nan_ok=True)


def test_subsets_are_judged_as_the_whole_is() -> None:
    correct, answers = [True, True, False, True, False], ["a", "b", "c", "d", "c"]
    settings: dict[str, Any] = {"answers": answers, "scores": {"soft": [1.0, 0.5, 0.0, 0.5, 0.0]}, "n_bootstrap": 50}
    masks = {"all": [1, 1, 1], "first": [True, False, True], "none": np.zeros(3, dtype=bool)}
    with pytest.warns(UndefinedMetricWarning, match="none of 0 rows"):
        found = views().judge(correct, subsets=masks, **settings)
    whole = views().judge(correct, **settings)
    assert {key: found[key] for key in whole} == pytest.approx(whole, nan_ok=True)
    assert {key: found[f"all_{key}"] for key in whole} == pytest.approx(whole, nan_ok=True)
    first = [0, 2, 3, 4]  # the views of its rows
    kept = PairViews(views().dataset.select([0, 2])).judge(
        [correct[view] for view in first],
        answers=[answers[view] for view in first],
        scores={"soft": [settings["scores"]["soft"][view] for view in first]},
        n_bootstrap=50,
    )
    assert {key: found[f"first_{key}"] for key in kept} == pytest.approx(kept, nan_ok=True)
    assert (found["none_rows"], found["none_pairs"]) == (0, 0)
    assert math.isnan(found["none_cm"])
    for mask, message in (([1, 0], "2 values for 3 rows; give one for every row"), ([1, 0, 2], "row 2 holds 2")):
        with pytest.raises(DataError, match=rf"subsets\['odd'\]: {message}"):
            views().judge(correct, subsets={"odd": mask})


def test_predictions_are_written_one_line_a_view(tmp_path: Path) -> None:
    views().write(tmp_path / "p.jsonl", ["é", "b", "c", "d", np.int64(5)], list("ABCDE"), [1, 0, 1, 0, 1])
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"row_id": "a/0", "variant": "original", "prediction": "é", "reference": "A", "correct": True}
    assert lines[4] == {"row_id": "b/0", "variant": "augmented", "prediction": 5, "reference": "E", "correct": True}
    assert "é" in (tmp_path / "p.jsonl").read_text(encoding="utf-8")


def test_writing_to_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write there"):
        views().write(tmp_path / "file" / "p.jsonl", list("abcde"), list("abcde"), [1] * 5)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([True] * 4, r"is_correct answered with shape \[4\] for 5 predictions; it must return one"),
        (np.ones((5, 1)), r"is_correct: found an array of shape \(5, 1\); give one value a row"),
        (True, "is_correct: found a bool; give a list, an array or a tensor of one value a row"),
    ],
)
def test_an_answer_for_another_number_of_views_is_refused(answers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        views().judge(answers)


def test_empty_and_streaming_data_are_refused() -> None:
    with pytest.raises(DataError, match="the evaluation data set is empty; check the split and the filters before it"):
        PairViews(datasets.Dataset.from_dict({"x": []}))
    stream = datasets.Dataset.from_dict({"x": [1]}).to_iterable_dataset()
    with pytest.raises(DataError, match=r"needs random access to the rows, found a IterableDataset; pass a datasets\."):
        PairViews(stream)


@pytest.mark.parametrize(("column", "missing"), [("state", "state"), ("dialogue_id", "augmented_dialogue_id")])
def test_a_missing_column_is_named(column: str, missing: str) -> None:
    with pytest.raises(DataError, match=f"column '{missing}' is missing; the data has .'row_id', 'dialogue_id'"):
        views().column(column)


def test_a_partner_without_model_columns_is_refused_by_its_row_id() -> None:
    rows = {
        "row_id": ["a/0"],
        "augmented_history": [["hi"]],
        "history": [["hello"]],
        "input_ids": [[1]],
        "augmented_input_ids": [None],
    }
    views = PairViews(datasets.Dataset.from_dict(rows)).select_columns(["row_id", "input_ids", "augmented_input_ids"])
    with pytest.raises(DataError, match="row 'a/0' has a partner by some of its columns.*encode both views"):
        views.features([1])
