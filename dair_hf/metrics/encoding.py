"""Items as strings: `evaluate` stores inputs of one fixed type, so every item travels as its JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics.state.items import with_id


def encode_items(items: Iterable[Any] | None, name: str, ids: Sequence[Any] | None = None) -> list[str] | None:
    """Encode items for `evaluate`; text passes through, so encoding twice does no harm.

    Args:
        items: Items in any shape of `dair_hf.metrics.state.items`, or None.
        name: What they are called in messages.
        ids: Ids given apart, one for each item.

    Returns:
        JSON texts, or None for None.

    Raises:
        DataError: Ids and items differ in number, or an item cannot be written as JSON.

    Example:
        >>> encode_items([{"hotel-area": ["east"]}], "predictions")
        ['{"hotel-area": ["east"]}']
    """
    if items is None:
        return None
    items = list(items)
    if ids is not None:
        if len(ids) != len(items):
            raise DataError(f"{name}: {len(ids)} ids for {len(items)} items; give one id for each")
        items = [with_id(item, row_id) for item, row_id in zip(items, ids, strict=True)]
    return [encode_item(item, f"{name}[{index}]") for index, item in enumerate(items)]


def encode_item(item: Any, where: str) -> str:
    """Encode one item; see `encode_items`."""
    if isinstance(item, str):
        return item
    try:
        return json.dumps(item)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be written as JSON ({error}); give strings and lists of strings") from None
