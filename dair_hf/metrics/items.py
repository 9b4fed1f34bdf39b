"""Predictions and references as metrics accept them, with or without ids, and the states in them.

An item may name its row by "row_id" (or "id", or "question_id"), or by "dialogue_id" and "turn_id". If a list contains
several views of a row, "variant" tells them apart: "original" (the default), "augmented", "augmented_2" and so on.
"cluster" names the independent unit of an item, for intervals. The default unit is the dialogue: "dialogue_id", or the
row id up to its last slash.

A state is one of:

    {"hotel-area": ["east"], "hotel-stars": "4"}                     slot -> values, or one value
    {"hotel": {"area": "east"}}                                      domain -> slot -> values
    [{"slot": "hotel-area", "values": ["east"]}]                     as in the rows of a dataset

or the JSON text of one of them. An item is a state, or an object with the state under "state" and ids next to it. The
lines of a file of `DAIRTrainer.evaluate_pairs` are items, too: the state is in "prediction", as belief text, or in
"reference". A "prediction" may also be the JSON or Python text of a state.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from dair_hf.data.view_columns import is_augmented, variant_name, variant_number
from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.io.files import decode_json, decode_utf8, read_bytes
from dair_hf.io.records import CLUSTER_KEY
from dair_hf.metrics.state.belief_text import Belief, read_belief


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
    """Return a value with the ids that the fields of its item hold."""
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
        return decode_json(text, distinct=True)
    except ValueError as error:
        raise DataError(f"{where}: expected JSON, got {text!r:.60} ({error})") from error


def pair_items(predictions: Sequence[Item], references: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Pair predictions with references, in their order: by id if an item has one, else by position.

    A reference without a cluster gets its prediction's.
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


State = dict[str, tuple[str, ...]]

# Kind of items -> key of the state in a file of predictions.
_STATE_KEYS = {"predictions": "prediction", "references": "reference"}
_FENCE = re.compile(r"^\s*```\w*|```\s*$")
_ID_KEYS = ("row_id", "id", "dialogue_id", "turn_id")


def read_turns(items: Iterable[Any], kind: str) -> list[Item]:
    """Read "predictions" or "references" in any accepted shape; the value of each is a `Belief`."""
    return [_read_turn(item, f"{kind}[{index}]", kind) for index, item in enumerate(items)]


def read_turns_file(path: str, kind: str, is_only: bool = True) -> list[Item]:
    """Read a file of JSON lines with one item a line; blank lines are skipped.

    If the file holds both kinds (not `is_only`), its predictions are under `prediction`.
    """
    # str.splitlines would also split at characters that JSON strings may contain.
    lines = enumerate(decode_utf8(read_bytes(path), path).split("\n"), start=1)
    return [_read_turn(line, f"{path}:{number}", kind, is_only) for number, line in lines if line.strip()]


def _read_turn(item: Any, where: str, kind: str, is_only: bool = True) -> Item:
    item = parse_item(item, where) if isinstance(item, str) else item
    key, has_state = _STATE_KEYS[kind], _has_wrapper(item)
    # No schema has slots of the names of ids, or a slot "prediction" or "reference" whose value is text.
    is_line = isinstance(item, Mapping) and (
        has_state
        or (not is_only and key in item)
        or any(name in item for name in _ID_KEYS)
        or any(isinstance(item.get(name), str) for name in _STATE_KEYS.values())
    )
    if not is_only and kind == "predictions" and not (is_line and key in item):
        raise DataError(f"{where}: expected the key 'prediction', since there are no --references")
    if not is_line:
        return Item(Belief.of(read_state(item, where)), where)
    if key not in item and has_state:
        return read_item(item, Belief.of(read_state(item["state"], where)), where)
    if key not in item:
        raise DataError(f"{where}: expected the key 'state', got {', '.join(map(repr, item))}")
    state = item[key]
    parsed = _object_in(state) if isinstance(state, str) else state
    if isinstance(parsed, str):
        belief = read_belief(parsed)
    elif kind == "references" or parsed is state:
        belief = Belief.of(read_state(parsed, where))
    else:
        belief = _read_answer(parsed, where)
    if kind == "references" and not belief.is_well_formed:  # with other predictions it would count as wrong
        raise DataError(
            f"{where}: reference: expected belief text such as 'hotel-area = east ; hotel-stars = 4', got {state!r:.60}"
        )
    return read_item(item, belief, where)


def _read_answer(state: Any, where: str) -> Belief:
    """Read what a model wrote as JSON; what has another form than a state is wrong."""
    try:
        return Belief.of_fields(list(_fields(state, where)))
    except DataError:
        return Belief.of({f"{state}"[:60]: ("unread",)})._replace(is_well_formed=False)


def _object_in(text: str) -> Any:
    """Return the object or list of a text in JSON or as Python writes it, with or without a fence, else the text."""
    bare = _FENCE.sub("", text).strip()
    if bare.startswith(("{", "[")):
        for parse in (functools.partial(json.loads, object_pairs_hook=_object_or_entries), ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                return parse(bare)
    return text


def _object_or_entries(pairs: list[tuple[str, Any]]) -> Any:
    """Return an object, or all entries of a state that repeats a slot; Python would keep the last one."""
    value = dict(pairs)
    return value if len(value) == len(pairs) else [{"slot": slot, "values": values} for slot, values in pairs]


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
    for slot, values in _fields(parse_item(state, where) if isinstance(state, str) else state, where):
        if slot in result:
            raise DataError(f"{where}: the slot {slot!r} is repeated; put all its values into one list")
        result[slot] = values
    return result


def read_values(values: Any, slot: str, where: str) -> tuple[str, ...]:
    """Read the values of a slot: a list, a single one, or None for none."""
    if type(values) is list and len(values) == 1 and type(values[0]) is str:  # fast path for nearly all slots
        return (values[0],)
    if values is None:
        return ()
    values = values if isinstance(values, list | tuple) else [values]
    return tuple([_value_text(value, slot, where) for value in values])


def _fields(state: Any, where: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    entries: list[tuple[Any, Any]]
    try:
        entries = [*state.items()] if isinstance(state, Mapping) else [(e["slot"], e["values"]) for e in state]
        of_partners = [slot for slot, _ in entries if is_augmented(slot)]
    except (TypeError, KeyError) as error:
        raise DataError(f"{where}: expected a state, slots with values, got {state!r:.60}") from error
    if of_partners:  # rows of pairs as predictions and references would be right
        raise DataError(f"{where}: expected a state, got a row of pairs with the column {of_partners[0]!r:.60}")
    for slot, values in entries:
        if isinstance(values, Mapping):
            yield from ((f"{slot}-{key}", read_values(value, f"{slot}-{key}", where)) for key, value in values.items())
        else:
            yield slot, read_values(values, slot, where)


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
