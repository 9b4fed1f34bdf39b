"""Selection rules and the Pareto front, on hand-made points and against Optuna."""

from __future__ import annotations

import random
from typing import Any

import optuna
import pytest

from dair_hf.errors import DataError
from dair_hf.experiments.selection import Point, best_accuracy, pareto_front, points_by_lambda


def record(dair_lambda: float, seed: int = 0, **metrics: Any) -> dict[str, Any]:
    training = {"dair_lambda": dair_lambda}
    return {"name": f"l{dair_lambda:g}_s{seed}", "seed": seed, "config": {"training": training}, "metrics": metrics}


def point(dair_lambda: float, accuracy: float, consistency: float | None = None) -> Point:
    return Point(dair_lambda, (accuracy,), (consistency,))


def test_points_do_not_depend_on_the_order_of_records() -> None:
    records = [
        record(10.0, 1, acc=0.5, cm=0.75, other=1),
        record(1.0, 0, acc=0.25, cm=1.0),
        record(10.0, 0, acc=0.75, cm=0.25),
        record(1.0, 1, acc=0.75, cm=None),
    ]
    points = points_by_lambda(records, "acc", "cm")
    assert points == [Point(1.0, (0.25, 0.75), (1.0, None)), Point(10.0, (0.75, 0.5), (0.25, 0.75))]
    assert points_by_lambda(records[::-1], "acc", "cm") == points
    assert [(p.accuracy, p.consistency) for p in points] == [(0.5, None), (0.625, 0.5)]
    assert points_by_lambda(records, "acc")[0] == Point(1.0, (0.25, 0.75))
    assert points_by_lambda(records, "acc")[0].consistency is None


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no record of a finished run"),
        ([record(1.0, acc=0.5), record(1.0, acc=0.5)], "l1_s0: lambda 1 with seed 0 appears twice"),
        ([record(1.0, 0, acc=0.5), record(2.0, 1, acc=0.5)], r"different seeds \(1: \[0\], 2: \[1\]\)"),
        ([record(1.0, accuracy=0.5, cm=1)], "l1_s0: no metric 'acc'; it has accuracy, cm"),
        ([record(1.0, acc=None)], "lambda 1: acc is undefined in a run"),
        ([record(1.0, acc=float("nan"))], "lambda 1: acc is undefined in a run"),
    ],
)
def test_invalid_records_are_refused(records: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        points_by_lambda(records, "acc")


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
