"""Dialogue states as metrics accept them, with or without ids.

A state is one of
    {"hotel-area": ["east"], "hotel-stars": "4"}                     slot -> values, or one value
    {"hotel": {"area": "east"}}                                      domain -> slot -> values
    [{"slot": "hotel-area", "values": ["east"]}]                     as in the rows of a dataset
or the JSON text of one of them. An item is a state, or an object with the state under "state" and an id:
    {"row_id": "MUL0003/4", "state": ...}                            or "id" instead of "row_id"
    {"dialogue_id": "MUL0003", "turn_id": 4, "state": ...}
If a list contains both views of a row, "variant" tells them apart: "original" (the default) or "augmented".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.metrics.json_items import pair_items, parse_item, parse_lines, read_name, read_text, short

State = dict[str, tuple[str, ...]]

VARIANTS = ("original", "augmented")


class Turn(NamedTuple):
    """State of one turn, predicted or gold.

    row_id: None for items without id.
    variant: "original" or "augmented".
    dialogue: id of the dialogue; None for items without id.
    where: position of the item in messages.
    """

    row_id: str | None
    variant: str
    dialogue: str | None
    state: State
    where: str


def read_items(items: Iterable[Any], name: str, ids: Sequence[Any] | None = None) -> list[Turn]:
    """Read items in any accepted shape.

    Args:
        items: Items, see the top of this module.
        name: Name of the items in messages, such as "predictions".
        ids: Row ids, one for each item, if they are not in the items.

    Raises:
        DataError: An item is not a state, or the number of ids differs from the number of items.

    Example:
        >>> read_items([{"row_id": "A/0", "state": {"hotel-area": "east"}}], "predictions")[0].state
        {'hotel-area': ('east',)}
    """
    return [read_item(item, f"{name}[{index}]") for index, item in enumerate(attach_ids(items, ids, name))]


def read_items_file(path: str) -> list[Turn]:
    """Read a file of JSON lines with one item per line.

    Raises:
        DataError: The file cannot be read, or a line is not an item.
    """
    return [read_item(value, where) for where, value in parse_lines(read_text(path), path)]


def attach_ids(items: Iterable[Any], ids: Sequence[Any] | None, name: str) -> list[Any]:
    """Put ids into their items.

    Args:
        items: Items in any accepted shape.
        ids: One id for each item: a row id, or (dialogue, turn) or (dialogue, turn, variant). None: nothing is changed.
        name: Name of the items in messages.

    Raises:
        DataError: The number of ids differs from the number of items, or an id has another shape.
    """
    items = list(items)
    if ids is None:
        return items
    if len(ids) != len(items):
        raise DataError(f"{name}: found {len(ids)} ids for {len(items)} items; give one id for each item")
    return [_with_id(item, row_id, f"{name}[{i}]") for i, (item, row_id) in enumerate(zip(items, ids, strict=True))]


def _with_id(item: Any, row_id: Any, where: str) -> Any:
    item = _parsed(item, where)
    body = dict(item) if _has_wrapper(item) else {"state": item}
    if not isinstance(row_id, list | tuple):
        return body | {"row_id": row_id}
    if len(row_id) not in (2, 3):
        raise DataError(
            f"{where}: an id must be a string, (dialogue, turn) or (dialogue, turn, variant), found {short(row_id)}"
        )
    return body | dict(zip(("dialogue_id", "turn_id", "variant"), row_id, strict=False))


def read_item(item: Any, where: str) -> Turn:
    """Read one item.

    Args:
        item: An item in any accepted shape.
        where: Position of the item, such as "predictions[3]" or "predictions.jsonl:4".

    Raises:
        DataError: The item is not a state, or its id or variant is invalid.
    """
    item = _parsed(item, where)
    if not _has_wrapper(item):
        if isinstance(item, Mapping) and ("row_id" in item or "dialogue_id" in item):
            raise DataError(f"{where}: the key 'state' is missing; found {', '.join(map(repr, item))}")
        return Turn(None, "original", None, read_state(item, where), where)
    row_id, dialogue = read_id(item, where)
    variant = item.get("variant", item.get("view", "original"))
    if variant not in VARIANTS:
        raise DataError(f"{where}: variant must be 'original' or 'augmented', found {short(variant)}")
    return Turn(row_id, variant, dialogue, read_state(item["state"], where), where)


def _has_wrapper(item: Any) -> bool:
    """Tell {"state": <state>} from a bare state that has a slot named "state"."""
    if not isinstance(item, Mapping) or "state" not in item:
        return False
    if any(key in item for key in ("row_id", "dialogue_id", "turn_id")):
        return True
    state = item["state"]
    if isinstance(state, list):
        return all(isinstance(entry, Mapping) for entry in state)
    return isinstance(state, Mapping) or (isinstance(state, str) and state.lstrip()[:1] in ("{", "["))


def read_id(item: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    """Read the ids of the row and of its dialogue from an item; (None, None) if it has none.

    A row id of "MUL0003/4" belongs to the dialogue "MUL0003", unless the item has a "dialogue_id".

    Raises:
        DataError: An id is not a string or an integer, or only one of "dialogue_id" and "turn_id" is given.
    """
    row_id = item.get("row_id", item.get("id"))
    dialogue, turn = item.get("dialogue_id"), item.get("turn_id")
    if row_id is None:
        if dialogue is None and turn is None:
            return None, None
        if dialogue is None or turn is None:
            missing, present = ("dialogue_id", "turn_id") if dialogue is None else ("turn_id", "dialogue_id")
            raise DataError(f"{where}: found {present} without {missing}; an id needs both")
        row_id = f"{read_name(dialogue, 'dialogue_id', where)}/{read_name(turn, 'turn_id', where)}"
    row_id = read_name(row_id, "row_id", where)
    if dialogue is not None:
        return row_id, read_name(dialogue, "dialogue_id", where)
    return row_id, row_id.rpartition("/")[0] or row_id


def read_state(state: Any, where: str) -> State:
    """Read a state in any accepted shape.

    Returns:
        slot -> values.

    Raises:
        DataError: The value is not a state, or a slot is repeated.
    """
    result: State = {}
    for slot, values in _slots(_parsed(state, where), where):
        if slot in result:
            raise DataError(f"{where}: the slot {slot!r} is repeated; put all its values into one list")
        if type(values) is list and len(values) == 1 and type(values[0]) is str:  # fast path for nearly all slots
            result[slot] = (values[0],)
        elif isinstance(values, list | tuple):
            result[slot] = tuple([_value_text(value, slot, where) for value in values])
        else:
            result[slot] = (_value_text(values, slot, where),)
    return result


def _slots(state: Any, where: str) -> Iterator[tuple[str, Any]]:
    entries: Iterable[tuple[Any, Any]]
    if isinstance(state, Mapping):
        entries = state.items()
    elif isinstance(state, list):
        entries = [_entry(entry, where) for entry in state]
    else:
        raise DataError(f"{where}: a state must be an object of slots and values, found {short(state)}")
    for slot, values in entries:
        if type(slot) is not str or not slot:
            raise DataError(f"{where}: a slot must be a name such as 'hotel-area', found {short(slot)}")
        if isinstance(values, Mapping):
            yield from ((f"{slot}-{inner}", inner_values) for inner, inner_values in values.items())
        else:
            yield slot, values


def _entry(entry: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(entry, Mapping) or "slot" not in entry or "values" not in entry:
        if isinstance(entry, Mapping) and "state" in entry:
            raise DataError(f"{where}: found a list of items, starting with {short(entry)}; write one item per line")
        raise DataError(f"{where}: a state as a list needs {{'slot': ..., 'values': [...]}}, found {short(entry)}")
    return entry["slot"], entry["values"]


def _value_text(value: Any, slot: str, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas reads a column of 4 and missing values as 4.0 and NaN
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise DataError(f"{where}: the slot {slot!r} has {short(value)}; use a string or a list of strings")


def _parsed(item: Any, where: str) -> Any:
    if not isinstance(item, str):
        return item
    return parse_item(item, where, f"expected a state as an object, found {short(item)}")


def pair_turns(predictions: Sequence[Turn], references: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Pair predictions with references: by row id and variant if they have ids, else by position.

    Returns:
        (prediction, reference) in the order of the references.

    Raises:
        DataError: Only some items have ids, an id is repeated, an id occurs on one side only, or the numbers of items
            without ids differ.
    """

    def item_id(turn: Turn) -> str | None:
        return None if turn.row_id is None else f"{turn.row_id} ({turn.variant})"

    return pair_items(predictions, references, item_id, "row_id")
