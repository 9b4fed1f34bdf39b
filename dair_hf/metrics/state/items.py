"""Dialogue states as metrics accept them, with or without ids.

A state is one of:

    {"hotel-area": ["east"], "hotel-stars": "4"}                     slot -> values, or one value
    {"hotel": {"area": "east"}}                                      domain -> slot -> values
    [{"slot": "hotel-area", "values": ["east"]}]                     as in the rows of a dataset

or the JSON text of one of them. An item is a state, or an object with the state under "state" and an id:

    {"row_id": "MUL0003/4", "state": ...}                            or "id" instead of "row_id"
    {"dialogue_id": "MUL0003", "turn_id": 4, "state": ...}

If a list contains several views of a row, "variant" tells them apart: "original" (the default), "augmented", and for
further partners "augmented_2" and so on.

"cluster" names the independent unit of an item, for intervals. Without it that is the dialogue: "dialogue_id", or the
row id up to its last slash.

The lines of a file of `DAIRTrainer.evaluate_pairs` are items, too: the state is in "prediction", as belief text, or in
"reference".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from dair_hf.data.view_columns import is_augmented, variant_number
from dair_hf.errors import BeliefTextWarning, DataError, UndefinedMetricWarning
from dair_hf.io.pair_files import CLUSTER_KEY
from dair_hf.metrics.json_items import pair_items, parse_item, parse_lines, read_name, read_text, short
from dair_hf.metrics.state.belief_text import Belief, read_belief

State = dict[str, tuple[str, ...]]

# Items -> key of the state in a file of predictions.
_STATE_KEYS = {"predictions": "prediction", "references": "reference"}
UNREAD_SHARE = 0.9  # predictions of which more cannot be read are refused
_ID_KEYS = ("row_id", "id", "dialogue_id", "turn_id")


class Turn(NamedTuple):
    """State of one turn, predicted or gold.

    row_id: None for items without id.
    variant: "original", "augmented", "augmented_2", ...
    dialogue: id of the dialogue; None for items without id.
    belief: the state, and what its text says besides.
    where: position of the item in messages.
    cluster: independent unit that the item names; None: it names none.
    """

    row_id: str | None
    variant: str
    dialogue: str | None
    belief: Belief
    where: str
    cluster: str | None = None

    @property
    def unit(self) -> str | None:
        """Independent unit: the cluster, else the dialogue; None for items without either."""
        return self.dialogue if self.cluster is None else self.cluster

    @property
    def state(self) -> Mapping[str, Sequence[str]]:
        """Slot -> values."""
        return self.belief.state


def read_items(items: Iterable[Any], name: str, ids: Sequence[Any] | None = None) -> list[Turn]:
    """Read items in any accepted shape.

    Args:
        items: Items, see the top of this module.
        name: "predictions" or "references", also in messages.
        ids: Row ids, one for each item, if they are not in the items.

    Raises:
        DataError: An item is not a state, or the number of ids differs from the number of items.

    Example:
        >>> read_items([{"row_id": "A/0", "state": {"hotel-area": "east"}}], "predictions")[0].state
        {'hotel-area': ('east',)}
    """
    key = _STATE_KEYS.get(name)
    return [read_item(item, f"{name}[{index}]", key) for index, item in enumerate(attach_ids(items, ids, name))]


def read_items_file(path: str, name: str = "predictions") -> list[Turn]:
    """Read a file of JSON lines with one item per line."""
    key = _STATE_KEYS.get(name)
    return [read_item(value, where, key) for where, value in parse_lines(read_text(path), path)]


def attach_ids(items: Iterable[Any], ids: Sequence[Any] | None, name: str) -> list[Any]:
    """Put ids into their items."""
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


def read_item(item: Any, where: str, key: str | None = None) -> Turn:
    """Read one item."""
    item = _parsed(item, where)
    if not _has_wrapper(item):
        is_line = isinstance(item, Mapping) and (any(name in item for name in _ID_KEYS) or _holds_text(item))
        if not is_line:
            return Turn(None, "original", None, Belief.of(read_state(item, where)), where)
        if key not in item:
            raise DataError(f"{where}: the key 'state' is missing; found {', '.join(map(repr, item))}")
        state = item[key]
        if key == _STATE_KEYS["references"] and isinstance(state, str) and not read_belief(state).is_well_formed:
            raise DataError(
                f"{where}: {key!r} holds {state!r:.60}, which is no belief text such as 'hotel-area = east ; "
                "hotel-stars = 4'; give that, or the state as an object under 'state'"
            )
        if isinstance(state, str):
            return Turn(*read_view_id(item, where), read_belief(state), where, read_cluster(item, where))
        item = {**item, "state": state}
    belief = Belief.of(read_state(item["state"], where))
    return Turn(*read_view_id(item, where), belief, where, read_cluster(item, where))


def _holds_text(item: Mapping[str, Any]) -> bool:
    """Tell {"prediction": <belief text>} from a bare state; no schema has slots of these names."""
    return any(isinstance(item.get(name), str) for name in _STATE_KEYS.values())


def _has_wrapper(item: Any) -> bool:
    """Tell {"state": <state>} from a bare state that has a slot named "state"."""
    if not isinstance(item, Mapping) or "state" not in item:
        return False
    if any(key in item for key in _ID_KEYS):
        return True
    state = item["state"]
    if isinstance(state, list):
        return all(isinstance(entry, Mapping) for entry in state)
    return isinstance(state, Mapping) or (isinstance(state, str) and state.lstrip()[:1] in ("{", "["))


def read_view_id(item: Mapping[str, Any], where: str) -> tuple[str | None, str, str | None]:
    """Read the ids of the row, the variant and the id of the dialogue from an item."""
    row_id, dialogue = read_id(item, where)
    variant = item.get("variant", item.get("view", "original"))
    if variant_number(variant) is None:
        raise DataError(f"{where}: variant must be 'original' or 'augmented', found {short(variant)}")
    return row_id, variant, dialogue


def read_id(item: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    """Read the ids of the row and of its dialogue from an item; (None, None) if it has none.

    A row id of "MUL0003/4" belongs to the dialogue "MUL0003", unless the item has a "dialogue_id".
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


def read_cluster(item: Mapping[str, Any], where: str) -> str | None:
    """Read the name of the independent unit of an item; None if it names none."""
    cluster = item.get(CLUSTER_KEY)
    return cluster if cluster is None or cluster == "" else read_name(cluster, CLUSTER_KEY, where)


def require_all_or_no_clusters(clusters: Iterable[tuple[str | None, str]]) -> None:
    """Raise DataError if some items name a cluster and some do not, given (cluster or None, position) of each item."""
    items = list(clusters)
    without = [where for cluster, where in items if cluster is None]
    if 0 < len(without) < len(items):
        raise DataError(
            f"{without[0]}: {len(without)} of {len(items)} items have no {CLUSTER_KEY}, this one first; give "
            f"every item a {CLUSTER_KEY}, or none"
        )


def warn_of_one_cluster(clusters: Sequence[str], example: str | None) -> None:
    """Warn that there is no interval if several rows are one cluster.

    Args:
        clusters: Cluster of each row; empty: rows are independent.
        example: Id of a row, for the message.

    Warns:
        UndefinedMetricWarning: They are one cluster.
    """
    if len(clusters) > 1 and len(set(clusters)) == 1:
        warnings.warn(
            f"no intervals: all {len(clusters)} rows, such as {example!r}, are in the same cluster, {clusters[0]!r}, "
            f'and an interval needs two; give rows that are independent a "{CLUSTER_KEY}" each (without it, the part '
            "of a row id before its last slash is the cluster)",
            UndefinedMetricWarning,
            stacklevel=3,
        )


def require_belief_text(predictions: Sequence[Turn]) -> None:
    """Refuse predictions of which nearly all are text in another form than a state's, and warn of some.

    Read as they are, they would have an accuracy of 0, whatever the model.
    """
    other = [turn.where for turn in predictions if not turn.belief.is_well_formed]
    if len(other) > UNREAD_SHARE * sum(turn.belief.answered for turn in predictions):
        raise DataError(
            f"{other[0]}: expected text such as 'hotel-area = east ; hotel-stars = 4', or the state as an object under "
            f"'state', got another form, as in {len(other)} of {len(predictions)} predictions"
        )
    if other:
        warnings.warn(
            f"{len(other)} of {len(predictions)} predictions, such as {other[0]}, are text in another form than that "
            "of a state, 'hotel-area = east ; hotel-name = warkworth house'; what is not read as meant counts as wrong",
            BeliefTextWarning,
            stacklevel=5,
        )


def read_state(state: Any, where: str) -> State:
    """Read a state in any accepted shape."""
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
        if is_augmented(slot):
            raise DataError(
                f"{where}: {short(slot)} is a column of pairs and no slot; give states, or the predictions that "
                "`evaluate_pairs` wrote for these pairs"
            )
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
    number: Any = None if isinstance(value, bool) else value
    if isinstance(number, Integral):
        return str(int(number))
    # pandas reads a column of 4 and missing values as 4.0 and NaN. The numbers of numpy are Integral and Real, too.
    if isinstance(number, Real) and math.isfinite(float(number)):
        return str(int(float(number))) if float(number).is_integer() else str(number)
    raise DataError(f"{where}: the slot {slot!r} has {short(value)}; use a string or a list of strings")


def _parsed(item: Any, where: str) -> Any:
    if not isinstance(item, str):
        return item
    return parse_item(item, where, f"expected a state as an object, found {short(item)}")


def pair_turns(predictions: Sequence[Turn], references: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Pair predictions with references: by row id and variant if they have ids, else by position.

    Returns:
        (prediction, reference) in the order of the references. A reference that names no cluster has that of its
        prediction.

    Raises:
        DataError: Only some items have ids or clusters, an id is repeated, an id occurs on one side only, or the
            numbers of items without ids differ.
    """
    for turns in (predictions, references):
        require_all_or_no_clusters((turn.cluster, turn.where) for turn in turns)
    pairs = pair_items(predictions, references, lambda turn: view_name(turn.row_id, turn.variant), "row_id")
    if not predictions or predictions[0].cluster is None:
        return pairs
    return [
        (prediction, reference._replace(cluster=prediction.cluster) if reference.cluster is None else reference)
        for prediction, reference in pairs
    ]


def view_name(row_id: str | None, variant: str) -> str | None:
    """Return the name of a view in messages; None for a row without id."""
    return None if row_id is None else f"{row_id} ({variant})"


def join_views(views: Iterable[tuple[str | None, str, str]]) -> dict[str, dict[str, int]]:
    """Join the views of each row by id.

    Args:
        views: (row id, variant, position in messages) of each view.

    Returns:
        Row id -> variant -> number of the view. Every row has an original view.

    Raises:
        DataError: A view has no id, or an augmented view has no original view.

    Example:
        >>> join_views([("A/0", "original", "p:1"), ("A/1", "original", "p:2"), ("A/0", "augmented", "p:3")])
        {'A/0': {'original': 0, 'augmented': 2}, 'A/1': {'original': 1}}
    """
    rows: dict[str, dict[str, int]] = {}
    for number, (row_id, variant, where) in enumerate(views):
        if row_id is None:
            raise DataError(
                f"{where}: this item has no id, and the views of a row are paired by it; "
                "give every item a row_id and a variant"
            )
        rows.setdefault(row_id, {})[variant] = number
    orphans = sorted(row_id for row_id, numbers in rows.items() if "original" not in numbers)
    if orphans:
        raise DataError(
            f"{len(orphans)} augmented views have no original view (e.g. {', '.join(orphans[:3])}); "
            "give the original view of every row"
        )
    return rows
