"""Mean and standard deviation of a metric over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import NamedTuple


class Sample(NamedTuple):
    """Values of one quantity over seeds.

    Attributes:
        mean: Mean.
        std: Standard deviation with n - 1; 0 for one value.
        seeds: Number of seeds.
    """

    mean: float
    std: float
    seeds: int

    @classmethod
    def of(cls, values: Collection[float | None]) -> Sample | None:
        """Return the sample of some values; None if there is none, or any is undefined.

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
