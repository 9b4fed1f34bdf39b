"""Score of a pair, by which a pair report ranks, groups of pairs, and their figures."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dair_hf.data.view_columns import columns_of_views
from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.evaluation.statistics import correctness_metrics
from dair_hf.evaluation.views import PairViews

CM_AND_FLIPS = ("cm", "cm_numerator", "cm_denominator", "both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")
WORST_SHARE = 0.05
STATE = "state"  # column of a belief state: entries with a "slot" and its "values"
MAX_GROUPS = 40  # of a grouping; the smallest ones become one
LENGTH_BINS = 5
OTHERS = "(others)"

# Names of the groups of every pair; a pair may be in several, or in none.
Grouping = list[list[str]]


def _root_difference(original: np.ndarray, augmented: np.ndarray) -> np.ndarray:
    """Return `sqrt(l) - sqrt(l~)`, `[N]`; negative losses count as 0."""
    return np.asarray(np.sqrt(np.maximum(original, 0.0)) - np.sqrt(np.maximum(augmented, 0.0)))


def disagreement(
    original: np.ndarray, augmented: np.ndarray, sums: np.ndarray | float = 0.0, steps: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the score that ranks pairs, `(mean of sqrt(l) - sqrt(l~))^2`, over training and the final model.

    Without training steps it is `R_sq` of the final model. In a hard pair sometimes one view is harder and sometimes
    the other: its score is small although R may be large. In a pair with a wrong label the same view is harder
    in every step, until the model has memorized it. For single samples it is known that statistics of training reveal
    wrong labels better than the final losses do (Pleiss et al., "Identifying Mislabeled Data using the Area
    Under the Margin Ranking", NeurIPS 2020).

    Args:
        original: Losses of the originals by the final model, `[N]`, nats per row.
        augmented: Losses of the partners by the final model, `[N]`.
        sums: Sums of `sqrt(l) - sqrt(l~)` over training steps, `[N]`.
        steps: Numbers of these steps, `[N]`.

    Example:
        >>> disagreement(np.array([4.0, 4.0]), np.array([1.0, 1.0]), np.array([1.0, -1.0]), np.array([1.0, 1.0]))
        array([1., 0.])
    """
    return np.asarray(((_root_difference(original, augmented) + sums) / (1.0 + steps)) ** 2)


def inconsistency(original: np.ndarray, augmented: np.ndarray) -> float:
    """Return `rho = E[R_sq] / E[(l + l~) / 2]`, in [0, 2]; NaN without pairs or losses.

    Example:
        >>> inconsistency(np.array([4.0]), np.array([1.0]))
        0.4
    """
    total = float((original + augmented).sum()) / 2
    return float(disagreement(original, augmented).sum()) / total if total > 0 else float("nan")


def share_of_worst(scores: np.ndarray, share: float = WORST_SHARE) -> float:
    """Return the part of the sum of scores that the largest `share` of them hold.

    Example:
        >>> share_of_worst(np.array([3.0, 1.0, 0.0, 0.0]), 0.25)
        0.75
    """
    ordered, total = np.sort(scores)[::-1], float(scores.sum())
    return float(ordered[: max(1, round(share * len(scores)))].sum()) / total if total > 0 else float("nan")


def losses_by_group(name: str, grouping: Grouping, original: np.ndarray, augmented: np.ndarray) -> dict[str, Any]:
    """Return the mean losses of the pairs of each group."""
    groups = []
    for group, chosen in _members(grouping).items():
        left, right = original[chosen], augmented[chosen]
        groups.append(
            {
                "name": group,
                "pairs": len(chosen),
                "loss_original": float(left.mean()),
                "loss_augmented": float(right.mean()),
                "inconsistency": inconsistency(left, right),
            }
        )
    return {"name": name, "groups": groups}


def correctness_by_group(
    name: str, grouping: Grouping, correct: np.ndarray, same_answer: np.ndarray | None = None
) -> dict[str, Any]:
    """Return CM and flips of the pairs of each group."""
    groups = []
    for group, chosen in _members(grouping).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)  # an undefined CM is shown as such
            metrics = correctness_metrics(
                *correct[chosen].T,
                same_answer=None if same_answer is None else same_answer[chosen],
                intervals=False,
            )
        groups.append({"name": group, "pairs": len(chosen), **{key: metrics[key] for key in CM_AND_FLIPS}})
    return {"name": name, "groups": groups}


def _members(grouping: Grouping) -> dict[str, np.ndarray]:
    """Return the positions of the pairs of each group, in the order in which groups are shown."""
    members: dict[str, list[int]] = {}
    for at, groups in enumerate(grouping):
        for group in groups:
            members.setdefault(group, []).append(at)
    return {group: np.array(members[group]) for group in sorted(members, key=_group_order)}


def groupings_of(
    views: PairViews,
    pairs: tuple[np.ndarray, np.ndarray],
    groups: Sequence[str] | Mapping[str, Sequence[Any]],
    targets: np.ndarray,
    label_name: Callable[[int], str],
) -> dict[str, Grouping]:
    """Return the groupings of pairs: given by the user, by class, by length of the target, by slot that changes.

    All partners of a row share its groups, except for the slots, which depend on what each partner changes.
    """
    found: dict[str, Grouping] = {}
    given = groups if isinstance(groups, Mapping) else {name: views.values(name) for name in groups}
    for name, values in given.items():
        if len(values) != len(views.has_partner):
            raise DataError(f"groups[{name!r}]: expected {len(views.has_partner)} values, one a row, got {len(values)}")
        found[name] = _of_pairs([_names(value) for value in values], pairs)
    found.update(_by_slot(views, pairs))
    labels = views.label_column
    if labels in views.column_names and (targets <= 1).all() and labels not in found:
        if by_class := _by_class(views.values(labels), label_name):
            found["label"] = _of_pairs(by_class, pairs)
    if (targets > 1).any():
        found["target tokens"] = _of_pairs(_by_length(targets), pairs)
    return found


def _of_pairs(of_rows: Grouping, pairs: tuple[np.ndarray, np.ndarray]) -> Grouping:
    limited = _limited(of_rows)
    return [limited[row] for row in pairs[0].tolist()]


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, (list, tuple, set)):
        return sorted({str(item) for item in value})
    return [str(value.item() if isinstance(value, (np.generic, torch.Tensor)) else value)]


def _by_class(labels: Sequence[Any], label_name: Callable[[int], str]) -> Grouping | None:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(np.unique(array)) > MAX_GROUPS:
        return None
    if not np.isfinite(array).all() or (array != np.round(array)).any():
        return None
    return [[label_name(int(label))] for label in array]


def _by_length(targets: np.ndarray) -> Grouping:
    """Group rows by their number of target tokens, in groups of similar size."""
    inner = np.quantile(targets, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1], method="lower")
    uppers = np.unique([*inner, targets.max()])
    numbers = np.searchsorted(uppers, targets)
    names = []
    for number, upper in enumerate(uppers):
        low = targets[numbers == number].min() if (numbers == number).any() else upper
        names.append(f"{low}" if low == upper else f"{low} to {upper}")
    return [[names[number]] for number in numbers]


def _by_slot(views: PairViews, pairs: tuple[np.ndarray, np.ndarray]) -> dict[str, Grouping]:
    """Group pairs with belief states by the slots whose values differ between the views."""
    columns = columns_of_views(STATE, views.column_names)
    if 0 not in columns or len(columns) == 1:
        return {}
    states = {view: views.values(name) for view, name in columns.items()}
    first = next((entry for state in states[0] if state for entry in state), None)
    if not isinstance(first, Mapping) or not {"slot", "values"} <= set(first):
        return {}

    def changed(row: int, partner: int) -> list[str]:
        if partner not in states or states[partner][row] is None:
            return []
        a, b = ({e["slot"]: e["values"] for e in states[view][row] or ()} for view in (0, partner))
        return sorted(slot for slot in {**a, **b} if a.get(slot) != b.get(slot))

    slots = [changed(row, partner) for row, partner in zip(*(numbers.tolist() for numbers in pairs), strict=True)]
    return {"slot that changes": _limited(slots)}


def _limited(grouping: Grouping) -> Grouping:
    """Join the smallest groups if there are too many."""
    counts = Counter(name for names in grouping for name in names)
    if len(counts) <= MAX_GROUPS:
        return grouping
    kept = {name for name, _ in counts.most_common(MAX_GROUPS - 1)}
    return [sorted({name if name in kept else OTHERS for name in names}) for names in grouping]


def _group_order(name: str) -> tuple[int, float, str]:
    """Return a key that sorts names of groups: by their first number if they begin with one, else by name."""
    try:
        return 0, float(name.split(" ")[0]), name
    except ValueError:
        return (2 if name == OTHERS else 1), 0.0, name
