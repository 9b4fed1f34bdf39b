"""Selection rules, on hand-made points."""

from __future__ import annotations

import pytest

from dair_hf.experiments.selection import Point, Sample, best_accuracy


def test_sample_by_hand() -> None:
    assert Sample.of([0.5]) == Sample(0.5, 0.0, 1)
    # Deviations -0.2, -0.1, 0.3: (0.04 + 0.01 + 0.09) / 2 = 0.07.
    assert Sample.of([0.1, 0.2, 0.6]) == (pytest.approx(0.3), pytest.approx(0.07**0.5), 3)
    assert Sample.of([]) is None and Sample.of([1.0, None]) is None


def test_best_accuracy_uses_the_mean_and_prefers_the_smaller_lambda() -> None:
    # The lambda with the best single run, 0.9, has the worst mean.
    points = [Point(1.0, (0.9, 0.1)), Point(2.0, (0.6, 0.8)), Point(3.0, (0.8, 0.6))]
    assert best_accuracy(points).dair_lambda == 2.0
    assert best_accuracy(points[::-1]).dair_lambda == 2.0
    assert best_accuracy(points, lower_is_better=True).dair_lambda == 1.0
