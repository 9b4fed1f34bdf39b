"""Groups of pairs, by which a pair report breaks down losses and correctness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dair_hf.data.view_columns import columns_of_views
from dair_hf.errors import DataError
from dair_hf.evaluation.views import PairViews

STATE = "state"  # column of a belief state: entries with a "slot" and its "values"
MAX_GROUPS = 40  # of a grouping; the smallest ones become one
LENGTH_BINS = 5
OTHERS = "(others)"

# Names of the groups of every pair; a pair may be in several, or in none.
Grouping = list[list[str]]


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


def group_order(name: str) -> tuple[int, float, str]:
    """Return a key that sorts names of groups: by their first number if they begin with one, else by name."""
    try:
        return 0, float(name.split(" ")[0]), name
    except ValueError:
        return (2 if name == OTHERS else 1), 0.0, name
