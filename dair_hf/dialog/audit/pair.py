"""Checks of one pair of views, by their texts and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dair_hf.dialog.text.spans import (
    NO_NAME,
    UNSPOKEN,
    contains_name,
    excluded_value,
    normalize_name,
)
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS

History = Sequence[Mapping[str, str]]
State = Mapping[str, Sequence[str]]


@dataclass
class Pair:
    """Row with its augmented view, if it has one. Names in `forms` are normalized.

    Attributes:
        row_id: Id of the row.
        dialogue_id: Id of its dialogue.
        history: Utterances, oldest first.
        state: Slot -> alternatives.
        forms: Canonical name -> all spellings.
        name_slots: Slots whose values are names.
        types: Spellings of entities that are no single place but a type, such as a food.
        augmented_history: History of the augmented view, or None.
        augmented_state: State of the augmented view, or None.
    """

    row_id: str
    dialogue_id: str
    history: History
    state: State
    forms: Mapping[str, set[str]]
    name_slots: frozenset[str]
    types: frozenset[str]
    augmented_history: History | None
    augmented_state: State | None

    @cached_property
    def owners(self) -> dict[str, set[str]]:
        """Spelling -> canonical names of the entities that have it."""
        owners: dict[str, set[str]] = {}
        for name, forms in self.forms.items():
            for form in forms:
                owners.setdefault(form, set()).add(name)
        return owners

    @cached_property
    def new_names(self) -> set[str]:
        """Values of the augmented state that replace others."""
        pairs = ((self.state.get(slot, ()), values) for slot, values in (self.augmented_state or {}).items())
        return {normalize_name(value) for before, values in pairs for value in values if value not in before}

    def is_unchanged(self) -> bool:
        """Return whether the views are equal."""
        return self.augmented_history == self.history and self.augmented_state == self.state

    def length_ratio(self) -> float:
        """Return the characters of the augmented history over those of the original."""
        original, augmented = (
            sum(len(turn["text"]) for turn in view or ()) for view in (self.history, self.augmented_history)
        )
        return augmented / max(original, 1)

    def names_missing_in_text(self) -> list[str]:
        """Return names in the original state that the original history never mentions."""
        missing = []
        for slot, values in self.state.items():
            if slot not in self.name_slots or not values or normalize_name(values[0]) in NO_NAME:
                continue
            spellings = {normalize_name(value) for value in values}
            names: set[str] = set().union(*(self.owners.get(spelling, ()) for spelling in spellings))
            forms = spellings.union(*(self.forms[name] for name in names))
            if not any(contains_name(self._text, form) for form in forms):
                missing.append(values[0])
        return missing

    def new_names_missing_in_text(self) -> list[str]:
        """Return new values of the augmented state that the augmented history does not contain."""
        text = _text_of(self.augmented_history or ())
        missing = []
        for slot, values in (self.augmented_state or {}).items():
            before = {normalize_name(value) for value in self.state.get(slot, ())}
            for value in values:
                name = normalize_name(value)
                bare = normalize_name(excluded_value(value) or value)
                if name not in before and name not in NO_NAME and not contains_name(text, bare):
                    missing.append(value)
        return missing

    def values_lost_from_text(self) -> list[str]:
        """Return unchanged values of the state that the original history contains and the augmented one does not.

        In the augmented history a value may be a part of a word, such as "college" in "colleges".
        """
        text, lost = _text_of(self.augmented_history or ()), []
        for slot, values in self.state.items():
            spoken = [value for value in values if normalize_name(value) not in UNSPOKEN]
            before = [value for value in spoken if contains_name(self._text, normalize_name(value))]
            is_kept = any(normalize_name(value) in text for value in spoken)
            if (self.augmented_state or {}).get(slot) == values and before and not is_kept:
                lost.append(before[0])
        return lost

    @cached_property
    def _text(self) -> str:
        return _text_of(self.history)


def is_type_slot(slot: str) -> bool:
    """Return whether the values of a renamed slot are types, of which a place has one, and no names of places."""
    return slot.rpartition("-")[2] in ("food", "cuisine", "type")


def read_pair(row: Mapping[str, Any]) -> Pair:
    """Read a dialog row with its augmented columns."""
    history, augmented = row["history"], row["augmented_history"]
    if (augmented is None) != (row["augmented_state"] is None):
        raise DataError(
            f"row {row['row_id']!r}: only one of augmented_history and augmented_state is None; "
            "a row has a partner or has none"
        )
    if augmented is not None and len(augmented) != len(history):
        raise DataError(
            f"row {row['row_id']!r}: augmented_history has {len(augmented)} utterances, history {len(history)}; "
            "augment without adding or dropping turns"
        )
    forms: dict[str, set[str]] = {}
    for entry in row["names"]:
        name = normalize_name(entry["name"])
        forms.setdefault(name, {name}).update(map(normalize_name, entry["forms"]))
    return Pair(
        row_id=row["row_id"],
        dialogue_id=row["dialogue_id"],
        history=history,
        state={entry["slot"]: entry["values"] for entry in row["state"]},
        forms={name: spellings - NO_NAME for name, spellings in forms.items()},
        name_slots=frozenset(NAME_SLOTS).union(entry["slot"] for entry in row["names"]),
        types=frozenset(form for entry in row["names"] if is_type_slot(entry["slot"]) for form in entry["forms"]),
        augmented_history=augmented,
        augmented_state=None if augmented is None else {e["slot"]: e["values"] for e in row["augmented_state"]},
    )


def _text_of(history: History) -> str:
    return "\n".join(normalize_name(turn["text"]) for turn in history)
