"""Means over seeds, and selection of lambda: the best accuracy, and the accuracy-consistency Pareto front."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """Mean of a quantity over seeds, its standard deviation with n - 1 (0 for one value), and the number of seeds."""

    mean: float
    std: float
    seeds: int

    @classmethod
    def of(cls, values: Collection[float | None]) -> Sample | None:
        """Return the sample of some values; None without values, or if any is undefined.

        The mean over the remaining seeds would be biased.

        Example:
            >>> Sample.of([1.0, 3.0])
            Sample(mean=2.0, std=1.4142135623730951, seeds=2)
            >>> Sample.of([1.0, None]) is None
            True
        """
        defined = [value for value in values if value is not None]
        if not defined or len(defined) < len(values):
            return None
        deviation = statistics.stdev(defined) if len(defined) > 1 else 0.0
        return cls(statistics.fmean(defined), deviation, len(defined))


class Point(NamedTuple):
    """Validation metrics of one lambda: of each seed accuracy (or an error), and CM (None: undefined) if measured."""

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


def best_accuracy(points: Sequence[Point], lower_is_better: bool = False) -> Point:
    """Return the point with the best mean accuracy; ties go to the smallest lambda."""
    return min(points, key=lambda point: (-_gain(point, lower_is_better), point.dair_lambda))


def pareto_front(points: Sequence[Point], lower_is_better: bool = False) -> list[Point]:
    """Return the points that no other point equals or beats in both accuracy and consistency.

    They are ordered by lambda. If points are equal in both, only the smallest lambda counts. Points without CM do not.
    """
    ranked = [
        (_gain(point, lower_is_better), point.consistency, -point.dair_lambda, point)
        for point in points
        if point.consistency is not None
    ]
    front = []
    highest = float("-inf")
    # By descending accuracy, a point is on the front if its CM exceeds the CM of all previous points.
    for _, consistency, _, point in sorted(ranked, key=lambda entry: entry[:3], reverse=True):
        if consistency > highest:
            front.append(point)
            highest = consistency
    return sorted(front, key=lambda point: point.dair_lambda)


def _gain(point: Point, lower_is_better: bool) -> float:
    return -point.accuracy if lower_is_better else point.accuracy
