"""One row with both its views, and the questions an audit asks about it.

Nothing here relies on how the augmented view was made: what was renamed is read off the two texts and the two states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from dair_hf.dialog.text.rows import DONTCARE, NAME_SLOTS, on_word_boundary
from dair_hf.errors import DataError

NO_NAME = frozenset({"", "none", "not mentioned", "don't care", "do n't care", DONTCARE})

History = Sequence[Mapping[str, str]]
State = Mapping[str, Sequence[str]]


@lru_cache(maxsize=50_000)
def spelling(text: str) -> str:
    """What tells two names apart: the text case folded, with single spaces.

    Example:
        >>> spelling("The  Lensfield ")
        'the lensfield'
    """
    return " ".join(text.split()).casefold()


def bare(value: str) -> str:
    """The name in a value of a state: "not(x)" is how MultiWOZ 2.1 says that x is not wanted.

    Example:
        >>> bare("not(hamilton lodge)"), bare("acorn")
        ('hamilton lodge', 'acorn')
    """
    return value[4:-1] if value.startswith("not(") and value.endswith(")") else value


def stands_in(name: str, text: str) -> bool:
    """Whether `name` occurs in `text` as whole words; both as `spelling` gives them.

    Example:
        >>> stands_in("cow", "the cowboy"), stands_in("cow", "the cow.")
        (False, True)
    """
    start = text.find(name)
    while start >= 0:
        if on_word_boundary(text, start, start + len(name)):
            return True
        start = text.find(name, start + 1)
    return False


@dataclass
class Pair:
    """A row and its partner, if it has one.

    Attributes:
        row_id: Id of the row.
        dialogue_id: Id of its dialogue.
        history: Utterances, oldest first.
        state: Slot -> alternatives.
        mentions: (utterance, start, end, spelling of the entity's canonical name).
        forms: Spelling of an entity's canonical name -> all its spellings.
        name_slots: Slots whose values are names.
        augmented_history: The other view, None where there is no partner.
        augmented_state: Likewise.
    """

    row_id: str
    dialogue_id: str
    history: History
    state: State
    mentions: Sequence[tuple[int, int, int, str]]
    forms: Mapping[str, set[str]]
    name_slots: frozenset[str]
    augmented_history: History | None
    augmented_state: State | None

    @property
    def has_partner(self) -> bool:
        """Whether there is an augmented view."""
        return self.augmented_history is not None

    @cached_property
    def owners(self) -> dict[str, set[str]]:
        """Spelling -> the entities spelled so."""
        found: dict[str, set[str]] = {}
        for name, forms in self.forms.items():
            for form in forms:
                found.setdefault(form, set()).add(name)
        return found

    @cached_property
    def renamings(self) -> list[tuple[str, str]]:
        """(old canonical name, new name) for every place where an entity stands; the old name twice where it stayed."""
        return list(dict.fromkeys([*self._in_text, *((old, new) for _, old, new in self._in_state)]))

    @cached_property
    def new_names(self) -> set[str]:
        """The names that stand in the augmented view in place of others."""
        return {new for old, new in self.renamings if new != old}

    def unchanged(self) -> bool:
        """Whether the two views are equal."""
        return self.augmented_history == self.history and self.augmented_state == self.state

    def length_ratio(self) -> float:
        """Characters of the augmented history over those of the original."""
        original, augmented = (sum(len(turn["text"]) for turn in view or ()) for view in self._histories)
        return augmented / max(original, 1)

    def unsaid(self) -> list[str]:
        """Names in the original state of which no spelling stands in the history."""
        return [values[0] for values in self._named(self.state) if not self._said(values, self._text)]

    def new_names_unsaid(self) -> list[str]:
        """Values new in the augmented state that do not stand in the augmented history."""
        assert self.augmented_state is not None
        found = []
        for slot, values in self.augmented_state.items():
            before = {spelling(value) for value in self.state.get(slot, ())}
            new = [value for value in values if spelling(value) not in before and spelling(value) not in NO_NAME]
            found += [value for value in new if not stands_in(spelling(bare(value)), self._augmented_text)]
        return found

    def renamed_in_text_only(self) -> list[str]:
        """Names in the state that the text calls otherwise while the state does not."""
        assert self.augmented_state is not None
        renamed = {old: new for old, new in self._in_text if old != new}
        found = []
        for slot, values in self.state.items():
            now = {spelling(value) for value in self.augmented_state.get(slot, ())}
            for value in values:
                owners = self.owners.get(spelling(value), set()) if slot in self.name_slots else set()
                if len(owners) == 1 and (new := renamed.get(next(iter(owners)))) and new not in now:
                    found.append(value)
        return found

    @property
    def _histories(self) -> tuple[History, History | None]:
        return self.history, self.augmented_history

    @cached_property
    def _text(self) -> str:
        return "\n".join(spelling(turn["text"]) for turn in self.history)

    @cached_property
    def _augmented_text(self) -> str:
        return "\n".join(spelling(turn["text"]) for turn in self.augmented_history or ())

    def _named(self, state: State) -> Iterator[Sequence[str]]:
        for slot, values in state.items():
            if slot in self.name_slots and values and spelling(values[0]) not in NO_NAME:
                yield values

    def _said(self, values: Iterable[str], text: str) -> bool:
        mentioned = {name for *_, name in self.mentions}
        for value in values:
            known = self.owners.get(spelling(value), set())
            if known & mentioned:
                return True
            if any(stands_in(form, text) for form in {spelling(value)}.union(*(self.forms[name] for name in known))):
                return True
        return False

    @cached_property
    def _in_text(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        spans: dict[int, list[tuple[int, int, str]]] = {}
        for turn, start, end, name in self.mentions:
            spans.setdefault(turn, []).append((start, end, name))
        for turn, mentions in spans.items():
            if self.augmented_history is not None and turn < len(self.augmented_history):
                texts = self.history[turn]["text"], self.augmented_history[turn]["text"]
                found += _aligned(*texts, tuple(mentions))
        # A surface that stayed as it was is the entity under its old name, whatever its spelling.
        return [(old, old if new in self.forms.get(old, ()) else new) for old, new in found]

    @cached_property
    def _in_state(self) -> list[tuple[str, str, str]]:
        found = []
        for slot, values in self.state.items():
            now = (self.augmented_state or {}).get(slot)
            if not values or not now or slot not in self.name_slots:
                continue
            owners = self.owners.get(spelling(values[0]), set())
            if len(owners) == 1:
                old, new = next(iter(owners)), spelling(now[0])
                found.append((slot, old, old if new in self.forms[old] else new))
        return found


def read_pair(row: Mapping[str, Any]) -> Pair:
    """Read a row with the columns of the dialog contract and the two augmented ones.

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
        name = spelling(entry["name"])
        forms.setdefault(name, {name}).update(map(spelling, entry["forms"]))
    return Pair(
        row_id=row["row_id"],
        dialogue_id=row["dialogue_id"],
        history=history,
        state={entry["slot"]: entry["values"] for entry in row["state"]},
        mentions=[(m["turn"], m["start"], m["end"], spelling(m["name"])) for m in row["entities"]],
        forms={name: found - NO_NAME for name, found in forms.items()},
        name_slots=frozenset(NAME_SLOTS).union(entry["slot"] for entry in row["names"]),
        augmented_history=augmented,
        augmented_state=None if augmented is None else {e["slot"]: e["values"] for e in row["augmented_state"]},
    )


@lru_cache(maxsize=20_000)
def _aligned(text: str, augmented: str, mentions: tuple[tuple[int, int, str], ...]) -> list[tuple[str, str]]:
    """(entity, what stands in its place) by the text between the mentions; nothing where that is ambiguous."""
    chosen: list[tuple[int, int, str]] = []
    for mention in sorted(mentions, key=lambda span: (span[0] - span[1], span)):
        if all(mention[1] <= other[0] or other[1] <= mention[0] for other in chosen):
            chosen.append(mention)
    chosen.sort()
    if any(one[:2] == other[:2] and one[2] != other[2] for one in chosen for other in mentions):
        return []
    if any(not text[one[1] : other[0]].strip() for one, other in zip(chosen, chosen[1:], strict=False)):
        return []
    bounds = [0, *(bound for start, end, _ in chosen for bound in (start, end)), len(text)]
    between = [text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    first, last = _leftmost(between, augmented), _rightmost(between, augmented)
    if first is None or first != last:
        return []
    return [(name, spelling(new)) for (*_, name), new in zip(chosen, first, strict=True)]


def _leftmost(between: Sequence[str], text: str) -> list[str] | None:
    """What stands between the parts of `text` when each part is taken as early as possible."""
    if not text.startswith(between[0]) or not text.endswith(between[-1]):
        return None
    found, position = [], len(between[0])
    for part in between[1:-1]:
        start = text.find(part, position + 1)
        if start < 0:
            return None
        found.append(text[position:start])
        position = start + len(part)
    found.append(text[position : len(text) - len(between[-1])])
    return found if found[-1] else None


def _rightmost(between: Sequence[str], text: str) -> list[str] | None:
    """The same with each part taken as late as possible: where both agree there is no other way to read the text."""
    found = _leftmost([part[::-1] for part in reversed(between)], text[::-1])
    return None if found is None else [name[::-1] for name in reversed(found)]
