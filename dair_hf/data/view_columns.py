"""Names of the columns of views: `X` of the original, `augmented_X` of its partner, `augmented_2_X` of a second one.

View 0 is the original, view p its partner number p. The first partner has no number in its names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable

from dair_hf.errors import DataError

VIEWS = ("original", "augmented")  # of a row with one partner
AUGMENTED_PREFIX = "augmented_"  # of the first partner
VIEW_PREFIXES = ("", AUGMENTED_PREFIX)  # of the columns of `VIEWS`
_PARTNER_COLUMN = re.compile(r"augmented_(?:([2-9]|[1-9][0-9]+)_)?(.*)", re.DOTALL)


def variant_name(view: int) -> str:
    """Return the name of a view: "original", "augmented", "augmented_2", ..."""
    return VIEWS[view] if view < 2 else f"augmented_{view}"


def variant_number(name: object) -> int | None:
    """Return the view that has a name, or None if no view has it."""
    view, rest = parse_column(f"{name}_") if isinstance(name, str) else (0, "")
    if view:
        return None if rest else view
    return 0 if name == "original" else None


def view_prefix(view: int) -> str:
    """Return the prefix of the columns of a view: "", "augmented_", "augmented_2_", ..."""
    return "" if view == 0 else f"{variant_name(view)}_"


@functools.lru_cache(maxsize=4096)
def parse_column(name: str) -> tuple[int, str]:
    """Return the view of a column, and its name without the prefix of the view.

    Example:
        >>> parse_column("input_ids"), parse_column("augmented_input_ids"), parse_column("augmented_12_input_ids")
        ((0, 'input_ids'), (1, 'input_ids'), (12, 'input_ids'))
        >>> parse_column("augmented_2d_boxes"), parse_column("augmented_1_boxes")  # columns of the first partner
        ((1, '2d_boxes'), (1, '1_boxes'))
    """
    match = _PARTNER_COLUMN.fullmatch(name)
    return (0, name) if match is None else (int(match[1] or 1), match[2])


def is_augmented(name: str) -> bool:
    """Return whether a column belongs to a partner."""
    return parse_column(name)[0] > 0


def partner_numbers(columns: Iterable[str]) -> list[int]:
    """Return the numbers of the partners that have columns, in increasing order."""
    return sorted({parse_column(name)[0] for name in columns} - {0})


def columns_of_views(column: str, columns: Collection[str]) -> dict[int, str]:
    """Return the columns that hold one column of the model: view -> name, in the order of the views."""
    names = {view: view_prefix(view) + column for view in (0, *partner_numbers(columns))}
    return {view: name for view, name in names.items() if name in columns}


def columns_by_view(columns: Iterable[str], where: object) -> dict[int, dict[str, str]]:
    """Return view -> {column of the model: name in the data}, the originals first.

    Partners must have columns of the originals. Otherwise a label under another name would be lost, and the partner
    would silently have the label of its original.
    """
    views: dict[int, dict[str, str]] = {0: {}}
    for name in columns:
        view, column = parse_column(name)
        views.setdefault(view, {})[column] = name
    if orphans := {name for names in views.values() for column, name in names.items() if column not in views[0]}:
        found = f"{sorted(orphans)} without a column of the originals"
        raise DataError(f"{where}: expected columns of partners named like columns of the originals, got {found}")
    return views
