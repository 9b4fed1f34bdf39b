"""Selection of lambda: runs grouped by lambda, selection rules, and the accuracy-consistency Pareto front."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.experiments.samples import Sample


class Point(NamedTuple):
    """Validation metrics of one lambda.

    Attributes:
        dair_lambda: The lambda.
        accuracies: Accuracy (or an error) of each seed.
        consistencies: CM of each seed, None if undefined; empty if CM is not measured.
    """

    dair_lambda: float
    accuracies: tuple[float, ...]
    consistencies: tuple[float | None, ...] = ()

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def consistency(self) -> float | None:
        """Mean CM over the seeds; None if it is undefined for any seed."""
        sample = Sample.of(self.consistencies)
        return None if sample is None else sample.mean


def points_by_lambda(
    records: Iterable[Mapping[str, Any]], accuracy: str, consistency: str | None = None
) -> list[Point]:
    """Group the records of a search by lambda."""
    groups: dict[float, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for record in records:
        value, seed = record["config"]["training"]["dair_lambda"], record["seed"]
        if seed in groups[value]:
            raise DataError(f"{record['name']}: lambda {value:g} with seed {seed} appears twice; give each run once")
        groups[value][seed] = record
    if not groups:
        raise DataError("no record of a finished run; there is nothing to choose from")
    if len({frozenset(runs) for runs in groups.values()}) > 1:
        listed = ", ".join(f"{value:g}: {sorted(runs)}" for value, runs in sorted(groups.items()))
        raise DataError(f"lambdas were run with different seeds ({listed}); use the same seeds for each")

    def metrics(runs: Mapping[int, Mapping[str, Any]], key: str) -> tuple[Any, ...]:
        for record in runs.values():
            if key not in record["metrics"]:
                raise DataError(f"{record['name']}: no metric {key!r}; it has {', '.join(record['metrics'])}")
        return tuple(runs[seed]["metrics"][key] for seed in sorted(runs))

    points = []
    for value, runs in sorted(groups.items()):
        accuracies = metrics(runs, accuracy)
        if any(number is None or not math.isfinite(number) for number in accuracies):
            raise DataError(f"lambda {value:g}: {accuracy} is undefined in a run; remove that lambda from the grid")
        points.append(Point(value, accuracies, metrics(runs, consistency) if consistency else ()))
    return points


def best_accuracy(points: Sequence[Point], lower_is_better: bool = False) -> Point:
    """Return the point with the best mean accuracy; ties go to the smallest lambda."""
    return min(points, key=lambda point: (-_gain(point, lower_is_better), point.dair_lambda))


def pareto_front(points: Sequence[Point], lower_is_better: bool = False) -> list[Point]:
    """Return the points that no other point equals or beats in both accuracy and consistency.

    Of points that are equal in both, the one with the smallest lambda is returned. Points without CM are left out.

    Args:
        points: One point per lambda.
        lower_is_better: Whether `accuracy` is an error.

    Returns:
        The points of the front, by ascending lambda.
    """
    ranked = [
        (_gain(point, lower_is_better), point.consistency, -point.dair_lambda, point)
        for point in points
        if point.consistency is not None
    ]
    front = []
    highest = float("-inf")
    # By descending accuracy, a point is on the front if its CM exceeds that of all previous points.
    for _, consistency, _, point in sorted(ranked, key=lambda entry: entry[:3], reverse=True):
        if consistency > highest:
            front.append(point)
            highest = consistency
    return sorted(front, key=lambda point: point.dair_lambda)


def _gain(point: Point, lower_is_better: bool) -> float:
    return -point.accuracy if lower_is_better else point.accuracy
