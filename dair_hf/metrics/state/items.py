"""Dialogue states as metrics accept them, with or without ids.

A state is one of:

    {"hotel-area": ["east"], "hotel-stars": "4"}                     slot -> values, or one value
    {"hotel": {"area": "east"}}                                      domain -> slot -> values
    [{"slot": "hotel-area", "values": ["east"]}]                     as in the rows of a dataset

or the JSON text of one of them. An item is a state, or an object with the state under "state" and ids as in
`dair_hf.metrics.items`:

    {"row_id": "MUL0003/4", "state": ...}
    {"dialogue_id": "MUL0003", "turn_id": 4, "state": ...}

The lines of a file of `DAIRTrainer.evaluate_pairs` are items, too: the state is in "prediction", as belief text, or in
"reference".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from dair_hf.data.view_columns import is_augmented
from dair_hf.errors import DataError
from dair_hf.io.files import decode_utf8, read_bytes
from dair_hf.metrics.items import Item, parse_item, read_item
from dair_hf.metrics.state.belief_text import Belief, read_belief

State = dict[str, tuple[str, ...]]

# Kind of items -> key of the state in a file of predictions.
_STATE_KEYS = {"predictions": "prediction", "references": "reference"}
_ID_KEYS = ("row_id", "id", "dialogue_id", "turn_id")


def read_turns(items: Iterable[Any], kind: str) -> list[Item]:
    """Read "predictions" or "references" in any accepted shape; the value of each is a `Belief`.

    Example:
        >>> read_turns([{"row_id": "A/0", "state": {"hotel-area": "east"}}], "predictions")[0].value.state
        {'hotel-area': ('east',)}
    """
    return [_read_turn(item, f"{kind}[{index}]", kind) for index, item in enumerate(items)]


def read_turns_file(path: str, kind: str) -> list[Item]:
    """Read a file of JSON lines with one item a line; blank lines are skipped."""
    # str.splitlines would also split at characters that JSON strings may contain.
    lines = enumerate(decode_utf8(read_bytes(path), path).split("\n"), start=1)
    return [_read_turn(line, f"{path}:{number}", kind) for number, line in lines if line.strip()]


def _read_turn(item: Any, where: str, kind: str) -> Item:
    item = parse_item(item, where) if isinstance(item, str) else item
    if _has_wrapper(item):
        return read_item(item, Belief.of(read_state(item["state"], where)), where)
    # No schema has slots of the names of ids, or a slot "prediction" or "reference" whose value is text.
    is_line = isinstance(item, Mapping) and (
        any(name in item for name in _ID_KEYS) or any(isinstance(item.get(key), str) for key in _STATE_KEYS.values())
    )
    if not is_line:
        return Item(Belief.of(read_state(item, where)), where)
    if _STATE_KEYS[kind] not in item:
        raise DataError(f"{where}: expected the key 'state', got {', '.join(map(repr, item))}")
    state = item[_STATE_KEYS[kind]]
    belief = read_belief(state) if isinstance(state, str) else Belief.of(read_state(state, where))
    if kind == "references" and not belief.is_well_formed:  # with other predictions it would count as wrong
        raise DataError(
            f"{where}: reference: expected belief text such as 'hotel-area = east ; hotel-stars = 4', got {state!r:.60}"
        )
    return read_item(item, belief, where)


def _has_wrapper(item: Any) -> bool:
    """Tell {"state": <state>} from a bare state that has a slot named "state"."""
    if not isinstance(item, Mapping) or "state" not in item:
        return False
    state = item["state"]
    if isinstance(state, list):
        is_state = all(isinstance(entry, Mapping) for entry in state)
    else:
        is_state = isinstance(state, Mapping) or (isinstance(state, str) and state.lstrip()[:1] in ("{", "["))
    return is_state or any(key in item for key in _ID_KEYS)


def read_state(state: Any, where: str) -> State:
    """Read a state in any accepted shape."""
    result: State = {}
    for slot, values in _slots(parse_item(state, where) if isinstance(state, str) else state, where):
        if slot in result:
            raise DataError(f"{where}: the slot {slot!r} is repeated; put all its values into one list")
        if is_augmented(slot):  # rows of pairs as predictions and references would be right
            raise DataError(f"{where}: expected a state, got a row of pairs with the column {slot!r:.60}")
        if type(values) is list and len(values) == 1 and type(values[0]) is str:  # fast path for nearly all slots
            result[slot] = (values[0],)
        elif isinstance(values, list | tuple):
            result[slot] = tuple([_value_text(value, slot, where) for value in values])
        else:
            result[slot] = (_value_text(values, slot, where),)
    return result


def _slots(state: Any, where: str) -> Iterator[tuple[str, Any]]:
    entries: list[tuple[str, Any]]
    try:
        entries = [*state.items()] if isinstance(state, Mapping) else [(e["slot"], e["values"]) for e in state]
    except (TypeError, KeyError) as error:
        raise DataError(f"{where}: expected a state, slots with values, got {state!r:.60}") from error
    for slot, values in entries:
        if isinstance(values, Mapping):
            yield from ((f"{slot}-{inner}", inner_values) for inner, inner_values in values.items())
        else:
            yield slot, values


def _value_text(value: Any, slot: str, where: str) -> str:
    if isinstance(value, str):
        return value
    number: Any = None if isinstance(value, bool) else value
    if isinstance(number, Integral):
        return str(int(number))
    # pandas reads a column of 4 and missing values as 4.0 and NaN. The numbers of numpy are Integral and Real, too.
    if isinstance(number, Real) and math.isfinite(float(number)):
        return str(int(float(number))) if float(number).is_integer() else str(number)
    raise DataError(f"{where}: {slot}: expected a string or a list of strings, got {value!r:.60}")
