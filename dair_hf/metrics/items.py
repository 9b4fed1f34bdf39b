"""Predictions and references as metrics accept them: their ids, and pairs of one prediction and one reference.

An item may name its row by "row_id" (or "id", or "question_id"), or by "dialogue_id" and "turn_id". If a list contains
several views of a row, "variant" tells them apart: "original" (the default), "augmented", "augmented_2" and so on.
"cluster" names the independent unit of an item, for intervals. Without it, the unit is the dialogue: "dialogue_id", or
the row id up to its last slash.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.data.view_columns import variant_name, variant_number
from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.io.pair_files import CLUSTER_KEY


class Item(NamedTuple):
    """Prediction, reference or correctness of one view of a row; `view` 0 is the original, 1 its first partner."""

    value: Any
    where: str  # position in messages
    row_id: str | None = None
    view: int = 0
    dialogue: str | None = None
    cluster: Any = None

    @property
    def name(self) -> str | None:
        """Id of the view; None for an item without id."""
        return None if self.row_id is None else f"{self.row_id} ({variant_name(self.view)})"


def read_item(fields: Mapping[str, Any], value: Any, where: str) -> Item:
    """Return a value with the ids that the fields of its item hold.

    Example:
        >>> read_item({"row_id": "A/0", "variant": "augmented"}, True, "p:1")
        Item(value=True, where='p:1', row_id='A/0', view=1, dialogue='A', cluster=None)
    """
    dialogue, turn = fields.get("dialogue_id"), fields.get("turn_id")
    row_id = next((fields[key] for key in ("question_id", "row_id", "id") if fields.get(key) is not None), None)
    if row_id is None:
        row_id = "/".join(str(part) for part in (dialogue, turn) if part is not None) or None
    if row_id is not None:
        row_id = str(row_id)
        dialogue = row_id.rpartition("/")[0] or row_id if dialogue is None else str(dialogue)
    variant = fields.get("variant", fields.get("view", "original"))
    view = variant_number(variant)
    if view is None:
        raise DataError(f"{where}: variant: expected 'original', 'augmented' or 'augmented_2', got {variant!r:.60}")
    return Item(value, where, row_id, view, dialogue, fields.get(CLUSTER_KEY))


def parse_item(text: str, where: str) -> Any:
    """Parse JSON, and refuse repeated keys; Python would keep the last one."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except ValueError as error:
        raise DataError(f"{where}: expected JSON, got {text!r:.60} ({error})") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f"a key is repeated: {', '.join(key for key, _ in pairs)}")
    return value


def pair_items(predictions: Sequence[Item], references: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Pair predictions with references: by id if an item has one, else by position.

    Returns:
        (prediction, reference) in the order of the references. A reference without a cluster gets its prediction's.
    """
    if not predictions and not references:
        raise DataError("predictions and references: nothing to score, both are empty")
    if all(item.name is None for items in (predictions, references) for item in items):
        if len(predictions) != len(references):
            raise DataError(f"found {len(predictions)} predictions for {len(references)} references without ids")
        pairs = list(zip(predictions, references, strict=True))
    else:
        predicted, expected = by_name(predictions), by_name(references)
        alone = [item for key, item in expected.items() if key not in predicted]
        alone += [item for key, item in predicted.items() if key not in expected]
        if alone:
            first = f"{alone[0].name} at {alone[0].where}"
            raise DataError(f"predictions and references: {len(alone)} ids are on one side only, the first is {first}")
        pairs = [(predicted[key], reference) for key, reference in expected.items()]
    return [(p, r._replace(cluster=p.cluster) if r.cluster is None else r) for p, r in pairs]


def by_name(items: Sequence[Item]) -> dict[str, Item]:
    """Return the items by their names, which must all differ."""
    found: dict[str, Item] = {}
    for item in items:
        key = item.name
        if key is None or key in found:
            first = f", as at {found[key].where}" if key in found else ""
            raise DataError(f"{item.where}: expected an id that no other item has, got {key}{first}")
        found[key] = item
    return found


def join_views(items: Sequence[Item]) -> list[dict[int, int]]:
    """Return for each row the positions of its views: 0 for the original or the number of the partner -> position.

    Example:
        >>> join_views([Item(1, "p:1", "A/0"), Item(1, "p:2", "A/1"), Item(1, "p:3", "A/0", view=1)])
        [{0: 0, 1: 2}, {0: 1}]
    """
    rows: dict[str | None, dict[int, int]] = {}
    for position, item in enumerate(items):
        rows.setdefault(item.row_id, {})[item.view] = position
    incomplete = [row_id for row_id, views in rows.items() if row_id is None or 0 not in views]
    if incomplete:
        raise DataError(f"row_id: expected an original view of every row, got none of the row {incomplete[0]}")
    return list(rows.values())


def units(items: Sequence[Item]) -> list[Any] | None:
    """Return the independent unit of each item: clusters if an item has one, else dialogues; None without either."""
    for values in ([item.cluster for item in items], [item.dialogue for item in items]):
        if any(value is not None for value in values):
            return values
    return None


def warn_of_one_unit(values: Sequence[Any] | None, row_ids: Sequence[str | None]) -> None:
    """Warn that intervals are undefined if all of several rows belong to one unit."""
    if values is not None and len(set(row_ids)) > 1 and len(set(map(str, values))) == 1:
        warnings.warn(
            f"no intervals: all {len(set(row_ids))} rows, such as {row_ids[0]!r}, are in the same cluster, "
            f'{values[0]!r}; give independent rows a "{CLUSTER_KEY}" each, else it is the row id up to its last slash',
            UndefinedMetricWarning,
            stacklevel=4,
        )
