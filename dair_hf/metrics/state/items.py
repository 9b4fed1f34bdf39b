"""Predictions and references as they come: states in any of the accepted shapes, with or without ids.

A state is one of
    {"hotel-area": ["east"], "hotel-stars": "4"}                     slot -> values, or one value
    {"hotel": {"area": "east"}}                                      domain -> slot -> values
    [{"slot": "hotel-area", "values": ["east"]}]                     as in the rows of a dataset
or the JSON text of one of them. An item is a state, or an object that holds one under `state` beside its id:
    {"row_id": "MUL0003/4", "state": ...}                            also "id" for "row_id"
    {"dialogue_id": "MUL0003", "turn_id": 4, "state": ...}
and, where both views are in one list, `"variant": "original"` (the default) or `"augmented"`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import decode_json

State = dict[str, tuple[str, ...]]

VARIANTS = ("original", "augmented")


class Turn(NamedTuple):
    """One state with its id; `row_id` is None where the item had none."""

    row_id: str | None
    variant: str
    dialogue: str | None
    state: State
    where: str


def read_items(items: Iterable[Any], name: str, ids: Sequence[Any] | None = None) -> list[Turn]:
    """Read items in any accepted shape.

    Args:
        items: Items as described at the top of this module.
        name: What they are called in messages, such as "predictions".
        ids: Row ids given apart from the items, one for each.

    Returns:
        One Turn for each item, in the same order.

    Raises:
        DataError: An item that is not a state; ids that are missing for some items, or double.

    Example:
        >>> read_items([{"row_id": "A/0", "state": {"hotel-area": "east"}}], "predictions")[0].state
        {'hotel-area': ('east',)}
    """
    items = list(items)
    if ids is not None:
        if len(ids) != len(items):
            raise DataError(f"{name}: {len(ids)} ids for {len(items)} items; give one id for each")
        items = [with_id(item, row_id) for item, row_id in zip(items, ids, strict=True)]
    turns = [read_item(item, f"{name}[{index}]") for index, item in enumerate(items)]
    check_ids(turns, name)
    return turns


def check_ids(turns: Sequence[Turn], name: str) -> None:
    """Raise DataError unless all turns have an id or none has, and no (id, variant) occurs twice."""
    without = [turn for turn in turns if turn.row_id is None]
    if without and len(without) < len(turns):
        raise DataError(
            f"{name}: {len(without)} of {len(turns)} items have no id, the first at {without[0].where}; "
            "give every item a row_id, or none"
        )
    if without:
        return
    seen: dict[tuple[str | None, str], str] = {}
    for turn in turns:
        key = (turn.row_id, turn.variant)
        if key in seen:
            raise DataError(
                f"{turn.where}: the id {turn.row_id!r} ({turn.variant}) is already at {seen[key]}; ids must be unique"
            )
        seen[key] = turn.where


def with_id(item: Any, row_id: Any) -> Any:
    """Put an id that was given apart beside its item; a sequence (dialogue, turn[, variant]) is taken apart."""
    item = _from_json(item, "item")
    body = dict(item) if _is_wrapped(item) else {"state": item}
    if isinstance(row_id, list | tuple):
        if len(row_id) not in (2, 3):
            raise DataError(
                f"ids: must be a string, or (dialogue, turn) or (dialogue, turn, variant), found {row_id!r}"
            )
        dialogue, turn, *variant = row_id
        body |= {"dialogue_id": dialogue, "turn_id": turn} | ({"variant": variant[0]} if variant else {})
        return body
    return body | {"row_id": row_id}


def read_item(item: Any, where: str) -> Turn:
    """Read one item; `where` is its place in messages, such as "predictions[3]" or "preds.jsonl:4"."""
    item = _from_json(item, where)
    if not _is_wrapped(item):
        if isinstance(item, Mapping) and ("row_id" in item or "dialogue_id" in item):
            raise DataError(f"{where}: the key 'state' is missing; found {', '.join(map(repr, item))}")
        return Turn(None, "original", None, read_state(item, where), where)
    row_id, dialogue = read_id(item, where)
    variant = item.get("variant", item.get("view", "original"))
    if variant not in VARIANTS:
        raise DataError(f"{where}: variant is {_short(variant)}; use 'original' or 'augmented'")
    return Turn(row_id, variant, dialogue, read_state(item["state"], where), where)


def read_state(state: Any, where: str) -> State:
    """Read a state in any accepted shape into slot -> values.

    Raises:
        DataError: Not a state; the message holds `where`, the slot and what was found.
    """
    state = _from_json(state, where)
    entries: Iterable[tuple[Any, Any]]
    if isinstance(state, Mapping):
        entries = state.items()
    elif isinstance(state, list):
        entries = [_read_entry(entry, where) for entry in state]
    else:
        raise DataError(f"{where}: a state must be an object of slot -> values, found {_short(state)}")
    read: State = {}
    for slot, values in entries:
        if type(slot) is not str or not slot:
            raise DataError(f"{where}: a slot must be a name such as 'hotel-area', found {_short(slot)}")
        if type(values) is list and len(values) == 1 and type(values[0]) is str:  # nearly every slot there is
            _refuse_twice(slot, read, where)
            read[slot] = (values[0],)
        elif isinstance(values, Mapping):
            for inner, inner_values in values.items():
                name = f"{slot}-{inner}"
                _refuse_twice(name, read, where)
                read[name] = _read_values(inner_values, name, where)
        else:
            _refuse_twice(slot, read, where)
            read[slot] = _read_values(values, slot, where)
    return read


def _read_entry(entry: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(entry, Mapping) or "slot" not in entry or "values" not in entry:
        if isinstance(entry, Mapping) and "state" in entry:
            raise DataError(f"{where}: holds a list of items, found {_short(entry)}; give one item a line")
        raise DataError(f"{where}: a state list must hold {{'slot': ..., 'values': [...]}}, found {_short(entry)}")
    return entry["slot"], entry["values"]


def _refuse_twice(slot: str, read: State, where: str) -> None:
    if slot in read:
        raise DataError(f"{where}: the slot {slot!r} is given twice; put its values in one list")


def pair_turns(predictions: Sequence[Turn], references: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Bring predictions and references together: by (dialogue, turn, variant) where they have ids, else by position.

    Returns:
        (prediction, reference) in the order of the references.

    Raises:
        DataError: Different ids on the two sides (how many, and examples), ids on one side only, or without ids
            different lengths.
    """
    prediction_ids = bool(predictions) and predictions[0].row_id is not None
    reference_ids = bool(references) and references[0].row_id is not None
    if predictions and references and prediction_ids != reference_ids:
        with_ids, without = ("predictions", "references") if prediction_ids else ("references", "predictions")
        raise DataError(f"{with_ids} have ids and {without} have none; give both a row_id, or neither")
    if not (prediction_ids or reference_ids):
        if len(predictions) != len(references):
            raise DataError(
                f"{len(predictions)} predictions for {len(references)} references; give both a row_id to match by it"
            )
        return list(zip(predictions, references, strict=True))
    by_id = {(turn.row_id, turn.variant): turn for turn in predictions}
    wanted = {(turn.row_id, turn.variant) for turn in references}
    missing = [turn for turn in references if (turn.row_id, turn.variant) not in by_id]
    surplus = [turn for turn in predictions if (turn.row_id, turn.variant) not in wanted]
    if missing or surplus:
        raise DataError(
            f"ids of predictions and references differ: {_count(missing)} without prediction, "
            f"{_count(surplus)} without reference; predict every reference row exactly once "
            f"(see {' and '.join(turns[0].where for turns in (missing, surplus) if turns)})"
        )
    return [(by_id[turn.row_id, turn.variant], turn) for turn in references]


def _count(turns: Sequence[Turn]) -> str:
    shown = [f"{turn.row_id} ({turn.variant})" for turn in turns[:3]]
    return f"{len(turns)} (e.g. {', '.join(shown)})" if turns else "0"


def read_id(item: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    """Read (row_id, dialogue) from `row_id` or `id`, or `dialogue_id` and `turn_id`; (None, None) without any."""
    row_id = item.get("row_id", item.get("id"))
    dialogue = item.get("dialogue_id")
    if dialogue is not None:
        dialogue = _read_name(dialogue, "dialogue_id", where)
        if row_id is None:
            if item.get("turn_id") is None:
                raise DataError(f"{where}: has a dialogue_id but no turn_id; an id needs both")
            row_id = f"{dialogue}/{_read_name(item['turn_id'], 'turn_id', where)}"
    if row_id is None:
        if item.get("turn_id") is not None:
            raise DataError(f"{where}: has a turn_id but no dialogue_id; an id needs both")
        return None, None
    row_id = _read_name(row_id, "id", where)
    return row_id, dialogue if dialogue is not None else row_id.rpartition("/")[0] or row_id


def _read_name(value: Any, key: str, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{where}: the {key} must be a string, found {_short(value)}")
    return str(value)


def _is_wrapped(item: Any) -> bool:
    """Tell an item with its id from a bare state, which may by chance have a slot that is called `state`."""
    if not isinstance(item, Mapping) or "state" not in item:
        return False
    if any(key in item for key in ("row_id", "dialogue_id", "turn_id")):
        return True
    state = item["state"]
    if isinstance(state, list):
        return all(isinstance(entry, Mapping) for entry in state)
    return isinstance(state, Mapping) or (isinstance(state, str) and state.lstrip()[:1] in ("{", "["))


def decode_item(text: str) -> Any:
    """Decode JSON, strictly: a key given twice, NaN and half of a surrogate pair are refused.

    Raises:
        json.JSONDecodeError: Not JSON, or one of these.

    Example:
        >>> decode_item('{"hotel-area": "east", "hotel-area": "west"}')
        Traceback (most recent call last):
        json.decoder.JSONDecodeError: 'hotel-area' is given twice: line 1 column 1 (char 0)
    """
    value = decode_json(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise json.JSONDecodeError("half of a surrogate pair", "", 0) from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return read


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _from_json(item: Any, where: str) -> Any:
    if not isinstance(item, str):
        return item
    try:
        return decode_item(item)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON at column {error.colno} ({error.msg}): {_short(item)}; give a state as an object"
        ) from None


def _read_values(values: Any, slot: Any, where: str) -> tuple[str, ...]:
    if isinstance(values, str):
        return (values,)
    if isinstance(values, list | tuple):
        return tuple([_read_value(value, slot, where) for value in values])
    return (_read_value(values, slot, where),)


def _read_value(value: Any, slot: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a table read by pandas has 4.0 for 4
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise DataError(f"{where}: slot {slot!r} holds {_short(value)}; a value must be a string or a list of strings")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
