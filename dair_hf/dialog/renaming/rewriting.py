"""Rewriting of a dialog row: new names in its texts and its state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.dialog.renaming.new_names import Renaming, fit_article, match_case
from dair_hf.dialog.text.spans import (
    UNSPOKEN,
    contains_name,
    excluded_value,
    normalize_name,
    on_word_boundary,
    without_overlap,
)
from dair_hf.errors import DataError

_WORD = re.compile(r"[^\W_]+")


class RewrittenUtterance(NamedTuple):
    """Turn with new names."""

    turn: dict[str, str]
    renamed: frozenset[str]
    clashes: frozenset[str]
    removed: frozenset[str]


class Dialogue(NamedTuple):
    """Renaming of a dialogue and its utterances rewritten so far, shared by its rows."""

    names: Sequence[Mapping[str, Any]]
    renaming: Renaming
    utterances: dict[tuple[Any, ...], RewrittenUtterance]


def rewrite_history(row: Mapping[str, Any], dialogue: Dialogue) -> list[RewrittenUtterance]:
    """Rewrite the texts of a row at its mentions. Utterances are cached in the dialogue."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for mention in row["entities"]:
        spans.setdefault(mention["turn"], []).append((mention["start"], mention["end"], mention["name"]))
    history = row["history"]
    if spans and not (0 <= min(spans) and max(spans) < len(history)):
        raise DataError(
            f"row {row['row_id']!r}: entities: mention in utterance {sorted(spans)} of {len(history)}; "
            "turn must be an index into the history"
        )
    rewritten = []
    for index, turn in enumerate(history):
        mentions = spans.get(index, ())
        key = (turn["speaker"], turn["text"], *mentions)
        utterance = dialogue.utterances.get(key)
        if utterance is None:
            try:
                utterance = _rewrite(turn, mentions, dialogue.renaming)
            except ValueError as error:
                raise DataError(f"row {row['row_id']!r}: entities: utterance {index}: {error}") from error
            dialogue.utterances[key] = utterance
        rewritten.append(utterance)
    return rewritten


def _rewrite(turn: dict[str, str], spans: Iterable[tuple[int, int, str]], renaming: Renaming) -> RewrittenUtterance:
    text = turn["text"]
    usable = []
    for start, end, name in spans:
        if not 0 <= start < end <= len(text):
            raise ValueError(
                f"span {start}:{end} of {name!r} is empty or outside the {len(text)} characters of {text!r}; "
                "give character offsets"
            )
        if text[start:end].strip() and on_word_boundary(text, start, end):
            usable.append((start, end, normalize_name(name)))
    # The longest span counts even if its entity keeps its name; of equal spans one that is renamed.
    usable.sort(key=lambda span: (span[0], span[2] not in renaming.new_names, span[2]))
    pieces, position, renamed, removed = [], 0, set(), set()
    for start, end, key in without_overlap(usable):
        if key not in renaming.new_names:
            continue
        new = _replaced(text[start:end], renaming.new_names[key])
        pieces += [fit_article(text[position:start], new), new]
        position = end
        renamed.add(key)
        removed.update(_WORD.findall(normalize_name(text[start:end])))
    if renamed:
        turn = {**turn, "text": "".join(pieces) + text[position:]}
    normalized = normalize_name(text)
    clashes = {key for key, new in renaming.new_names.items() if contains_name(normalized, normalize_name(new))}
    return RewrittenUtterance(turn, frozenset(renamed), frozenset(clashes), frozenset(removed))


def _replaced(surface: str, name: str) -> str:
    """Return the new name with the case pattern and the outer white space of the old one."""
    bare = surface.strip()
    before, _, after = surface.partition(bare)
    return f"{before}{match_case(bare, name)}{after}"


def rewrite_state(
    state: Sequence[Mapping[str, Any]], renaming: Renaming, linked: set[str]
) -> tuple[list[dict[str, Any]], set[str], set[str]]:
    """Return the renamed state, the keys of the entities renamed in it, and the other values, normalized."""
    rewritten, renamed, others = [], set(), set()
    linked = linked.union(*renaming.slots.values())
    for entry in state:
        slot = entry["slot"]
        if isinstance(entry["values"], str):
            raise ValueError(f"values of {slot!r} are the text {entry['values']!r:.80}; give a list of texts")
        values: list[str] = []
        replaced: set[str] = set()
        for value in entry["values"]:
            excluded = excluded_value(value)
            name = value if excluded is None else excluded
            # A value such as "indian" may be a name in one slot and a food in another: only name slots are replaced.
            key = renaming.owner(name, slot) if slot in linked else None
            if key is None or key not in renaming.new_names:
                values.append(value)
                others.add(normalize_name(name))
            elif key not in replaced:
                replaced.add(key)
                new = _replaced(name, renaming.new_names[key])
                values.append(new if excluded is None else f"not({new})")
        renamed |= replaced
        rewritten.append({"slot": slot, "values": values})
    return rewritten, renamed, others


def lost_values(
    row: Mapping[str, Any], utterances: Sequence[RewrittenUtterance], state: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Return unchanged values of the state that the original history contains and the rewritten one does not.

    "college" is one if it only occurs in "christ's college", which has a new name, but not if "colleges" are spoken of.
    """
    removed = frozenset[str]().union(*(utterance.removed for utterance in utterances))
    lost = []
    for old, new in zip(row["state"], state, strict=True):
        values = [value for value in map(normalize_name, old["values"]) if value not in UNSPOKEN]
        if old["values"] != new["values"] or removed.isdisjoint(
            word for value in values for word in _WORD.findall(value)
        ):
            continue
        before = [normalize_name(turn["text"]) for turn in row["history"]]
        after = [normalize_name(utterance.turn["text"]) for utterance in utterances]
        spoken = [value for value in values if any(contains_name(text, value) for text in before)]
        if not any(value in text for value in values for text in after):
            lost += spoken
    return lost
