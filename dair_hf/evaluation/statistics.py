"""Statistics of correctness: accuracy, consistency metric, flips and intervals.

Metrics are ratios of two sums over rows. A ratio with a denominator of 0 is NaN, and `null` in JSON files.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]

from dair_hf.errors import DataError, UndefinedMetricWarning

CM_MIN_PAIRS = 30  # tables show a CM of fewer pairs as "-"


def as_correct(
    values: Any, name: str = "is_correct", row_name: Callable[[int], str] = "row {}".format
) -> NDArray[np.bool_]:
    """Convert the correctness of rows to bool, and refuse other values.

    A cast to bool would count a score of 0.1 or the text "no" as correct.

    Args:
        values: True, False, or exactly 0 or 1 as int or float for each row, in a list, an array or a tensor. Items of a
            list may be 0-dimensional arrays or tensors.
        name: Name of the values in messages.
        row_name: Number of a row -> its name in messages.

    Returns:
        `[N]` bool.

    Raises:
        DataError: A value is anything else.

    Example:
        >>> as_correct([True, 0, 1.0, np.float32(0)])
        array([ True, False,  True, False])
    """
    if isinstance(values, np.ndarray) and values.dtype == np.bool_ and values.ndim == 1:
        return values
    items = _row_values(values, name)
    correct = np.zeros(len(items), dtype=np.bool_)
    for row, item in enumerate(items):
        value = item.item() if getattr(item, "shape", None) == () else item
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            shown = reprlib.repr(item)  # a row of logits would fill the screen
            raise DataError(f"{name}: {row_name(row)} holds {shown}; expected True or False, or exactly 0 or 1")
        correct[row] = value == 1
    return correct


def correctness_metrics(
    original_correct: Any,
    augmented_correct: Any,
    has_partner: Any = None,
    clusters: Sequence[str] | None = None,
    *,
    answer_changed: Any = None,
    same_answer: Any = None,
    intervals: bool = True,
    confidence: float = 0.95,
) -> dict[str, float | int]:
    """Compute accuracy of both views, CM and flips, each with an interval.

    With H the correctness of a row, z the original and z~ the augmented view (the paper's consistency metric):

        cm = P(H(z~) = 1 | H(z) = 1) = cm_numerator / cm_denominator = #(both correct) / #(original correct)

    over the pairs, the rows that augmentation changed. Where only some of the changed inputs have another answer, such
    as a renamed hotel that the state holds, `cm` is over these pairs, and `cm_same_answer` over the others: a model
    that answers nothing is right on both views of those. Some rows are not changed, such as a dialogue turn without a
    name to replace. The paper's tables include them with z~ = z, so that they count as consistent if they are correct:
    this is `cm_all_rows`. It grows with the share of unchanged rows, whatever the model; `cm` does not. A model that is
    seldom correct may have a high CM, so compare `both_correct`, too: the share of pairs with both views correct, which
    is the "consistency" of contrast sets (Gardner et al. 2020); with several partners, `all_correct` is.

    Where neither view comes first, as in texts that people revised, `reverse_cm` asks in the other direction:
    `P(H(z) = 1 | H(z~) = 1)`, with the same numerator.

    A row with several partners is as many pairs, each of them with the same original. Numerators and denominators count
    pairs; intervals have whole rows or clusters as units.

    Args:
        original_correct: `[N]`, H(z). Values are those of `as_correct`, also in the other masks.
        augmented_correct: `[N]`, H(z~), or an array `[N, P]` for P partners per row; ignored for absent partners.
        has_partner: `[N]`, whether each row has an augmented view, or `[N, P]`, which of its partners exist. None: all
            of them do.
        clusters: `[N]` str, units that are independent of each other, such as dialogue ids. None: single rows.
        answer_changed: `[N]` or `[N, P]`, whether the predicted answers to original and partner differ, correct or not;
            adds two keys. Ignored for absent partners.
        same_answer: `[N]` or `[N, P]`, whether the right answers to original and partner are the same; adds
            `cm_same_answer`. Ignored for absent partners. None: `cm` is over all pairs.
        intervals: Whether to compute intervals.
        confidence: Coverage of the intervals, in (0, 1); `ratios_with_intervals` says how they are made.

    Returns:
        `rows` and `pairs` (rows with a partner) as int. As float, each with `<key>_low` and `<key>_high`:

        - over the pairs with different right answers: `cm`, `reverse_cm`; with `same_answer` also `cm_same_answer`,
          over the other pairs;
        - over the pairs: `original_accuracy_pairs`, `augmented_accuracy_pairs`, and their mean
          `both_views_accuracy`; `both_correct`, `pos_to_neg`, `neg_to_pos` and `neg_to_neg`, shares that add up to 1;
          with `answer_changed` also `flipped` (the answer changed) and `neg_to_neg_flipped` (it changed and both are
          wrong: "neg->neg" in the paper's table on IV-VQA);
        - over all rows, with rows without a partner as two identical views: `original_accuracy`,
          `augmented_accuracy` (over all partners), `cm_all_rows`;
        - if P > 1: `all_correct`, over the rows with a partner, the share with all views correct; `cm_partner_1`,
          `cm_partner_2` and so on, the CM of the pairs with that partner number (of those with another answer, if any
          has), and likewise `augmented_accuracy_partner_1`, the accuracy of all of them. The number of pairs, over all
          rows, is `partners`, as int.

        Of every CM also `<key>_numerator` and `<key>_denominator`, as int. A ratio over no rows is NaN.

    Raises:
        DataError: Lengths or numbers of partners differ, or a value is neither 0 nor 1.

    Warns:
        UndefinedMetricWarning: No row has a partner, so that metrics over the pairs are NaN.

    Example:
        >>> metrics = correctness_metrics([1, 1, 1, 0, 1], [1, 0, 1, 1, 0], has_partner=[1, 1, 1, 1, 0])
        >>> metrics["cm_numerator"], metrics["cm_denominator"], round(metrics["cm"], 4), metrics["both_correct"]
        (2, 3, 0.6667, 0.5)
        >>> metrics["cm_all_rows_numerator"], metrics["cm_all_rows_denominator"], metrics["cm_all_rows"]
        (3, 4, 0.75)
        >>> metrics = correctness_metrics([1, 1], np.array([[1, 0], [1, 1]]), intervals=False)
        >>> metrics["cm"], metrics["all_correct"], metrics["cm_partner_1"], metrics["cm_partner_2"]
        (0.75, 0.5, 1.0, 0.5)
    """
    original = as_correct(original_correct, "original_correct")
    width = len(_columns(augmented_correct))
    partner = np.ones((len(original), width), dtype=np.bool_)
    if has_partner is not None:
        partner = _of_pairs("has_partner", has_partner, partner)
    augmented = np.where(partner, _of_pairs("augmented_correct", augmented_correct, partner), original[:, None])
    first = original[:, None]
    # Of every row one view, whether it has partners or not.
    views = partner.copy()
    views[~partner.any(1), 0] = True
    same = np.zeros_like(partner) if same_answer is None else _of_pairs("same_answer", same_answer, partner)
    changed = partner & ~same
    cm = first & augmented
    ratios: dict[str, tuple[ArrayLike, ArrayLike]] = {
        "original_accuracy": (original, np.ones_like(original)),
        "augmented_accuracy": _counts(augmented, views),
        "original_accuracy_pairs": _counts(first, partner),
        "augmented_accuracy_pairs": _counts(augmented, partner),
        "cm": _counts(cm, first & changed),
        "cm_all_rows": _counts(cm, first & views),
        "both_correct": _counts(cm, partner),
        "pos_to_neg": _counts(first & ~augmented, partner),
        "neg_to_pos": _counts(~first & augmented, partner),
        "neg_to_neg": _counts(~first & ~augmented, partner),
        "reverse_cm": _counts(cm, augmented & changed),
        "both_views_accuracy": ((first & partner).sum(1) + (augmented & partner).sum(1), 2 * partner.sum(1)),
    }
    if same_answer is not None:
        ratios["cm_same_answer"] = _counts(cm, first & same)
    if answer_changed is not None:
        flipped = _of_pairs("answer_changed", answer_changed, partner)
        ratios["flipped"] = _counts(flipped, partner)
        ratios["neg_to_neg_flipped"] = _counts(flipped & ~first & ~augmented, partner)
    paired = partner.any(1)
    counts: dict[str, float | int] = {"rows": len(original), "pairs": int(paired.sum())}
    if partner.shape[1] > 1:
        counts["partners"] = int(partner.sum())
        ratios["all_correct"] = (paired & (cm | ~partner).all(1), paired)
        for number, exists in enumerate(partner.T):
            of_cm = original & (changed[:, number] if changed[:, number].any() else exists)
            ratios[f"cm_partner_{number + 1}"] = (cm[:, number] & of_cm, of_cm)
            ratios[f"augmented_accuracy_partner_{number + 1}"] = (augmented[:, number] & exists, exists)
    for name in filter(is_cm, ratios):
        numerator, denominator = map(np.sum, ratios[name])
        counts |= {f"{name}_numerator": int(numerator), f"{name}_denominator": int(denominator)}
    if not partner.any():
        warnings.warn(
            f"none of {len(original)} rows has an augmented view, so cm, both_correct and the flips are NaN; if "
            "the data has augmented views, check the names of their columns",
            UndefinedMetricWarning,
            stacklevel=2,
        )
    return counts | ratios_with_intervals(ratios, clusters, intervals=intervals, confidence=confidence)


def is_cm(key: str) -> bool:
    """Return whether a metric is a CM, by its key: "cm", "reverse_cm", "attainable_cm", "cm_partner_1" and so on."""
    return "cm" in key.split("_")


def has_few_pairs(metrics: Mapping[str, Any], key: str) -> bool:
    """Return whether a metric is a CM of so few pairs that tables show it as "-"."""
    return is_cm(key) and metrics.get(f"{key}_denominator", CM_MIN_PAIRS) < CM_MIN_PAIRS


def ratios_with_intervals(
    ratios: Mapping[str, tuple[ArrayLike, ArrayLike]],
    clusters: Sequence[str] | None = None,
    *,
    intervals: bool = True,
    confidence: float = 0.95,
) -> dict[str, float]:
    """Compute ratios of sums over the same rows, with confidence intervals over clusters that are independent.

    Turns of a dialogue are correlated, so rows are summed within their cluster. With n_c and d_c the sums of the C
    clusters whose d_c is above 0, the ratio is `q = sum n_c / sum d_c`, and its variance (linearized, as in survey
    sampling; Cochran 1977, section 6.3)

        v = C / (C - 1) * sum (n_c - q d_c)^2 / (sum d_c)^2

    A share (0 <= numerator <= denominator in every row) has as much information as n = q (1 - q) / v rows of 0 or 1.
    Its interval is the score interval of Wilson (1927) for n trials, with the t quantile of C - 1 degrees of freedom
    (Franco, Little, Louis and Slud 2019, Journal of Survey Statistics and Methodology 7, 334-364). It never leaves
    [0, 1], and holds for few rows and for shares near 0 and 1, where percentiles of a bootstrap are too narrow. If all
    numerators are whole, n is at most the number of rows whose denominator is above 0; it is C if all clusters have the
    same ratio, such as 0 of 14. Other ratios, such as a difference of accuracies, have `q +- t sqrt(v)`.

    Args:
        ratios: Name -> (numerators `[N]`, denominators `[N]`) of a ratio of their sums.
        clusters: `[N]` str, independent units such as dialogue ids; None: single rows.
        intervals: Whether to compute intervals.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        `<name>` of every ratio; with intervals also `<name>_low` and `<name>_high`.

    Raises:
        DataError: A value is NaN or infinite, a cluster is None, or `confidence` is out of range.

    Example:
        >>> ratios_with_intervals({"accuracy": ([1, 0, 1, 1], [1, 1, 1, 1])}, intervals=False)
        {'accuracy': 0.75}
    """
    top = np.array([np.asarray(pair[0], dtype=np.float64) for pair in ratios.values()]).T
    bottom = np.array([np.asarray(pair[1], dtype=np.float64) for pair in ratios.values()]).T
    totals = top.sum(axis=0), bottom.sum(axis=0)
    values = np.divide(*totals, out=np.full(len(ratios), np.nan), where=totals[1] != 0).tolist()
    if not intervals:
        return dict(zip(ratios, values, strict=True))
    finite = np.isfinite(top).all(0) & np.isfinite(bottom).all(0)
    if not (0.0 < confidence < 1.0 and finite.all()):  # else the interval is NaN
        found = [name for name, is_finite in zip(ratios, finite, strict=True) if not is_finite]
        raise DataError(f"expected finite values and a confidence in (0, 1), got {confidence} and NaN in {found}")
    result: dict[str, float] = {}
    for name, value, low, high in zip(ratios, values, *_intervals(top, bottom, clusters, confidence), strict=True):
        result |= {name: value, f"{name}_low": float(low), f"{name}_high": float(high)}
    return result


def _intervals(
    top: NDArray[np.float64], bottom: NDArray[np.float64], clusters: Sequence[str] | None, confidence: float
) -> NDArray[np.float64]:
    """Return lower and upper limits of K ratios of the sums of `[N, K]`; NaN for fewer than two clusters."""
    # Rows of 0 or 1 tell no more than their number.
    most = np.where((top % 1 == 0).all(0), (bottom > 0).sum(0), np.inf)
    is_share = [bool(((n >= 0) & (n <= d)).all()) for n, d in zip(top.T, bottom.T, strict=True)]
    if clusters is not None:
        top, bottom = sums_by_cluster(top, clusters), sums_by_cluster(bottom, clusters)
    counted = (bottom > 0).sum(axis=0)
    limits = np.full((2, top.shape[1]), np.nan)
    for column in np.flatnonzero(counted > 1).tolist():
        total, units = bottom[:, column].sum(), int(counted[column])
        ratio = float(top[:, column].sum() / total)
        squares = ((top[:, column] - ratio * bottom[:, column]) ** 2).sum() / total**2
        variance = squares * units / (units - 1)
        if squares < 1e-24:  # all clusters have the same ratio; sums of scores such as 0.3 are rounded
            variance = 0.0
        quantile = float(stdtrit(units - 1, 0.5 + confidence / 2.0))
        if is_share[column]:
            trials = min(ratio * (1.0 - ratio) / variance, float(most[column])) if variance else float(units)
            limits[:, column] = _wilson_interval(ratio, trials, quantile)
        else:
            limits[:, column] = ratio - quantile * variance**0.5, ratio + quantile * variance**0.5
    return limits


def _columns(values: Any) -> list[Any]:
    """Return an array `[N, P]` as P columns, and values `[N]` as one."""
    is_matrix = len(getattr(values, "shape", ())) == 2
    return [values[:, number] for number in range(values.shape[1])] if is_matrix else [values]


def _counts(values: NDArray[np.bool_], among: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return for every row the number of its pairs with a property, and the number of those that count, `[N]` each."""
    return (values & among).sum(1), among.sum(1)


def _of_pairs(name: str, values: Any, partner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return values of existing partners in the form of a mask `[N, P]`, False elsewhere; other values are ignored."""
    columns = [_row_values(column, name) for column in _columns(values)]
    if [len(column) for column in columns] != [len(partner)] * partner.shape[1]:
        found = f"{[len(column) for column in columns]} values"
        raise DataError(f"{name}: expected {partner.shape[1]} partners for each of {len(partner)} rows, got {found}")
    held = np.zeros_like(partner)
    for number, items in enumerate(columns):
        rows = partner[:, number].nonzero()[0].tolist()
        names = [f"row {row}" for row in rows]
        held[rows, number] = as_correct([items[row] for row in rows], name, names.__getitem__)
    return held


def _row_values(values: Any, name: str) -> list[Any]:
    """Return one value per row as a list."""
    if isinstance(values, (Mapping, Set)):  # they would be read in any order
        raise DataError(f"{name}: expected a list, an array or a tensor, got a {type(values).__name__}")
    # `tolist` copies a tensor from its device in one transfer.
    return values.tolist() if hasattr(values, "tolist") else list(values)


def require_clusters(clusters: Sequence[Any]) -> None:
    """Refuse rows without the id of their cluster."""
    if missing := [row for row, name in enumerate(clusters) if name is None or name != name]:
        raise DataError(f"clusters: expected an id in every row, got {clusters[missing[0]]} in row {missing[0]}")


def sums_by_cluster(sums: NDArray[np.float64], clusters: Sequence[Any]) -> NDArray[np.float64]:
    """Sum the rows of each cluster, `[N, K]` -> `[clusters, K]`, by ascending name of the cluster."""
    require_clusters(clusters)
    _, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    return np.stack([np.bincount(index, weights=column) for column in sums.T], axis=1)


def _wilson_interval(share: float, trials: float, quantile: float) -> tuple[float, float]:
    """Return the score interval of a share: the p with `|share - p| <= quantile * sqrt(p (1 - p) / trials)`."""
    center = share + quantile**2 / (2 * trials)
    half = quantile * (share * (1.0 - share) / trials + (quantile / (2 * trials)) ** 2) ** 0.5
    low, high = ((center + sign * half) / (1.0 + quantile**2 / trials) for sign in (-1, 1))
    # Exact at the ends, where rounding would put the share itself outside.
    return (0.0 if share == 0.0 else low), (1.0 if share == 1.0 else high)
