"""Difference between two models on the same rows, over several seeds of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.special import stdtrit  # type: ignore[import-untyped]

from dair_hf.evaluation.statistics import sums_by_cluster

CONFIDENCE = 0.95


class PairedDifference(NamedTuple):
    """Difference of a metric between two models; `parts` are the variances A, B, E and their degrees of freedom."""

    difference: float
    standard_error: float
    half_width: float | None
    parts: Sequence[Sequence[float]] = ()

    @property
    def p_value(self) -> float:
        """Return the level whose interval ends at 0, at least 1e-12; 1 without an interval."""
        if self.half_width is None:
            return 1.0
        size, smallest = abs(self.difference), 1e-12
        if self.half_width_at(smallest) < size:
            return smallest
        return float(brentq(lambda level: self.half_width_at(level) - size, smallest, 1.0))

    def half_width_at(self, level: float) -> float:
        """Return the half width of the interval that misses the truth with this probability."""
        variances, freedoms = np.transpose(self.parts)
        (units, seeds, residuals), (t_units, t_seeds, t_residuals) = variances, stdtrit(freedoms, 1 - level / 2) ** 2
        crossed = t_seeds * seeds + t_units * max(units - residuals, 0.0)
        return float(np.sqrt(max(crossed, t_units * units, t_residuals * residuals)))

    @property
    def is_significant(self) -> bool:
        """Return whether the interval excludes 0; False without an interval."""
        return self.half_width is not None and abs(self.difference) > self.half_width


def paired_difference(first: Any, second: Any, clusters: Sequence[str] | None = None) -> PairedDifference:
    """Compare a ratio of two sums between models that were trained with the same seeds and evaluated on the same rows.

    The metric of seed s is `q_s = sum_i n_si / sum_i d_si`. An accuracy has d = 1; CM has n = both views correct and
    d = original correct. With two fixed models the usual test is McNemar's. Here rows and seeds are both samples, and
    every seed sees the same rows: a crossed design. Row i of seed s contributes

        v_si = q_s + (n_si - q_s d_si) / mean_i(d_si)

    (delta method; for an accuracy, v = n). With u the difference of v between the models, N rows and S seeds:

        A = var(row means of u) / N,  B = var(seed means of u) / S,  E = var(residuals) / (N S)
        standard error^2 = A + B - E

    where residuals are what row and seed means leave, with (N - 1)(S - 1) degrees of freedom (crossed random effects;
    Searle, Casella and McCulloch 1992, chapter 4). Few seeds estimate B badly, so each part of the interval has the t
    quantile of its own degrees of freedom (Banerjee 1960, Sankhya 22, 357-358):

        half width^2 = t(S - 1)^2 B + t(N - 1)^2 max(A - E, 0)

    A difference of noisy terms may come out too small: standard error and half width are never below those of A, B or
    E alone. A difference that is the same in all rows and seeds has no interval, whatever its size: one without width
    would claim that other seeds and rows can only give the same.

    Args:
        first: Numerators and denominators of the first model, two arrays `[S, N]`.
        second: The same of the second model.
        clusters: `[N]` str, units that are independent of each other, such as dialogue ids; None: single rows.

    Returns:
        Difference, standard error and half width of the 95 % interval; NaN for a ratio over no rows.

    Example:
        >>> everything = [[1, 1, 1, 1]]
        >>> paired_difference(([[1, 1, 1, 0]], everything), ([[1, 0, 0, 0]], everything))
        PairedDifference(difference=0.5, standard_error=0.28867513459481287, half_width=None, parts=())
    """
    parts = np.stack([np.atleast_2d(np.asarray(part, dtype=np.float64)) for model in (first, second) for part in model])
    difference = _contributions(*parts[:2]) - _contributions(*parts[2:])
    rows = difference.shape[1]
    if clusters is not None:
        # Deviations, since a sum of values would also vary with the number of rows of a cluster.
        means = difference.mean(1, keepdims=True)
        sums = sums_by_cluster((difference - means).T, clusters).T
        difference = means + sums * sums.shape[1] / rows
    return _mean_with_interval(difference)


def _mean_with_interval(cells: NDArray[np.float64]) -> PairedDifference:
    """Return the mean of a crossed sample `[S, units]` with its interval."""
    seeds, units = cells.shape
    mean, by_unit, by_seed = float(cells.mean()), cells.mean(0), cells.mean(1)
    of_units = by_unit.var(ddof=1) / units
    if seeds == 1:
        return PairedDifference(mean, float(np.sqrt(of_units)), None)
    of_seeds = by_seed.var(ddof=1) / seeds
    freedom = (units - 1) * (seeds - 1)
    residuals = cells - by_unit - by_seed[:, None] + mean
    of_residuals = (residuals**2).sum() / freedom / (units * seeds)
    variance = max(of_units + of_seeds - of_residuals, of_units, of_seeds, of_residuals)
    parts = ((of_units, units - 1), (of_seeds, seeds - 1), (of_residuals, freedom))
    found = PairedDifference(mean, float(np.sqrt(variance)), None, parts)
    half_width = found.half_width_at(1 - CONFIDENCE)
    return found._replace(half_width=half_width) if half_width > 1e-12 else found


def _contributions(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `[S, N]`, what each row contributes to the ratio of its seed; the mean over rows is the ratio."""
    totals = denominators.sum(1, keepdims=True)
    ratio = numerators.sum(1, keepdims=True) / totals
    return ratio + (numerators - ratio * denominators) * denominators.shape[1] / totals
