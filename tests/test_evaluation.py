"""Accuracy, CM, flips, intervals and McNemar against arithmetic written out by hand."""

from __future__ import annotations

import itertools
import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.evaluation import clustered_bootstrap, correctness_metrics, mcnemar, ratios_with_intervals

# Twelve rows of four dialogues. p: has a partner.
#            row        0  1  2  3  4  5  6  7  8  9 10 11
ORIGINAL = np.array([1, 1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1])
AUGMENTED = np.array([1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0])
PARTNER = np.array([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1])
DIALOGUES = ["a", "a", "a", "b", "b", "b", "c", "c", "c", "d", "d", "d"]


def test_hand_worked_rows_without_partner_count_as_identical() -> None:
    found = correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, DIALOGUES)
    # original right: rows 0 1 2 5 6 8 10 11 = 8 of 12. Rows 6-9 have no partner, so H(z~) = H(z) there: 1 0 1 0.
    # augmented right: rows 0 2 3 10 (pairs) and 6 8 (unchanged) = 6 of 12; among the 8 pairs: 4 of 8.
    # both right: rows 0 2 10 6 8 = 5. pos->neg: rows 1 5 11 = 3. neg->pos: row 3 = 1. neg->neg: rows 4 7 9 = 3.
    assert (found["rows"], found["pairs"], found["compared"]) == (12, 8, 12)
    assert (found["cm_numerator"], found["cm_denominator"]) == (5, 8)
    expected = {
        "original_accuracy": 8 / 12,
        "augmented_accuracy": 6 / 12,
        "augmented_accuracy_pairs": 4 / 8,
        "cm": 5 / 8,
        "both_correct": 5 / 12,
        "pos_to_neg": 3 / 12,
        "neg_to_pos": 1 / 12,
        "neg_to_neg": 3 / 12,
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-12), key
        assert found[f"{key}_low"] <= value <= found[f"{key}_high"], key
    assert set(found) == {"rows", "pairs", "compared", "cm_numerator", "cm_denominator"} | {
        key + suffix for key in expected for suffix in ("", "_low", "_high")
    }


def test_hand_worked_rows_without_partner_excluded() -> None:
    found = correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, DIALOGUES, no_partner="exclude")
    # Only rows 0-5, 10, 11: original right 0 1 2 5 10 11 = 6; both 0 2 10 = 3; pos->neg 3; neg->pos 1; neg->neg 1.
    assert (found["compared"], found["cm_numerator"], found["cm_denominator"]) == (8, 3, 6)
    assert found["cm"] == 0.5
    assert [found[key] for key in ("both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")] == [
        3 / 8,
        3 / 8,
        1 / 8,
        1 / 8,
    ]
    assert found["augmented_accuracy"] == 0.5  # all twelve rows, whatever the choice
    assert found["cm"] != correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, DIALOGUES)["cm"]


def test_hand_worked_flips_of_answers() -> None:
    changed = np.array([0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1])  # rows 6-9 have no partner: theirs is ignored
    found = correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, changed=changed, n_bootstrap=0)
    # changed: rows 1 3 4 5 11 = 5 of 12; of those wrong on both sides: row 4.
    assert (found["flipped"], found["neg_to_neg_flipped"]) == (5 / 12, 1 / 12)
    of_pairs = correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, changed=changed, no_partner="exclude", n_bootstrap=0)
    assert (of_pairs["flipped"], of_pairs["neg_to_neg_flipped"]) == (5 / 8, 1 / 8)
    with pytest.raises(DataError, match="changed: shape"):
        correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, changed=changed[:3])


def test_augmented_values_are_ignored_where_there_is_no_partner() -> None:
    garbage = np.where(PARTNER == 1, AUGMENTED, 7)
    assert correctness_metrics(ORIGINAL, garbage, PARTNER) == correctness_metrics(ORIGINAL, AUGMENTED, PARTNER)
    with pytest.raises(DataError, match="augmented_correct: row 0 holds"):
        correctness_metrics(ORIGINAL, garbage + 5, PARTNER)


def test_undefined_ratios_are_nan() -> None:
    found = correctness_metrics([0, 0], [1, 0], clusters=["a", "b"])
    assert math.isnan(found["cm"])
    assert math.isnan(found["cm_low"])
    assert (found["cm_numerator"], found["cm_denominator"]) == (0, 0)
    empty = correctness_metrics([], [])
    assert empty["rows"] == 0
    assert math.isnan(empty["original_accuracy"])
    no_pairs = correctness_metrics([1, 0], [0, 0], [0, 0], no_partner="exclude")
    assert math.isnan(no_pairs["pos_to_neg"])
    assert no_pairs["augmented_accuracy"] == 0.5


def test_bootstrap_agrees_with_the_full_enumeration_of_resamples() -> None:
    # Three clusters: all 3^3 = 27 equally likely resamples, each ratio exact. The percentiles of many draws must be
    # the percentiles of that distribution.
    clusters = ["a", "a", "b", "b", "b", "c"]
    top = np.array([1, 0, 1, 1, 1, 0])
    per_cluster = {"a": (1, 2), "b": (3, 3), "c": (0, 1)}
    exact = sorted(
        float(Fraction(sum(per_cluster[c][0] for c in draw), sum(per_cluster[c][1] for c in draw)))
        for draw in itertools.product("abc", repeat=3)
    )
    low, high = clustered_bootstrap(top[:, None], np.ones((6, 1)), clusters, n_bootstrap=40_000, seed=3, confidence=0.8)
    # 10 % of 27 draws: between the 2nd and 3rd smallest value (0, 1/5, ...); both ends are atoms of the distribution.
    assert exact[1] <= low[0] <= exact[3]
    assert exact[23] <= high[0] <= exact[25]
    row_low, row_high = clustered_bootstrap(top[:, None], np.ones((6, 1)), None, n_bootstrap=40_000, seed=3)
    assert (row_low[0], row_high[0]) != (low[0], high[0])


def test_bootstrap_variance_matches_the_linearised_formula() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(3, 12, size=400)
    clusters = np.repeat(np.arange(400).astype(str), sizes)
    difficulty = np.repeat(rng.random(400), sizes)
    correct = rng.random(len(clusters)) < difficulty
    found = ratios_with_intervals({"accuracy": (correct, np.ones(len(correct)))}, list(clusters), n_bootstrap=4000)
    mean = correct.mean()
    residual_sums = np.array([(correct[clusters == name] - mean).sum() for name in np.unique(clusters)])
    standard_error = math.sqrt((residual_sums**2).sum()) / len(correct)
    width = (found["accuracy_high"] - found["accuracy_low"]) / (2 * 1.959964)
    assert width == pytest.approx(standard_error, rel=0.06)
    by_row = ratios_with_intervals({"accuracy": (correct, np.ones(len(correct)))}, None, n_bootstrap=4000)
    assert by_row["accuracy_high"] - by_row["accuracy_low"] < 0.8 * (found["accuracy_high"] - found["accuracy_low"])


def test_order_of_rows_does_not_matter_and_the_seed_does() -> None:
    shuffled = np.random.default_rng(0).permutation(12)
    moved = correctness_metrics(
        ORIGINAL[shuffled], AUGMENTED[shuffled], PARTNER[shuffled], [DIALOGUES[i] for i in shuffled]
    )
    assert moved == correctness_metrics(ORIGINAL, AUGMENTED, PARTNER, DIALOGUES)
    rng = np.random.default_rng(5)
    original, augmented = rng.random((2, 500)) < 0.6
    first = correctness_metrics(original, augmented, seed=0)
    assert first == correctness_metrics(original, augmented, seed=0)
    assert first["cm_low"] != correctness_metrics(original, augmented, seed=1)["cm_low"]


def test_one_cluster_has_no_interval() -> None:
    found = correctness_metrics([1, 0], [1, 1], clusters=["a", "a"])
    assert found["original_accuracy"] == 0.5
    assert math.isnan(found["original_accuracy_low"])
    assert "cm_low" not in correctness_metrics([1, 0], [1, 1], n_bootstrap=0)


def test_fifteen_thousand_rows_take_no_time() -> None:
    rng = np.random.default_rng(0)
    original, augmented, partner = rng.random((3, 15_000)) < 0.5
    dialogues = [f"MUL{i // 8:04d}" for i in range(15_000)]
    for clusters in (dialogues, None):
        start = time.process_time()
        correctness_metrics(original, augmented, partner, clusters)
        assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("only_a", "only_b", "expected"),
    [
        (5, 1, Fraction(2 * (1 + 6), 2**6)),  # C(6,0) + C(6,1) = 7 of 64, twice
        (1, 5, Fraction(14, 64)),
        (8, 2, Fraction(2 * (1 + 10 + 45), 1024)),
        (10, 0, Fraction(2, 1024)),
        (3, 3, Fraction(1)),  # the two tails overlap: never above 1
        (0, 0, Fraction(1)),
    ],
)
def test_mcnemar_is_exact(only_a: int, only_b: int, expected: Fraction) -> None:
    a = [1] * only_a + [0] * only_b + [1, 1, 0]
    b = [0] * only_a + [1] * only_b + [1, 1, 0]
    found = mcnemar(a, b)
    assert (found["only_a"], found["only_b"]) == (only_a, only_b)
    assert found["p_value"] == pytest.approx(float(expected), rel=1e-12)
    assert found["difference"] == pytest.approx((only_a - only_b) / len(a), abs=1e-12)


def test_mcnemar_survives_many_rows() -> None:
    a = np.repeat([1, 0], [5200, 4800])
    p_value = mcnemar(a, 1 - a)["p_value"]
    # Normal approximation with continuity: z = (|5200 - 4800| - 1) / sqrt(10000) = 3.99.
    assert p_value == pytest.approx(math.erfc(3.99 / math.sqrt(2)), rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: correctness_metrics([1, 0], [1]), "augmented_correct: shape (1,) against (2,)"),
        (lambda: correctness_metrics([1, 0], [1, 1], [1]), "has_partner: shape (1,)"),
        (lambda: correctness_metrics([1, 0.5], [1, 1]), "original_correct: row 1 holds"),
        (lambda: correctness_metrics([1, float("nan")], [1, 1]), "original_correct: row 1 holds"),
        (lambda: correctness_metrics([[1], [0]], [1, 1]), "one value per row"),
        (lambda: correctness_metrics([1, 0], [1, 1], clusters=["a"]), "clusters: 1 for 2 rows"),
        (lambda: correctness_metrics([1, 0], [1, 1], no_partner="drop"), "no_partner: unknown choice 'drop'"),
        (lambda: correctness_metrics([1, 0], [1, 1], confidence=95), "confidence: must lie between 0 and 1"),
        (lambda: correctness_metrics([1, 0], [1, 1], n_bootstrap=-1), "n_bootstrap: must be at least 1"),
        (lambda: clustered_bootstrap([1, 2], [1, 2]), "one shape [N, K]"),
        (lambda: mcnemar([1, 0], [1]), "b_correct: shape (1,)"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        call()
    assert message in str(caught.value)
