"""Means over seeds, and selection of the lambda with the best accuracy."""

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


def best_accuracy(points: Sequence[Point], lower_is_better: bool = False) -> Point:
    """Return the point with the best mean accuracy; ties go to the smallest lambda."""
    sign = 1 if lower_is_better else -1
    return min(points, key=lambda point: (sign * point.accuracy, point.dair_lambda))
