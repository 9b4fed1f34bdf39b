"""Plain text in columns."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[Sequence[object]]) -> list[str]:
    r"""Align the cells of rows: the first column on the left, the others on the right, two spaces apart.

    Args:
        rows: At least one, all with equally many cells.

    Returns:
        One line for each row.

    Example:
        >>> print("\n".join(align([["", "train", "val"], ["rows", 20, 1]])))
              train  val
        rows     20    1
    """
    cells = [list(map(str, row)) for row in rows]
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [
        f"{label:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(row, others, strict=True))
        for label, *row in cells
    ]
