"""Selection rules and the Pareto front, on hand-made points and against Optuna."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import optuna
import pytest

from dair_hf.errors import DataError
from dair_hf.experiments.selection import Point, best_accuracy, best_consistency_within, pareto_front, points_by_lambda


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


def test_best_consistency_within_epsilon() -> None:
    points = [point(0.1, 0.60, 0.99), point(1, 0.70, 0.80), point(10, 0.68, 0.90), point(100, 0.50, 1.0)]
    chosen = {epsilon: best_consistency_within(points, epsilon).dair_lambda for epsilon in (0, 0.01, 0.02, 0.1, 0.2)}
    assert chosen == {0: 1, 0.01: 1, 0.02: 10, 0.1: 0.1, 0.2: 100}
    tied = [point(3, 0.7, 0.9), point(2, 0.69, 0.9), point(1, 0.6, 0.9)]
    assert best_consistency_within(tied, 0.05).dair_lambda == 2
    errors = [point(1, 1.20, 0.5), point(10, 1.21, 0.6), point(100, 1.50, 0.9)]
    assert best_consistency_within(errors, 0.02, lower_is_better=True).dair_lambda == 10


@pytest.mark.parametrize(("best", "near", "epsilon"), [(0.8, 0.7, 0.1), (0.9, 0.7, 0.2), (0.61, 0.6, 0.01)])
def test_a_loss_of_exactly_epsilon_is_within_it(best: float, near: float, epsilon: float) -> None:
    """Whatever float64 makes of the decimals, such as more than 0.1 of 0.8 - 0.7."""
    assert Decimal(str(best)) - Decimal(str(near)) == Decimal(str(epsilon)) and best - near > epsilon
    assert best_consistency_within([point(1, best, 0.5), point(10, near, 0.9)], epsilon).dair_lambda == 10
    assert best_consistency_within([point(1, best, 0.5), point(10, near - 1e-9, 0.9)], epsilon).dair_lambda == 1
    errors = [point(1, near, 0.5), point(10, best, 0.9)]
    assert best_consistency_within(errors, epsilon, lower_is_better=True).dair_lambda == 10


def test_undefined_consistency_is_never_chosen() -> None:
    points = [point(1, 0.7, None), point(2, 0.69, 0.1)]
    assert best_consistency_within(points, 0.02).dair_lambda == 2
    with pytest.raises(DataError, match="CM is undefined for every lambda within epsilon"):
        best_consistency_within(points, 0)


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
