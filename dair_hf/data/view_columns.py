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
    """Return the name of a view: "original", "augmented", "augmented_2", ...

    Example:
        >>> [variant_name(view) for view in range(3)]
        ['original', 'augmented', 'augmented_2']
    """
    return VIEWS[view] if view < 2 else f"augmented_{view}"


def variant_number(name: object) -> int | None:
    """Return the view that has a name, or None if no view has it.

    Example:
        >>> [variant_number(name) for name in ("original", "augmented", "augmented_2", "augmented_1", 2)]
        [0, 1, 2, None, None]
    """
    view, rest = parse_column(f"{name}_") if isinstance(name, str) else (0, "")
    if view:
        return None if rest else view
    return 0 if name == "original" else None


def view_prefix(view: int) -> str:
    """Return the prefix of the columns of a view.

    Example:
        >>> [view_prefix(view) for view in range(3)]
        ['', 'augmented_', 'augmented_2_']
    """
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
    """Return whether a column is that of a partner."""
    return parse_column(name)[0] > 0


def partner_numbers(columns: Iterable[str]) -> list[int]:
    """Return the numbers of the partners that have columns, in increasing order.

    Example:
        >>> partner_numbers(["x", "augmented_3_x", "augmented_x"])
        [1, 3]
    """
    return sorted({parse_column(name)[0] for name in columns} - {0})


def columns_of_views(column: str, columns: Collection[str]) -> dict[int, str]:
    """Return the columns that hold one column of the model: view -> name, in the order of the views.

    Args:
        column: Name in the original view.
        columns: Names of all columns.

    Example:
        >>> columns_of_views("x", ["augmented_2_x", "augmented_y", "x"])
        {0: 'x', 2: 'augmented_2_x'}
    """
    names = {view: view_prefix(view) + column for view in (0, *partner_numbers(columns))}
    return {view: name for view, name in names.items() if name in columns}


def require_unambiguous(columns: Collection[str], where: str) -> None:
    """Refuse columns of originals that begin with a number, if those of their partners could be of another partner."""
    for name in columns:
        # No other name can be misread; this test is run on every row.
        if name[:1].isdigit() and (partner := AUGMENTED_PREFIX + name) in columns:
            view, column = parse_column(partner)
            if view > 1:
                raise DataError(
                    f"{where}: {partner!r} is the name of the column {column!r} of partner {view}, but could belong to "
                    f"the column {name!r}; rename {name!r} so that it does not begin with a number"
                )
