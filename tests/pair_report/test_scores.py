"""Scores and groups of pairs, and figures by group, against arithmetic by hand."""

from __future__ import annotations

import math
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from dair_hf import DataError, TensorPairs
from dair_hf.evaluation.views import views_of
from dair_hf.pair_report import scores as scores_module
from dair_hf.pair_report.scores import (
    correctness_by_group,
    disagreement,
    groupings_of,
    inconsistency,
    losses_by_group,
    share_of_worst,
)

LEFT, RIGHT = np.array([4.0, 0.0, 9.0]), np.array([1.0, 1.0, 9.0])


def test_score_is_the_squared_mean_of_root_differences() -> None:
    # Twice in training and once at the end: (1 + 1 + 1) / 3 = 1; (1 - 1 - 1) / 3; 0.
    scores = disagreement(LEFT, RIGHT, np.array([2.0, 0.0, 0.0]), np.array([2.0, 2.0, 2.0]))
    np.testing.assert_allclose(scores, [1.0, 1 / 9, 0.0])
    np.testing.assert_allclose(disagreement(LEFT, RIGHT), [1.0, 1.0, 0.0])
    assert disagreement(np.array([-1.0]), np.array([4.0])).tolist() == [4.0]  # negative losses count as zero


def test_inconsistency_goes_from_zero_to_two() -> None:
    assert inconsistency(LEFT, LEFT) == 0.0
    assert inconsistency(LEFT, np.zeros(3)) == 2.0
    assert inconsistency(LEFT, RIGHT) == pytest.approx((1 + 1 + 0) / ((5 + 1 + 18) / 2))
    assert math.isnan(inconsistency(np.zeros(2), np.zeros(2)))


def test_share_of_worst_is_a_part_of_the_sum() -> None:
    assert share_of_worst(np.array([1.0] * 19 + [21.0])) == pytest.approx(21 / 40)
    assert share_of_worst(np.array([1.0] * 28 + [2.0, 10.0])) == pytest.approx(12 / 40)  # 1.5 of 30 are 2
    assert math.isnan(share_of_worst(np.zeros(3)))


def test_groups_hold_the_pairs_of_their_rows() -> None:
    grouping = [["a"], [], ["b", "a"]]
    (a, b) = losses_by_group("kind", grouping, LEFT, RIGHT)["groups"]
    assert (a["name"], a["pairs"], a["loss_original"], a["loss_augmented"]) == ("a", 2, 6.5, 5.0)
    assert (b["name"], b["pairs"], b["loss_original"], b["inconsistency"]) == ("b", 1, 9.0, 0.0)


def test_correctness_of_groups() -> None:
    correct = np.array([[True, True], [True, False], [False, True], [False, False]])
    whole, last = correctness_by_group("k", [["1"], ["1"], ["1"], ["1", "2"]], correct)["groups"]
    assert (whole["cm_numerator"], whole["cm_denominator"]) == (1, 2)
    assert [whole[key] for key in ("both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")] == [0.25] * 4
    assert math.isnan(last["cm"]) and last["neg_to_neg"] == 1.0


# ---- groups ----


def first_partners(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(rows), np.ones(rows, dtype=int)


def found(
    columns: dict[str, list[Any]], by: Any = None, targets: list[int] | None = None, pairs: Any = None
) -> dict[str, Any]:
    views = views_of(datasets.Dataset.from_dict(columns))
    rows = len(views.has_partner)
    return groupings_of(views, pairs or first_partners(rows), by or (), np.array(targets or [1] * rows), str)


def test_columns_of_the_user_and_classes() -> None:
    columns = {"x": [1, 2, 3], "domain": ["a", None, "b"], "tags": [["q"], [], ["q", "p"]], "labels": [2, 0, 2]}
    assert found(columns, ["domain", "tags"]) == {
        "domain": [["a"], [], ["b"]],
        "tags": [["q"], [], ["p", "q"]],
        "label": [["2"], ["0"], ["2"]],
    }


def test_lengths_make_groups_of_similar_size() -> None:
    targets = [3, 3, 3, 3, 3, 4, 5, 9, 9, 20]
    grouping = found({"x": targets}, targets=targets)["target tokens"]
    assert [name for (name,) in grouping] == ["3"] * 5 + ["4"] + ["5 to 9"] * 3 + ["20"]


def state(**slots: str) -> list[dict[str, Any]]:
    return [{"slot": slot, "values": [value]} for slot, value in slots.items()]


def test_slots_that_change() -> None:
    columns = {
        "state": [state(name="a", area="n"), state(name="b"), state(area="n"), state(area="s")],
        "augmented_state": [state(name="z", area="n"), state(), None, state(area="s")],
        "labels": [[1], [1], [1], [1]],
    }
    assert found(columns)["slot that changes"] == [["name"], ["name"], [], []]
    assert "slot that changes" not in found({"state": ["north"], "augmented_state": ["south"]})


def test_several_partners_are_in_the_groups_of_their_row_and_of_their_own_slots() -> None:
    columns = {
        "state": [state(name="a", area="n"), state(name="b")],
        "augmented_state": [state(name="z", area="n"), None],
        "augmented_3_state": [state(name="a", area="s"), state(name="b")],
        "labels": [[1], [1]],
        "kind": ["x", "y"],
    }
    pairs = np.array([0, 0, 0, 1]), np.array([1, 2, 3, 3])
    made = found(columns, ["kind"], pairs=pairs)
    assert made["slot that changes"] == [["name"], [], ["area"], []]
    assert made["kind"] == [["x"], ["x"], ["x"], ["y"]]


def test_continuous_labels_and_many_classes_make_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores_module, "MAX_GROUPS", 2)
    assert found({"labels": [0.5, 1.0]}) == found({"labels": [0, 1, 2]}) == {}
    # The smallest of many groups are joined.
    assert found({"kind": ["a", "a", "b", "c"]}, ["kind"])["kind"] == [["a"], ["a"], ["(others)"], ["(others)"]]


def test_tensors_have_groups() -> None:
    pairs = TensorPairs({"labels": torch.tensor([1, 0])}, columns={"digit": torch.tensor([1, 7])})
    made = groupings_of(views_of(pairs), first_partners(2), ["digit"], np.array([1, 1]), "class {}".format)
    assert made == {"digit": [["1"], ["7"]], "label": [["class 1"], ["class 0"]]}


def test_a_wrong_length_is_refused() -> None:
    with pytest.raises(DataError, match=r"groups\['kind'\]"):
        found({"x": [1]}, {"kind": ["a", "b"]})
