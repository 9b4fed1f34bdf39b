"""Selection rules and the Pareto front, on hand-made points and against Optuna."""

from __future__ import annotations

import random
from typing import Any

import optuna
import pytest

from dair_hf.experiments.selection import Point, Sample, best_accuracy, pareto_front


def point(dair_lambda: float, accuracy: float, consistency: float | None = None) -> Point:
    return Point(dair_lambda, (accuracy,), (consistency,))


def test_sample_by_hand() -> None:
    assert Sample.of([0.5]) == Sample(0.5, 0.0, 1)
    # Deviations -0.2, -0.1, 0.3: (0.04 + 0.01 + 0.09) / 2 = 0.07.
    assert Sample.of([0.1, 0.2, 0.6]) == (pytest.approx(0.3), pytest.approx(0.07**0.5), 3)
    assert Sample.of([]) is None and Sample.of([1.0, None]) is None
    assert Point(1.0, (0.25, 0.75), (1.0, None)).consistency is None and Point(1.0, (0.5,)).consistency is None


def test_best_accuracy_uses_the_mean_and_prefers_the_smaller_lambda() -> None:
    # The lambda with the best single run, 0.9, has the worst mean.
    points = [Point(1.0, (0.9, 0.1)), Point(2.0, (0.6, 0.8)), Point(3.0, (0.8, 0.6))]
    assert best_accuracy(points).dair_lambda == 2.0
    assert best_accuracy(points[::-1]).dair_lambda == 2.0
    assert best_accuracy(points, lower_is_better=True).dair_lambda == 1.0


def test_front_by_hand() -> None:
    points = [
        point(1, 0.70, 0.80),
        point(2, 0.69, 0.85),
        point(3, 0.68, 0.84),  # lambda 2 beats it on both
        point(4, 0.60, 0.95),
        point(5, 0.70, 0.79),  # as accurate as lambda 1, less consistent
        point(6, 0.60, 0.95),  # equals lambda 4
        point(7, 0.99, None),
    ]
    assert [p.dair_lambda for p in pareto_front(points)] == [1, 2, 4]
    assert [p.dair_lambda for p in pareto_front(points[::-1])] == [1, 2, 4]
    assert pareto_front([point(7, 0.99, None)]) == []
    # If accuracy is an error, 0.6 is better than 0.7, and lambda 4 is best in both.
    assert [p.dair_lambda for p in pareto_front(points, lower_is_better=True)] == [4]


@pytest.mark.parametrize("seed", range(5))
def test_front_equals_that_of_optuna(seed: int) -> None:
    generator = random.Random(seed)
    points = [point(float(index), generator.random(), generator.random()) for index in range(30)]
    study = optuna.create_study(directions=["maximize", "maximize"])
    for p in points:
        distributions: Any = {"x": optuna.distributions.FloatDistribution(0, 30)}
        values = [p.accuracy, p.consistency]
        study.add_trial(
            optuna.trial.create_trial(params={"x": p.dair_lambda}, distributions=distributions, values=values)  # type: ignore[arg-type]
        )
    assert [p.dair_lambda for p in pareto_front(points)] == sorted(trial.params["x"] for trial in study.best_trials)
