"""Checks of one pair of views.

The renaming is inferred from the two texts and the two states, independently of the augmenter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from dair_hf.dialog.text.spans import (
    NO_NAME,
    UNSPOKEN,
    contains_name,
    excluded_value,
    normalize_name,
    without_overlap,
)
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS

History = Sequence[Mapping[str, str]]
State = Mapping[str, Sequence[str]]


@dataclass
class Pair:
    """Row with its augmented view, if it has one. Names in `mentions` and `forms` are normalized.

    Attributes:
        row_id: Id of the row.
        dialogue_id: Id of its dialogue.
        history: Utterances, oldest first.
        state: Slot -> alternatives.
        mentions: (utterance, start, end, canonical name).
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
    mentions: Sequence[tuple[int, int, int, str]]
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
    def renamings(self) -> list[tuple[str, str]]:
        """(canonical name, new name) of every entity in text and state; both are equal if it was not renamed."""
        return list(dict.fromkeys([*self._in_text, *self._in_state]))

    @cached_property
    def new_names(self) -> set[str]:
        """Names of the augmented view that replace others."""
        return {new for old, new in self.renamings if new != old}

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
        mentioned = {name for *_, name in self.mentions}
        missing = []
        for slot, values in self.state.items():
            if slot not in self.name_slots or not values or normalize_name(values[0]) in NO_NAME:
                continue
            spellings = {normalize_name(value) for value in values}
            names: set[str] = set().union(*(self.owners.get(spelling, ()) for spelling in spellings))
            forms = spellings.union(*(self.forms[name] for name in names))
            if not names & mentioned and not any(contains_name(self._text, form) for form in forms):
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
        text, reported = _text_of(self.augmented_history or ()), self.names_renamed_in_text_only()
        lost = []
        for slot, values in self.state.items():
            spoken = [value for value in values if normalize_name(value) not in UNSPOKEN and value not in reported]
            before = [value for value in spoken if contains_name(self._text, normalize_name(value))]
            is_kept = any(normalize_name(value) in text for value in spoken)
            if (self.augmented_state or {}).get(slot) == values and before and not is_kept:
                lost.append(before[0])
        return lost

    def names_renamed_in_text_only(self) -> list[str]:
        """Return names of the original state that are renamed in the text, but not in the state."""
        renamed = {old: new for old, new in self._in_text if old != new}
        missing = []
        for slot, values in self.state.items():
            after = {normalize_name(value) for value in (self.augmented_state or {}).get(slot, ())}
            for value in values:
                owners = self.owners.get(normalize_name(value), set()) if slot in self.name_slots else set()
                if len(owners) == 1 and (new := renamed.get(next(iter(owners)))) and new not in after:
                    missing.append(value)
        return missing

    @cached_property
    def _text(self) -> str:
        return _text_of(self.history)

    @cached_property
    def _in_text(self) -> list[tuple[str, str]]:
        spans: dict[int, list[tuple[int, int, str]]] = {}
        for turn, start, end, name in self.mentions:
            spans.setdefault(turn, []).append((start, end, name))
        pairs: list[tuple[str, str]] = []
        for turn, mentions in spans.items():
            if self.augmented_history is not None and turn < len(self.augmented_history):
                texts = self.history[turn]["text"], self.augmented_history[turn]["text"]
                pairs += _aligned(*texts, tuple(mentions))
        return [self._renaming(old, new) for old, new in pairs]

    @cached_property
    def _in_state(self) -> list[tuple[str, str]]:
        pairs = []
        for slot, values in self.state.items():
            after = (self.augmented_state or {}).get(slot)
            if values and after and slot in self.name_slots:
                owners = self.owners.get(normalize_name(values[0]), set())
                if len(owners) == 1:
                    pairs.append(self._renaming(next(iter(owners)), normalize_name(after[0])))
        return pairs

    def _renaming(self, old: str, new: str) -> tuple[str, str]:
        # Another spelling of the old name is no new name.
        return old, old if new in self.forms.get(old, ()) else new


def is_type_slot(slot: str) -> bool:
    """Return whether the values of a renamed slot are types, of which a place has one, and no names of places.

    Example:
        >>> is_type_slot("restaurant-food"), is_type_slot("hotels_4-place_name"), is_type_slot("taxi-departure")
        (True, False, False)
    """
    return slot.rpartition("-")[2] in ("food", "cuisine", "type")


def read_pair(row: Mapping[str, Any]) -> Pair:
    """Read a dialog row with its augmented columns.

    Raises:
        DataError: Only one of the augmented columns is None, or the views differ in their number of utterances.
    """
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
        mentions=[(m["turn"], m["start"], m["end"], normalize_name(m["name"])) for m in row["entities"]],
        forms={name: spellings - NO_NAME for name, spellings in forms.items()},
        name_slots=frozenset(NAME_SLOTS).union(entry["slot"] for entry in row["names"]),
        types=frozenset(form for entry in row["names"] if is_type_slot(entry["slot"]) for form in entry["forms"]),
        augmented_history=augmented,
        augmented_state=None if augmented is None else {e["slot"]: e["values"] for e in row["augmented_state"]},
    )


@lru_cache(maxsize=20_000)
def _aligned(text: str, augmented: str, mentions: tuple[tuple[int, int, str], ...]) -> list[tuple[str, str]]:
    """Return (old name, text in its place) by the text between the mentions, nothing if that is ambiguous."""
    chosen = without_overlap(sorted(mentions))
    if any(span[:2] == other[:2] and span[2] != other[2] for span in chosen for other in mentions):
        return []
    if any(not text[left[1] : right[0]].strip() for left, right in pairwise(chosen)):
        return []
    bounds = [0, *(bound for start, end, _ in chosen for bound in (start, end)), len(text)]
    between = [text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    first, last = _leftmost(between, augmented), _rightmost(between, augmented)
    if first is None or first != last:
        return []
    return [(name, normalize_name(new)) for (*_, name), new in zip(chosen, first, strict=True)]


def _leftmost(between: Sequence[str], text: str) -> list[str] | None:
    """Split `text` at the parts `between`, each as early as possible."""
    if not text.startswith(between[0]) or not text.endswith(between[-1]):
        return None
    names, position = [], len(between[0])
    for part in between[1:-1]:
        start = text.find(part, position + 1)
        if start < 0:
            return None
        names.append(text[position:start])
        position = start + len(part)
    names.append(text[position : len(text) - len(between[-1])])
    return names if names[-1] else None


def _rightmost(between: Sequence[str], text: str) -> list[str] | None:
    """Split `text` at the parts `between`, each as late as possible. If both agree the split is unique."""
    names = _leftmost([part[::-1] for part in reversed(between)], text[::-1])
    return None if names is None else [name[::-1] for name in reversed(names)]


def _text_of(history: History) -> str:
    return "\n".join(normalize_name(turn["text"]) for turn in history)
