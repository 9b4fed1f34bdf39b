"""Statistics of correctness: accuracy, consistency metric, flips, intervals, and tests between models.

Metrics are ratios of two sums over rows. A ratio with a denominator of 0 is NaN, and `null` in JSON files.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
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
        DataError: A value is anything else, or `values` is no sequence of one value per row.

    Example:
        >>> as_correct([True, 0, 1.0, np.float32(0)])
        array([ True, False,  True, False])
    """
    items = _row_values(values, name)
    if isinstance(items, np.ndarray):
        return items
    correct = np.zeros(len(items), dtype=np.bool_)
    for row, item in enumerate(items):
        value = item.item() if getattr(item, "shape", None) == () else item
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            shown = reprlib.repr(item)  # a row of logits would fill the screen
            raise DataError(f"{name}: {row_name(row)} holds {shown}; correctness is True or False, or exactly 0 or 1")
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

    Where partners are no renamed copies but, say, revised texts, neither view comes first, and `reverse_cm` asks in the
    other direction: `P(H(z) = 1 | H(z~) = 1)`, with the same numerator.

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
        confidence: Coverage of the intervals, in (0, 1); `ratio_intervals` says how they are made.

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
        DataError: Lengths or numbers of partners differ, a value is neither 0 nor 1, or a setting is out of range.

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
    partner = _partners(has_partner, augmented_correct, len(original))
    augmented = np.repeat(original[:, None], partner.shape[1], axis=1)
    augmented[partner] = _correct_of_pairs("augmented_correct", augmented_correct, partner)
    first = original[:, None]
    # Of every row one view, whether it has partners or not.
    views = partner.copy()
    views[~partner.any(1), 0] = True
    same = np.zeros_like(partner)
    if same_answer is not None:
        same[partner] = _correct_of_pairs("same_answer", same_answer, partner)
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
        flipped = np.zeros_like(partner)
        flipped[partner] = _correct_of_pairs("answer_changed", answer_changed, partner)
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
    """Compute ratios of sums over the same rows, with the intervals of `ratio_intervals`.

    Args:
        ratios: Name -> (numerators `[N]`, denominators `[N]`); the ratio is that of their sums.
        clusters: `[N]` str, independent units such as dialogue ids; None: single rows.
        intervals: Whether to compute intervals.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        `<name>` of every ratio; with intervals also `<name>_low` and `<name>_high`.

    Raises:
        DataError: As `ratio_intervals`.

    Example:
        >>> ratios_with_intervals({"accuracy": ([1, 0, 1, 1], [1, 1, 1, 1])}, intervals=False)
        {'accuracy': 0.75}
    """
    numerators = np.array([np.asarray(pair[0], dtype=np.float64) for pair in ratios.values()]).T
    denominators = np.array([np.asarray(pair[1], dtype=np.float64) for pair in ratios.values()]).T
    values = _divide(numerators.sum(axis=0), denominators.sum(axis=0)).tolist()
    if not intervals:
        return dict(zip(ratios, values, strict=True))
    limits = ratio_intervals(numerators, denominators, clusters, confidence=confidence)
    result: dict[str, float] = {}
    for name, value, low, high in zip(ratios, values, *limits, strict=True):
        result |= {name: value, f"{name}_low": float(low), f"{name}_high": float(high)}
    return result


def ratio_intervals(
    numerators: ArrayLike,
    denominators: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute confidence intervals of K ratios of sums over clusters that are independent of each other.

    Turns of a dialogue are correlated, so rows are summed within their cluster. With n_c and d_c the sums of the C
    clusters whose d_c is above 0, the ratio is `q = sum n_c / sum d_c`, and its variance (linearized, as in survey
    sampling; Cochran 1977, section 6.3)

        v = C / (C - 1) * sum (n_c - q d_c)^2 / (sum d_c)^2

    A share (0 <= numerator <= denominator in every row) has as much information as n = q (1 - q) / v independent rows.
    Its interval is the score interval of Wilson (1927) for n trials, with the t quantile of C - 1 degrees of freedom
    (Franco, Little, Louis and Slud 2019, Journal of Survey Statistics and Methodology 7, 334-364). It never leaves
    [0, 1], and holds for few rows and for shares near 0 and 1, where percentiles of a bootstrap are too narrow. n is at
    most the number of rows whose denominator is above 0; it is C if all clusters have the same ratio, such as 0 of 14.
    Other ratios, such as a difference of accuracies, have `q +- t sqrt(v)`.
    """
    if not 0.0 < confidence < 1.0:
        raise DataError(f"confidence: must lie between 0 and 1, found {confidence}; 0.95 is usual")
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if top.ndim != 2 or top.shape != bottom.shape:
        raise DataError(f"numerators {top.shape} and denominators {bottom.shape}: both must have one shape [N, K]")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all()):
        raise DataError("numerators and denominators: a value is NaN or infinite; leave out rows without a score")
    counted_rows: NDArray[np.int64] = (bottom > 0).sum(axis=0)
    is_share = [bool(((n >= 0) & (n <= d)).all()) for n, d in zip(top.T, bottom.T, strict=True)]
    if clusters is not None:
        top, bottom = sums_by_cluster(top, clusters), sums_by_cluster(bottom, clusters)
    counted = (bottom > 0).sum(axis=0)
    low, high = np.full((2, top.shape[1]), np.nan)
    for column in np.flatnonzero(counted > 1).tolist():
        total, units = bottom[:, column].sum(), int(counted[column])
        ratio = float(top[:, column].sum() / total)
        squares = ((top[:, column] - ratio * bottom[:, column]) ** 2).sum() / total**2
        variance = squares * units / (units - 1)
        if squares < 1e-24:  # all clusters have the same ratio; sums of scores such as 0.3 are rounded
            variance = 0.0
        quantile = float(stdtrit(units - 1, 0.5 + confidence / 2.0))
        if is_share[column]:
            trials = min(ratio * (1.0 - ratio) / variance, float(counted_rows[column])) if variance else float(units)
            low[column], high[column] = _wilson_interval(ratio, trials, quantile)
        else:
            low[column], high[column] = ratio - quantile * variance**0.5, ratio + quantile * variance**0.5
    return low, high


def mcnemar(a_correct: Any, b_correct: Any) -> dict[str, float | int]:
    """Compare the accuracy of two models on the same rows by the exact two-sided McNemar test.

    Let b and c be the numbers of rows on which only one of the models is correct, and n = b + c. If the models are
    equally good, both numbers are Binomial(n, 1/2), so that p = min(1, 2 * sum_{i <= min(b, c)} C(n, i) / 2^n).

    The test assumes independent rows. Turns of a dialogue are correlated, so check the clustered intervals as well if
    the p-value is near the threshold.

    Args:
        a_correct: `[N]` bool, correctness of model a.
        b_correct: `[N]` bool, correctness of model b on the same rows in the same order.

    Returns:
        `only_a` and `only_b` (rows on which only that model is correct), `difference` (accuracy of a minus accuracy of
        b; NaN without rows), `p_value` (1.0 if the models never differ).

    Raises:
        DataError: Lengths differ or a value is neither 0 nor 1.

    Example:
        >>> mcnemar([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1])
        {'only_a': 5, 'only_b': 1, 'difference': 0.5714285714285714, 'p_value': 0.21875}
    """
    a, b = as_correct(a_correct, "a_correct"), as_correct(b_correct, "b_correct")
    _require_length("b_correct", len(b), len(a))
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


def _partners(has_partner: Any, augmented_correct: Any, rows: int) -> NDArray[np.bool_]:
    """Return which partners exist, `[N, P]`."""
    width = _width(augmented_correct)
    if has_partner is None:
        return np.ones((rows, width), dtype=np.bool_)
    columns = [as_correct(column, "has_partner") for column in _columns(has_partner)]
    for column in columns:
        _require_length("has_partner", len(column), rows)
    _require_width("has_partner", len(columns), width)
    return np.stack(columns, axis=1)


def _width(values: Any) -> int:
    shape = tuple(getattr(values, "shape", ()))
    return shape[1] if len(shape) == 2 else 1


def _columns(values: Any) -> list[Any]:
    """Return an array `[N, P]` as P columns, and values `[N]` as one."""
    is_matrix = len(getattr(values, "shape", ())) == 2
    return [values[:, number] for number in range(_width(values))] if is_matrix else [values]


def _counts(values: NDArray[np.bool_], among: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return for every row the number of its pairs with a property, and the number of those that count, `[N]` each."""
    return (values & among).sum(1), among.sum(1)


def _correct_of_pairs(name: str, values: Any, partner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the correctness of existing partners, in the order of a mask `[N, P]`; other values are not checked."""
    columns = _columns(values)
    _require_width(name, len(columns), partner.shape[1])
    correct = np.zeros_like(partner)
    for number, column in enumerate(columns):
        items, rows = _row_values(column, name), partner[:, number].nonzero()[0].tolist()
        _require_length(name, len(items), len(partner))
        names = [f"row {row}" for row in rows]
        correct[rows, number] = as_correct([items[row] for row in rows], name, names.__getitem__)
    return correct[partner]


def _require_width(name: str, width: int, partners: int) -> None:
    if width != partners:
        raise DataError(f"{name}: {width} partners per row, but augmented_correct has {partners}; give [N, P] for both")


def _row_values(values: Any, name: str) -> NDArray[np.bool_] | list[Any]:
    """Return one value per row as a list, or unchanged if they are an array of bool."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise DataError(
            f"{name}: found a {type(values).__name__}; give a list, an array or a tensor of one value per row"
        )
    if len(shape := tuple(getattr(values, "shape", (0,)))) != 1:
        raise DataError(f"{name}: found an array of shape {shape}; give one value per row, [N]")
    if isinstance(values, np.ndarray) and values.dtype == np.bool_:
        return values
    # `tolist` copies a tensor from its device in one transfer.
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _require_length(name: str, length: int, rows: int) -> None:
    if length != rows:
        raise DataError(f"{name}: {length} values for {rows} rows; give one value for every row")


def sums_by_cluster(sums: NDArray[np.float64], clusters: Sequence[Any]) -> NDArray[np.float64]:
    """Sum the rows of each cluster, `[N, K]` -> `[clusters, K]`, by ascending name of the cluster."""
    if len(clusters) != len(sums):
        raise DataError(f"clusters: {len(clusters)} for {len(sums)} rows; give one cluster id for every row")
    for row, name in enumerate(clusters):
        if name is None or name != name:
            raise DataError(f"clusters: row {row} has none ({name}); give every row an id, or no clusters at all")
    _, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    columns = [np.bincount(index, weights=column) for column in sums.T]
    return np.stack(columns, axis=1)


def _wilson_interval(share: float, trials: float, quantile: float) -> tuple[float, float]:
    """Return the score interval of a share: the p with `|share - p| <= quantile * sqrt(p (1 - p) / trials)`."""
    center = share + quantile**2 / (2 * trials)
    half = quantile * (share * (1.0 - share) / trials + (quantile / (2 * trials)) ** 2) ** 0.5
    low, high = ((center + sign * half) / (1.0 + quantile**2 / trials) for sign in (-1, 1))
    # Exact at the ends, where rounding would put the share itself outside.
    return (0.0 if share == 0.0 else low), (1.0 if share == 1.0 else high)


def _divide(top: NDArray[np.float64], bottom: NDArray[np.float64]) -> NDArray[np.float64]:
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom != 0)
    return result
