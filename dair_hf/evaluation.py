"""From correctness of every row to accuracy, consistency metric, flips, intervals and a test between two models.

Everything is a ratio of two sums over rows. A ratio whose denominator is 0 is undefined: it is `float("nan")` here and
is written as `null` in JSON, which has no NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError

NoPartner = Literal["identical", "exclude"]


def correctness_metrics(
    original_correct: ArrayLike,
    augmented_correct: ArrayLike,
    has_partner: ArrayLike | None = None,
    clusters: Sequence[str] | None = None,
    *,
    changed: ArrayLike | None = None,
    no_partner: NoPartner = "identical",
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float | int]:
    """Accuracy of both views, CM and flips, each with a bootstrap interval clustered by dialogue.

    With H the correctness of a row, z the original and z~ the augmented view (the paper's section on consistency):

        cm = P(H(z~) = 1 | H(z) = 1) = cm_numerator / cm_denominator = #(both right) / #(original right)

    Args:
        original_correct: [N] bool, H(z).
        augmented_correct: [N] bool, H(z~). Ignored where there is no partner.
        has_partner: [N] bool, whether the row has an augmented view. None: every row has.
        clusters: [N] str, the unit that is resampled, such as the dialogue id. None: every row on its own.
        changed: [N] bool, whether the predicted answer differs between the views, right or wrong; adds two keys.
            Ignored where there is no partner.
        no_partner: What a row without partner is in CM, flips and `both_correct`. "identical": a pair of two identical
            views, H(z~) = H(z), since the augmented test set holds that turn unchanged. "exclude": no pair.
        n_bootstrap: Number of resamples; 0 leaves the intervals out.
        seed: Seed of the resampling. The order of the rows does not matter.
        confidence: Coverage of the percentile interval, in (0, 1).

    Returns:
        `rows`, `pairs` (rows with a partner), `compared` (rows that enter CM and flips), `cm_numerator`,
        `cm_denominator` as int; as float, each with `<key>_low` and `<key>_high`: `original_accuracy`;
        `augmented_accuracy` (all rows; one without partner counts as its original); `augmented_accuracy_pairs` (rows
        with a partner only); `cm`; and as shares of the compared rows `both_correct`, `pos_to_neg`, `neg_to_pos`,
        `neg_to_neg`, which add up to 1; with `changed` also, likewise as shares, `flipped` (the answer changed) and
        `neg_to_neg_flipped` (it changed and both are wrong: the "neg->neg" of the paper's table on IV-VQA).

    Raises:
        DataError: Lengths differ, a value is neither 0 nor 1, or a setting is out of range.

    Example:
        >>> found = correctness_metrics([1, 1, 1, 0], [1, 0, 1, 1], clusters=["a", "a", "b", "b"])
        >>> found["cm_numerator"], found["cm_denominator"], round(found["cm"], 4), found["neg_to_pos"]
        (2, 3, 0.6667, 0.25)
    """
    if no_partner not in ("identical", "exclude"):
        raise DataError(f"no_partner: unknown choice {no_partner!r}; use 'identical' or 'exclude'")
    original = _as_bool(original_correct, "original_correct")
    partner = np.ones_like(original) if has_partner is None else _as_bool(has_partner, "has_partner")
    _same_length("has_partner", partner, original)
    augmented_values = np.asarray(augmented_correct)
    _same_length("augmented_correct", augmented_values, original)
    augmented = original.copy()
    augmented[partner] = _as_bool(augmented_values[partner], "augmented_correct")
    every = np.ones_like(original)
    compared = partner if no_partner == "exclude" else every

    ratios = {
        "original_accuracy": (original, every),
        "augmented_accuracy": (augmented, every),
        "augmented_accuracy_pairs": (augmented & partner, partner),
        "cm": (original & augmented & compared, original & compared),
        "both_correct": (original & augmented & compared, compared),
        "pos_to_neg": (original & ~augmented & compared, compared),
        "neg_to_pos": (~original & augmented & compared, compared),
        "neg_to_neg": (~original & ~augmented & compared, compared),
    }
    if changed is not None:
        changed_values = np.asarray(changed)
        _same_length("changed", changed_values, original)
        flipped = np.zeros_like(original)
        flipped[partner] = _as_bool(changed_values[partner], "changed")
        ratios["flipped"] = (flipped & compared, compared)
        ratios["neg_to_neg_flipped"] = (flipped & ~original & ~augmented & compared, compared)
    counts: dict[str, float | int] = {
        "rows": len(original),
        "pairs": int(partner.sum()),
        "compared": int(compared.sum()),
        "cm_numerator": int(ratios["cm"][0].sum()),
        "cm_denominator": int(ratios["cm"][1].sum()),
    }
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


def mcnemar(a_correct: ArrayLike, b_correct: ArrayLike) -> dict[str, float | int]:
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
    a, b = _as_bool(a_correct, "a_correct"), _as_bool(b_correct, "b_correct")
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


def _as_bool(values: ArrayLike, name: str) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name}: must be one value per row, found an array of shape {array.shape}")
    if array.dtype == np.bool_:
        return array
    if array.size and not np.isin(array, (0, 1)).all():
        row = int(np.flatnonzero(~np.isin(array, (0, 1)))[0])
        raise DataError(f"{name}: row {row} holds {array[row]!r}; correctness must be 0/1 or False/True")
    return array.astype(np.bool_)


def _same_length(name: str, array: NDArray[np.generic], original: NDArray[np.bool_]) -> None:
    if array.shape != original.shape:
        raise DataError(f"{name}: shape {array.shape} against {original.shape} rows; give one value for every row")


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
