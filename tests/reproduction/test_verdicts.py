"""Verdicts: their rules checked by hand, against scipy, and at their edges."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from dair_hf.experiments.plots import Sample
from reproduction.claims import PrintedValue
from reproduction.verdicts import _show, difference_of, judge_relation, judge_value, welch_half_width


@settings(max_examples=25)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_half_widths_are_those_of_welchs_test(first: list[float], second: list[float]) -> None:
    spreads = [(statistics.stdev(values), len(values)) for values in (first, second)]
    assume(min(spread for spread, _ in spreads) > 1e-3)
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert welch_half_width(*spreads) == pytest.approx((interval.high - interval.low) / 2, rel=1e-7)
    alone = stats.ttest_1samp(first, 0).confidence_interval(0.95)
    assert welch_half_width(spreads[0]) == pytest.approx((alone.high - alone.low) / 2, rel=1e-7)


def test_half_widths_at_the_edges() -> None:
    assert welch_half_width((0.0, 3), (0.0, 2)) == 0.0
    assert welch_half_width((1e-200, 2)) >= 0.0
    # Without variance on one side, the degrees of freedom are those of the other: 2.776 * 0.5 / sqrt(5).
    assert welch_half_width((0.5, 5), (0.0, 2)) == pytest.approx(0.6208, abs=1e-4)


STD, ROUNDED, EXACT = math.sqrt(0.18), PrintedValue(1.23, None, 2), PrintedValue(79.09, None, 2)
SPREAD, NONE, WHOLE = PrintedValue(32.7, STD, 2), PrintedValue(1.97, 0.0, 2), PrintedValue(72, None, 0)
NINE = PrintedValue(79.09, 0.3, 2)


@pytest.mark.parametrize(
    ("ours", "paper", "runs", "better", "tolerance", "expected"),
    [
        # Printed to two digits, so the value and its deviation are known to 0.005. Ours: sqrt(0.18) over 9 runs, a
        # squared standard error of 0.02; the paper's: (sqrt(0.18) + 0.005)^2 / 9 = 0.0205; together sqrt(0.0405), with
        # 16 degrees of freedom. A table of Student's t gives 2.120, so the bound is 0.005 + 0.4265 = 0.4315.
        ((33.131, STD, 9), SPREAD, 9, "higher", 0, "inside the interval (+0.431, bound 0.431)"),
        ((32.269, STD, 9), SPREAD, 9, "higher", 0, "inside the interval (-0.431, bound 0.431)"),
        ((33.132, STD, 9), SPREAD, 9, "higher", 0, "better (+0.432, bound 0.431)"),
        ((33.132, STD, 9), SPREAD, 9, "lower", 0, "worse (+0.432, bound 0.431)"),
        ((32.268, STD, 9), SPREAD, 9, "higher", 0, "worse (-0.432, bound 0.431)"),
        ((32.268, STD, 9), SPREAD, 9, "lower", 0, "better (-0.432, bound 0.431)"),
        ((32.268, STD, 9), SPREAD, 9, "neither", 0, "differs (-0.432, bound 0.431)"),
        # No deviation is printed. 3 degrees of freedom: 3.182 * 0.02 / sqrt(4) = 0.032, and half a unit of the last
        # printed digit; this remains without spread over the seeds.
        ((1.249, 0.02, 4), ROUNDED, None, "lower", 0, "inside the interval (+0.019, bound 0.037)"),
        ((1.2349, 0, 5), ROUNDED, None, "lower", 0, "inside the interval (+0.005, bound 0.005)"),
        ((1.2351, 0, 5), ROUNDED, None, "lower", 0, "worse (+0.005, bound 0.005)"),
        # 1.97 +- 0.00: the value may be 1.975, and its deviation 0.005. 4 degrees: 2.776 * 0.005 / sqrt(5) = 0.0062.
        ((1.9811, 0, 5), NONE, 5, "lower", 0, "inside the interval (+0.011, bound 0.011)"),
        ((1.9813, 0, 5), NONE, 5, "lower", 0, "worse (+0.011, bound 0.011)"),
        # One seed.
        ((79.094, 0, 1), EXACT, None, "higher", 0, "one seed: as printed (+0.004, bound 0.005)"),
        ((80, 0, 1), EXACT, None, "higher", 0, "one seed: undecided (+0.910, bound 0.005)"),
        ((79.83, 0, 1), NINE, 9, "higher", 0, "one seed: undecided (+0.740, bound 0.005)"),
        # The whole interval must lie within the tolerance: noise never helps. 0.5 + 2.776 * 0.5 / sqrt(5) = 1.1.
        ((72.8, 0.5, 5), WHOLE, None, "higher", 2, "inside the tolerance (+0.8, bound 1.1, tolerance 2)"),
        ((73.0, 0.5, 5), WHOLE, None, "higher", 2, "undecided (+1.0, bound 1.1, tolerance 2)"),
        ((75.0, 0.5, 5), WHOLE, None, "higher", 2, "undecided (+3.0, bound 1.1, tolerance 2)"),
        ((75.2, 0.5, 5), WHOLE, None, "higher", 2, "better (+3.2, bound 1.1, tolerance 2)"),
        ((68.8, 0.5, 5), WHOLE, None, "higher", 2, "worse (-3.2, bound 1.1, tolerance 2)"),
        ((73, 0, 1), WHOLE, None, "higher", 2, "one seed: undecided (+1.0, bound 0.5)"),
        ((72.4, 0, 1), WHOLE, None, "higher", 2, "one seed: as printed (+0.4, bound 0.5)"),
    ],
)
def test_printed_values(
    ours: Any, paper: PrintedValue, runs: int | None, better: str, tolerance: float, expected: str
) -> None:
    kind = expected.removeprefix("one seed: ").replace("as printed", "inside").split()[0]
    assert judge_value(Sample(*ours), paper, runs, better, tolerance) == (kind, expected)


# 8 degrees of freedom: the bound is 2.306 * 0.3 / sqrt(9) = 0.231; the second value has no spread.
@pytest.mark.parametrize(
    ("mean", "relation", "tolerance", "kind"),
    [
        (1.24, "above", 0, "holds"),
        (1.22, "above", 0, "undecided"),
        (0.78, "above", 0, "undecided"),
        (0.76, "above", 0, "does not hold"),
        (0.76, "below", 0, "holds"),
        (0.78, "below", 0, "undecided"),
        (1.24, "below", 0, "does not hold"),
        (1.06, "near", 0.3, "holds"),
        (1.08, "near", 0.3, "undecided"),
        (1.54, "near", 0.3, "does not hold"),
        (0.46, "near", 0.3, "does not hold"),
        (1.00, "near", 0, "undecided"),  # an interval around 0 does not prove equality
        (0.76, "not_above", 0, "holds"),
        (0.78, "not_above", 0, "undecided"),
        (1.22, "not_above", 0, "undecided"),
        (1.24, "not_above", 0, "does not hold"),
        (1.06, "not_above", 0.3, "holds"),
    ],
)
def test_relations(mean: float, relation: str, tolerance: float, kind: str) -> None:
    """Nine values with deviation 0.3 against four without, of other seeds: Welch's bound is t(8) 0.3 / 3 = 0.23."""
    spread = 0.3 * math.sqrt(8 / 9)
    ours = {seed: mean + spread * (seed % 3 - 1) * math.sqrt(1.5) for seed in range(9)}
    verdict = judge_relation(ours, dict.fromkeys(range(10, 14), 1.0), relation, tolerance, 2)
    assert verdict == (kind, f"{kind} ({mean - 1:+.2f}, bound 0.23)")


def test_relations_are_paired_over_shared_seeds() -> None:
    """Seeds 0 to 2 differ by 1, 2 and 3, with the interval of scipy's paired t-test; seed 9 is on one side only."""
    ours, other = {0: 11.0, 1: 22.0, 2: 33.0, 9: 50.0}, {0: 10.0, 1: 20.0, 2: 30.0}
    low, high = stats.ttest_rel([11, 22, 33], [10, 20, 30]).confidence_interval(0.95)
    difference, bound = difference_of(ours, other)
    assert (difference, bound) == (2.0, pytest.approx((high - low) / 2))
    unpaired, wide = difference_of(ours, {seed + 3: value for seed, value in other.items()})
    assert unpaired == 9.0 and wide is not None and wide > 5 * (high - low)


@pytest.mark.parametrize("relation", ["above", "below", "near", "not_above"])
@pytest.mark.parametrize(("seeds", "others"), [(1, 1), (1, 5), (5, 1)])
def test_relations_are_undecided_with_one_seed(relation: str, seeds: int, others: int) -> None:
    for mean in (0.1, 0.5, 0.9):
        ours, other = dict.fromkeys(range(seeds), mean), dict.fromkeys(range(others), 0.5)
        verdict = judge_relation(ours, other, relation, 1.0, 2)
        assert verdict == ("undecided", f"one seed: undecided ({mean - 0.5:+.2f})")


def test_relations_of_values_without_spread() -> None:
    """A closed form gives the same value for every seed."""
    high, low = dict.fromkeys(range(3), 0.6), dict.fromkeys(range(3), 0.5)
    expected = (
        (high, low, {"above": "holds", "below": "does not hold", "near": "holds", "not_above": "does not hold"}),
        (low, high, {"above": "does not hold", "below": "holds", "near": "holds", "not_above": "holds"}),
        (high, high, {"above": "does not hold", "below": "does not hold", "near": "holds", "not_above": "holds"}),
    )
    for ours, theirs, kinds in expected:
        for relation, kind in kinds.items():
            margin = 0.1 if relation == "near" else 0.0
            assert judge_relation(ours, theirs, relation, margin, 2)[0] == kind, (ours, theirs, relation)
    assert judge_relation(high, low, "near", 0.09, 2)[0] == "does not hold"


def test_negative_zero_is_not_shown() -> None:
    assert _show(Sample(-1e-9, 0, 1), 3) == "0.000, n = 1"
    assert _show(Sample(-0.0006, 0, 1), 3) == "-0.001, n = 1"
