"""Scores of pairs and figures by group, against arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dair_hf.pair_report.scores import (
    correctness_by_group,
    disagreement,
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


def test_negative_losses_count_as_zero() -> None:
    assert disagreement(np.array([-1.0]), np.array([4.0])).tolist() == [4.0]


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
