"""Which lambda a search takes: runs gathered by lambda, selection rules, the accuracy-consistency front."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError


class Point(NamedTuple):
    """What the runs of one lambda found on validation data.

    Attributes:
        dair_lambda: The lambda.
        accuracies: The accuracy (or an error) of each seed.
        consistencies: The CM of each seed, None where it is undefined; empty where it is not asked for.
    """

    dair_lambda: float
    accuracies: tuple[float, ...]
    consistencies: tuple[float | None, ...] = ()

    @property
    def accuracy(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def consistency(self) -> float | None:
        """Mean over the seeds; None where a seed has none, because the mean of the others would flatter."""
        defined = [value for value in self.consistencies if value is not None]
        return statistics.fmean(defined) if defined and len(defined) == len(self.consistencies) else None


def points_by_lambda(
    records: Iterable[Mapping[str, Any]], accuracy: str, consistency: str | None = None
) -> list[Point]:
    """The records of a search, gathered by lambda.

    Args:
        records: Records of runs, made by `experiments.report.run_record`; each holds its lambda in
            `config.training.dair_lambda`.
        accuracy: Key of the accuracy (or the error) in their metrics.
        consistency: Key of CM.

    Returns:
        One point a lambda, ascending; the seeds ascending within each, whatever the order of the records.

    Raises:
        DataError: No record, a metric that is missing, an undefined accuracy, a run counted twice, or lambdas with
            different seeds.
    """
    found: dict[float, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for record in records:
        value, seed = record["config"]["training"]["dair_lambda"], record["seed"]
        if seed in found[value]:
            raise DataError(
                f"{record['name']}: lambda {value:g} with seed {seed} was given already; give each run once"
            )
        found[value][seed] = record
    if not found:
        raise DataError("no record of a finished run: there is nothing to choose from")
    if len({frozenset(runs) for runs in found.values()}) > 1:
        listed = ", ".join(f"{value:g}: {sorted(runs)}" for value, runs in sorted(found.items()))
        raise DataError(f"lambdas were run with different seeds ({listed}); run each with the same")

    def metrics(runs: Mapping[int, Mapping[str, Any]], key: str) -> tuple[Any, ...]:
        for record in runs.values():
            if key not in record["metrics"]:
                raise DataError(f"{record['name']}: no metric {key!r}; it has {', '.join(record['metrics'])}")
        return tuple(runs[seed]["metrics"][key] for seed in sorted(runs))

    points = []
    for value, runs in sorted(found.items()):
        accuracies = metrics(runs, accuracy)
        if None in accuracies:
            raise DataError(f"lambda {value:g}: {accuracy} is undefined in a run; leave that lambda out of the grid")
        points.append(Point(value, accuracies, metrics(runs, consistency) if consistency else ()))
    return points


def best_accuracy(points: Sequence[Point], lower_is_better: bool = False) -> Point:
    """The lambda with the best mean accuracy; of equal ones the smallest lambda.

    Args:
        points: As `points_by_lambda` makes them.
        lower_is_better: Whether `accuracy` is an error, such as RMSE.

    Example:
        >>> best_accuracy([Point(1.0, (0.5, 0.7)), Point(10.0, (0.7, 0.7))]).dair_lambda
        10.0
    """
    return min(points, key=lambda point: (-_gain(point, lower_is_better), point.dair_lambda))


def best_consistency_within(points: Sequence[Point], epsilon: float, lower_is_better: bool = False) -> Point:
    """The lambda with the best mean CM among those whose accuracy is within `epsilon` of the best; of equal ones the
    smallest lambda.

    Args:
        points: As `points_by_lambda` makes them.
        epsilon: How much accuracy may be given away, at least 0, in its unit.
        lower_is_better: Whether `accuracy` is an error.

    Raises:
        DataError: None of those has a CM.

    Example:
        >>> points = [Point(1.0, (0.70,), (0.8,)), Point(10.0, (0.69,), (0.9,)), Point(100.0, (0.5,), (1.0,))]
        >>> best_consistency_within(points, epsilon=0.02).dair_lambda
        10.0
    """  # noqa: D205
    most = _gain(best_accuracy(points, lower_is_better), lower_is_better)
    # The slack is that of a sum in float64: 0.3 - 0.1 is not 0.2.
    near = [point for point in points if most - _gain(point, lower_is_better) <= epsilon + 1e-12]
    judged = [(-point.consistency, point.dair_lambda, point) for point in near if point.consistency is not None]
    if not judged:
        raise DataError("CM is undefined for every lambda within epsilon of the best accuracy; choose by best_accuracy")
    return min(judged)[2]


def pareto_front(points: Sequence[Point], lower_is_better: bool = False) -> list[Point]:
    """The accuracy-consistency front: the points that no other equals or beats on both counts.

    Of points that are equal on both, the smallest lambda stays. A point without CM is not on the front.

    Args:
        points: As `points_by_lambda` makes them.
        lower_is_better: Whether `accuracy` is an error.

    Returns:
        The points of the front, by ascending lambda.
    """
    judged = [
        (_gain(point, lower_is_better), point.consistency, -point.dair_lambda, point)
        for point in points
        if point.consistency is not None
    ]
    kept = []
    reached = float("-inf")
    # By falling accuracy: a point is on the front where its CM passes that of all before it.
    for _, consistency, _, point in sorted(judged, key=lambda entry: entry[:3], reverse=True):
        if consistency > reached:
            kept.append(point)
            reached = consistency
    return sorted(kept, key=lambda point: point.dair_lambda)


def _gain(point: Point, lower_is_better: bool) -> float:
    return -point.accuracy if lower_is_better else point.accuracy
