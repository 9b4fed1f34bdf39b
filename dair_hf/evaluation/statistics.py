"""From correctness of every row to accuracy, consistency metric, flips and intervals; tests between models and runs.

Everything is a ratio of two sums over rows. A ratio whose denominator is 0 is undefined: it is `float("nan")` here and
is written as `null` in JSON, which has no NaN.
"""

from __future__ import annotations

import functools
import math
import reprlib
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError, UndefinedMetricWarning


def as_correct(
    values: Any, name: str = "is_correct", row_name: Callable[[int], str] = "row {}".format
) -> NDArray[np.bool_]:
    """Read the correctness of rows, refusing whatever is not exactly right or wrong.

    A score of 0.1 or the text "no" would count as right if it were cast to bool, so nothing is cast.

    Args:
        values: One value a row: True, False, or exactly 0 or 1 as int or float, in a list, an array or a tensor; single
            values may be 0-dimensional arrays or tensors.
        name: Name of the values in messages.
        row_name: Number of a row -> its name in messages.

    Returns:
        `[N]` bool.

    Raises:
        DataError: A value is anything else, or the values are no sequence of one value a row.

    Example:
        >>> as_correct([True, 0, 1.0, np.float32(0)])
        array([ True, False,  True, False])
    """
    items = _one_a_row(values, name)
    if isinstance(items, np.ndarray):
        return items
    found = np.zeros(len(items), dtype=np.bool_)
    for row, item in enumerate(items):
        value = item.item() if getattr(item, "shape", None) == () else item
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            shown = reprlib.repr(item)  # a row of logits would fill the screen
            raise DataError(f"{name}: {row_name(row)} holds {shown}; correctness is True or False, or exactly 0 or 1")
        found[row] = value == 1
    return found


def correctness_metrics(
    original_correct: Any,
    augmented_correct: Any,
    has_partner: Any = None,
    clusters: Sequence[str] | None = None,
    *,
    answer_changed: Any = None,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float | int]:
    """Accuracy of both views, CM and flips, each with a bootstrap interval clustered by dialogue.

    With H the correctness of a row, z the original and z~ the augmented view (the paper's consistency metric):

        cm = P(H(z~) = 1 | H(z) = 1) = cm_numerator / cm_denominator = #(both right) / #(original right)

    over the pairs, i.e. the rows that augmentation changed. The paper defines CM for any z and z~ = A(z). Where A
    changes nothing, such as a dialogue turn without a name to replace, z~ = z, and the row counts as a consistent pair
    if it is right at all. An augmented test set holds such rows unchanged, so the paper's tables include them:
    `cm_all_rows` is that figure. It grows with the share of unchanged rows, which says nothing about the model; `cm`
    does not depend on it. A model that is seldom right may have a high CM, so read it beside `both_correct`, the share
    of pairs with both views right: the "consistency" of contrast sets (Gardner et al. 2020).

    Args:
        original_correct: `[N]`, H(z), as `as_correct` takes it; so are the next two and `answer_changed`.
        augmented_correct: `[N]`, H(z~). Ignored where there is no partner.
        has_partner: `[N]`, whether the row has an augmented view. None: every row has.
        clusters: `[N]` str, the unit that is resampled, such as the dialogue id. None: every row on its own.
        answer_changed: `[N]`, whether the predicted answer differs between the views, right or wrong; adds two keys.
            Ignored where there is no partner.
        n_bootstrap: Number of resamples; 0 leaves the intervals out.
        seed: Seed of the resampling. The order of the rows does not matter.
        confidence: Coverage of the percentile interval, in (0, 1).

    Returns:
        `rows` and `pairs` (rows with a partner) as int. As float, each with `<key>_low` and `<key>_high`:

        - over the pairs: `cm`; `original_accuracy_pairs`, `augmented_accuracy_pairs`; `both_correct`, `pos_to_neg`,
          `neg_to_pos` and `neg_to_neg`, shares that add up to 1; with `answer_changed` also `flipped` (the answer
          changed) and `neg_to_neg_flipped` (it changed and both are wrong: "neg->neg" in the paper's table on IV-VQA);
        - over all rows, one without partner counting as two identical views: `original_accuracy`,
          `augmented_accuracy`, `cm_all_rows`.

        `cm_numerator`, `cm_denominator`, `cm_all_rows_numerator` and `cm_all_rows_denominator` are int. What is
        divided by no row is NaN.

    Raises:
        DataError: Lengths differ, a value is neither 0 nor 1, or a setting is out of range.

    Warns:
        UndefinedMetricWarning: No row has a partner, so whatever is taken over the pairs is NaN.

    Example:
        >>> found = correctness_metrics([1, 1, 1, 0, 1], [1, 0, 1, 1, 0], has_partner=[1, 1, 1, 1, 0])
        >>> found["cm_numerator"], found["cm_denominator"], round(found["cm"], 4), found["both_correct"]
        (2, 3, 0.6667, 0.5)
        >>> found["cm_all_rows_numerator"], found["cm_all_rows_denominator"], found["cm_all_rows"]
        (3, 4, 0.75)
    """
    original = as_correct(original_correct, "original_correct")
    partner = np.ones_like(original) if has_partner is None else as_correct(has_partner, "has_partner")
    _same_length("has_partner", partner, original)
    augmented = original.copy()
    augmented[partner] = _of_pairs("augmented_correct", augmented_correct, partner)
    every = np.ones_like(original)
    ratios = {
        "original_accuracy": (original, every),
        "augmented_accuracy": (augmented, every),
        "original_accuracy_pairs": (original & partner, partner),
        "augmented_accuracy_pairs": (augmented & partner, partner),
        "cm": (original & augmented & partner, original & partner),
        "cm_all_rows": (original & augmented, original),
        "both_correct": (original & augmented & partner, partner),
        "pos_to_neg": (original & ~augmented & partner, partner),
        "neg_to_pos": (~original & augmented & partner, partner),
        "neg_to_neg": (~original & ~augmented & partner, partner),
    }
    if answer_changed is not None:
        flipped = np.zeros_like(original)
        flipped[partner] = _of_pairs("answer_changed", answer_changed, partner)
        ratios["flipped"] = (flipped, partner)
        ratios["neg_to_neg_flipped"] = (flipped & ~original & ~augmented, partner)
    counts: dict[str, float | int] = {"rows": len(original), "pairs": int(partner.sum())}
    for name in ("cm", "cm_all_rows"):
        top, bottom = ratios[name]
        counts |= {f"{name}_numerator": int(top.sum()), f"{name}_denominator": int(bottom.sum())}
    if not partner.any():
        warnings.warn(
            f"none of {len(original)} rows has an augmented view, so cm, both_correct and the flips are NaN; if "
            "there are augmented views, check the names of their columns",
            UndefinedMetricWarning,
            stacklevel=2,
        )
    return counts | ratios_with_intervals(ratios, clusters, n_bootstrap=n_bootstrap, seed=seed, confidence=confidence)


def ratios_with_intervals(
    ratios: Mapping[str, tuple[ArrayLike, ArrayLike]],
    clusters: Sequence[str] | None = None,
    *,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float]:
    """Compute several ratios of sums over the same rows, with intervals from one shared clustered bootstrap.

    Args:
        ratios: name -> (numerators [N], denominators [N]); the ratio is sum / sum.
        clusters: [N] str, the unit that is resampled; None: every row on its own.
        n_bootstrap: Number of resamples; 0 leaves the intervals out.
        seed: Seed of the resampling.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        For every name: `name`, and with n_bootstrap > 0 also `name_low`, `name_high`.

    Raises:
        DataError: Lengths differ or a setting is out of range.

    Example:
        >>> ratios_with_intervals({"accuracy": ([1, 0, 1, 1], [1, 1, 1, 1])}, n_bootstrap=0)
        {'accuracy': 0.75}
    """
    numerators = np.array([np.asarray(pair[0], dtype=np.float64) for pair in ratios.values()]).T
    denominators = np.array([np.asarray(pair[1], dtype=np.float64) for pair in ratios.values()]).T
    points = _divide(numerators.sum(axis=0), denominators.sum(axis=0))
    result = dict(zip(ratios, points.tolist(), strict=True))
    if n_bootstrap == 0:
        return result
    low, high = clustered_bootstrap(
        numerators, denominators, clusters, n_bootstrap=n_bootstrap, seed=seed, confidence=confidence
    )
    with_intervals: dict[str, float] = {}
    for index, (name, point) in enumerate(result.items()):
        with_intervals |= {name: point, f"{name}_low": float(low[index]), f"{name}_high": float(high[index])}
    return with_intervals


def clustered_bootstrap(
    numerators: ArrayLike,
    denominators: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile intervals of K ratios of sums, resampling whole clusters with replacement.

    Turns of one dialogue rise and fall together, so the dialogue is the unit. Rows are first summed within each
    cluster; clusters with the same sums are interchangeable, so a resample is one multinomial draw over the distinct
    sums: cost and memory grow with their number, not with the number of rows.

    Args:
        numerators: [N, K] float.
        denominators: [N, K] float.
        clusters: [N] str; None: every row on its own.
        n_bootstrap: Number of resamples, at least 1.
        seed: Seed of the draws.
        confidence: Coverage, in (0, 1).

    Returns:
        low [K] and high [K]. Resamples in which a ratio is undefined are left out of its interval; NaN where all are,
        or where there are fewer than two clusters to resample.

    Raises:
        DataError: Shapes do not agree, or a setting is out of range.

    Example:
        >>> low, high = clustered_bootstrap([[1.0], [0.0], [1.0], [1.0]], [[1.0]] * 4, ["a", "a", "b", "b"])
        >>> float(low[0]), float(high[0])
        (0.5, 1.0)
    """
    if n_bootstrap < 1:
        raise DataError(f"n_bootstrap: must be at least 1, found {n_bootstrap}; 0 is for leaving intervals out")
    require_seeds("seed", [seed])
    if not 0.0 < confidence < 1.0:
        raise DataError(f"confidence: must lie between 0 and 1, found {confidence}; 0.95 is usual")
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if top.ndim != 2 or top.shape != bottom.shape:
        raise DataError(f"numerators {top.shape} and denominators {bottom.shape}: both must have one shape [N, K]")
    n_rows, n_ratios = top.shape
    sums = np.concatenate([top, bottom], axis=1)
    if clusters is not None:
        sums = _sums_by_cluster(sums, clusters)
    undefined = np.full(n_ratios, np.nan)
    if len(sums) < 2:
        return undefined, undefined.copy()
    kinds, kind_counts = np.unique(sums, axis=0, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(sums), kind_counts / len(sums), size=n_bootstrap)
    resampled = draws.astype(np.float64) @ kinds
    values = _divide(resampled[:, :n_ratios], resampled[:, n_ratios:])
    low, high = undefined, undefined.copy()
    tail = (1.0 - confidence) / 2.0
    for column in range(n_ratios):
        defined = values[:, column][~np.isnan(values[:, column])]
        if defined.size:
            low[column], high[column] = np.quantile(defined, [tail, 1.0 - tail])
    return low, high


def mcnemar(a_correct: Any, b_correct: Any) -> dict[str, float | int]:
    """Exact two-sided McNemar test: are two models right equally often on the same rows?

    Of the n = b + c rows on which exactly one of the two is right, the count of either is Binomial(n, 1/2) if they are
    equally good:  p = min(1, 2 * sum_{i <= min(b, c)} C(n, i) / 2^n).

    The test takes rows as independent; turns of one dialogue are not, so a p-value near the threshold deserves a look
    at the clustered intervals as well.

    Args:
        a_correct: [N] bool, correctness of model a.
        b_correct: [N] bool, correctness of model b on the same rows in the same order.

    Returns:
        `only_a`, `only_b` (rows only that model has right), `difference` (accuracy of a minus accuracy of b; NaN
        without rows), `p_value` (1.0 where the two never differ).

    Raises:
        DataError: Lengths differ or a value is neither 0 nor 1.

    Example:
        >>> mcnemar([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1])
        {'only_a': 5, 'only_b': 1, 'difference': 0.5714285714285714, 'p_value': 0.21875}
    """
    a, b = as_correct(a_correct, "a_correct"), as_correct(b_correct, "b_correct")
    _same_length("b_correct", b, a)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    discordant = only_a + only_b
    # Integers are exact at any size; floats would underflow 2^-n beyond n = 1,074.
    term = tail = 1
    for i in range(min(only_a, only_b)):
        term = term * (discordant - i) // (i + 1)
        tail += term
    return {
        "only_a": only_a,
        "only_b": only_b,
        "difference": (only_a - only_b) / len(a) if len(a) else float("nan"),
        "p_value": min(1.0, 2 * tail / 2**discordant),
    }


@functools.cache
def t_quantile(degrees_of_freedom: float, confidence: float = 0.95) -> float:
    """Two-sided quantile of Student's t distribution: the t with P(|T| <= t) = confidence.

    With t = sqrt(nu) tan(phi):

        P(|T| <= t) = 2 Gamma((nu + 1) / 2) / (sqrt(pi) Gamma(nu / 2)) * integral_0^phi cos(x)^(nu - 1) dx

    by Gauss-Legendre quadrature, solved for t by bisection; the relative error is below 1e-8 up to nu = 10,000.

    Args:
        degrees_of_freedom: nu, at least 1; need not be whole.
        confidence: In (0, 0.999].

    Raises:
        DataError: A value is out of range.

    Example:
        >>> [round(t_quantile(degrees), 3) for degrees in (1, 2, 4, 100)]
        [12.706, 4.303, 2.776, 1.984]
    """
    if not (1 <= degrees_of_freedom < math.inf and 0 < confidence <= 0.999):
        raise DataError(
            f"t_quantile({degrees_of_freedom}, {confidence}): needs finite degrees of freedom of at least 1 and a "
            "confidence above 0 and up to 0.999"
        )
    nu = degrees_of_freedom
    scale = 2 / math.sqrt(math.pi) * math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2))
    nodes, weights = np.polynomial.legendre.leggauss(100)

    def share(t: float) -> float:
        phi = math.atan(t / math.sqrt(nu))
        return scale * phi / 2 * float(weights @ np.cos(phi / 2 * (nodes + 1)) ** (nu - 1))

    low = statistics.NormalDist().inv_cdf((1 + confidence) / 2)  # the limit for many degrees of freedom
    high = 2 * low
    while share(high) < confidence:
        low, high = high, 2 * high
    while high - low > 1e-11 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < confidence else (low, middle)
    return (low + high) / 2


def welch_half_width(*samples: tuple[float, int], confidence: float = 0.95) -> float:
    """Half-width of the t interval of a mean, or of the difference of two independent means (Welch 1947).

        t_{nu} sqrt(sum_i s_i^2 / n_i),    nu = (sum_i s_i^2 / n_i)^2 / sum_i (s_i^2 / n_i)^2 / (n_i - 1)

    Args:
        *samples: For each mean the standard deviation s (with n - 1) and the number n of values, at least 2: a single
            value says nothing about its spread.
        confidence: Coverage, in (0, 1).

    Returns:
        The half-width, in the unit of s.

    Raises:
        DataError: A mean of fewer than two values.

    Example:
        >>> round(welch_half_width((1.0, 5)), 3), round(welch_half_width((1.0, 5), (1.0, 5)), 3)
        (1.242, 1.458)
    """
    if any(size < 2 for _, size in samples):
        raise DataError(f"an interval needs at least two values of each mean, found {[size for _, size in samples]}")
    variances = [std**2 / size for std, size in samples]
    total = sum(variances)
    if total == 0:
        return 0.0
    # In shares of the total, so that the squares of tiny variances do not underflow.
    shares = [variance / total for variance in variances]
    nu = 1 / sum(share**2 / (size - 1) for share, (_, size) in zip(shares, samples, strict=True))
    return t_quantile(nu, confidence) * math.sqrt(total)


def _of_pairs(name: str, values: Any, partner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Correctness of the rows with a partner; whatever the others hold is ignored."""
    items, rows = _one_a_row(values, name), partner.nonzero()[0]
    if len(items) != len(partner):
        raise DataError(f"{name}: {len(items)} values for {len(partner)} rows; give one value for every row")
    return as_correct([items[row] for row in rows], name, lambda index: f"row {rows[index]}")


def _one_a_row(values: Any, name: str) -> NDArray[np.bool_] | list[Any]:
    """The values as they are, in a list, or as the array of bools that they are already."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise DataError(
            f"{name}: found a {type(values).__name__}; give a list, an array or a tensor of one value a row"
        )
    if len(shape := tuple(getattr(values, "shape", (0,)))) != 1:
        raise DataError(f"{name}: found an array of shape {shape}; give one value a row, [N]")
    if isinstance(values, np.ndarray) and values.dtype == np.bool_:
        return values
    # `tolist` copies a tensor from its device at once, not value by value.
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _same_length(name: str, array: NDArray[np.bool_], original: NDArray[np.bool_]) -> None:
    if len(array) != len(original):
        raise DataError(f"{name}: {len(array)} values for {len(original)} rows; give one value for every row")


def _sums_by_cluster(sums: NDArray[np.float64], clusters: Sequence[str]) -> NDArray[np.float64]:
    if len(clusters) != len(sums):
        raise DataError(f"clusters: {len(clusters)} for {len(sums)} rows; give one cluster id for every row")
    _, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    columns = [np.bincount(index, weights=column) for column in sums.T]
    return np.stack(columns, axis=1)


def _divide(top: NDArray[np.float64], bottom: NDArray[np.float64]) -> NDArray[np.float64]:
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom != 0)
    return result
