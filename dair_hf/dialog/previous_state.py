"""Rows whose input is the previous state and the turns since then, in place of the whole history.

The previous state is the first utterance of such a history, as belief text of the system. In training rows it is gold.
In evaluation it is what the model itself predicted for the previous turn of the same view, so that errors carry over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset

from dair_hf.data.view_columns import columns_of_views
from dair_hf.dialog.rows import PLACE_SLOTS, SYSTEM, USER, normalize_name, state_from_row, target_text
from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import parse, state_to_text
from dair_hf.metrics.state.conventions import NAME_SLOTS

History = Sequence[Mapping[str, str]]


def _since_previous_state(history: History, previous: str) -> list[dict[str, str]]:
    """Return the short history of a turn: the previous state, and what was said since then."""
    return [{"speaker": SYSTEM, "text": previous}, *map(dict, history[_first_new(history) :])]


def with_gold_states(rows: Dataset, preset: str = "any_of") -> Dataset:
    """Return dialog rows with short histories, whose previous state is gold, and with the mentions in them."""
    if "augmented_history" in rows.column_names:
        # The histories of the partners would stay long.
        raise DataError("rows: expected none with partners, got augmented_history; shorten first, then augment")
    columns = [rows[name][:] for name in ("dialogue_id", "turn_id", "state")]
    states = {(name, turn): state for name, turn, state in zip(*columns, strict=True)}

    def shorten(row: Mapping[str, Any]) -> dict[str, Any]:
        before = state_from_row(states.get((row["dialogue_id"], row["turn_id"] - 1), ()))
        previous = target_text(before, preset)
        first = _first_new(row["history"])
        mentions = [{**m, "turn": m["turn"] - first + 1} for m in row["entities"] if m["turn"] >= first]
        return {
            "history": _since_previous_state(row["history"], previous),
            "entities": [*_mentions_in_state(previous, row["names"]), *mentions],
        }

    return rows.map(shorten, desc="Previous states")


def with_predicted_states(pairs: Dataset, predict: Callable[[list[list[dict[str, str]]]], list[str]]) -> Dataset:
    """Return pairs with short histories, whose previous state is the one predicted, turn by turn.

    Each view of a dialogue is predicted on its own, from its first turn to its last. The augmented view of a turn
    without a partner, which a later turn of the dialogue depends on, is predicted too.
    """
    ids = pairs["dialogue_id"][:]
    columns = columns_of_views("history", pairs.column_names).values()
    histories = {name.removesuffix("history"): pairs[name][:] for name in columns}
    # The longest history of a view has all its turns.
    whole: dict[tuple[str, str], History] = {}
    for view, of_view in histories.items():
        for name, history in zip(ids, of_view, strict=True):
            if history is not None and len(history) > len(whole.get((view, name), ())):
                whole[view, name] = history
    ends = {key: [i + 1 for i, turn in enumerate(history) if turn["speaker"] == USER] for key, history in whole.items()}
    # View, dialogue and length of the whole history -> its short one.
    short: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    previous = dict.fromkeys(whole, "")
    for turn in range(max(map(len, ends.values()), default=0)):
        keys = [key for key in whole if turn < len(ends[key])]
        inputs = [_since_previous_state(whole[key][: ends[key][turn]], previous[key]) for key in keys]
        for key, history, answer in zip(keys, inputs, predict(inputs), strict=True):
            short[(*key, ends[key][turn])] = history
            previous[key] = state_to_text(parse(answer))
    new = {
        f"{view}history": [
            None if history is None else short[view, name, len(history)]
            for name, history in zip(ids, of_view, strict=True)
        ]
        for view, of_view in histories.items()
    }
    features = pairs.features
    kept = pairs.remove_columns([*new, "entities"])
    for name, column in new.items():
        kept = kept.add_column(name, column, feature=features[name])
    return kept


def _first_new(history: History) -> int:
    """Return the index behind the last user turn but one."""
    users = [index for index, turn in enumerate(history) if turn["speaker"] == USER]
    return users[-2] + 1 if len(users) > 1 else 0


def _mentions_in_state(text: str, names: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mentions of names in belief text."""
    owners: dict[str, Mapping[str, Any]] = {}
    for entry in names:
        for form in (entry["name"], *entry["forms"]):
            owners.setdefault(normalize_name(form), entry)
    # A name may also be the place of a taxi; as a type or an area, the same word is no name.
    slots = {*NAME_SLOTS, *PLACE_SLOTS, *(entry["slot"] for entry in owners.values())}
    mentions = []
    start = 0
    for field in text.split(" ; "):
        slot, _, values = field.partition(" = ")
        start += len(slot) + len(" = ")
        for value in values.split(" | "):
            owner, end = owners.get(normalize_name(value)), start + len(value)
            if owner is not None and slot in slots:
                mentions.append({"slot": owner["slot"], "name": owner["name"], "turn": 0, "start": start, "end": end})
            start = end + len(" | ")  # as long as the mark of the next field
    return mentions
