"""One dialog row under a renaming: where in its texts and in its state the new names go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.dialog.renaming.names import Renaming, match_case, normalise
from dair_hf.errors import DataError

# How some states of MultiWOZ 2.1 say that a name is not wanted.
_NEGATED = re.compile(r"not\((.+)\)")


class Utterance(NamedTuple):
    """A rewritten turn.

    Attributes:
        turn: `speaker` and the new `text`; the original dict where nothing changed.
        renamed: Keys of the entities renamed in it.
        clashes: Keys of the entities whose new name stands in the original text already.
    """

    turn: dict[str, str]
    renamed: frozenset[str]
    clashes: frozenset[str]


class Dialogue(NamedTuple):
    """What the rows of one dialogue share: the renaming, and the utterances rewritten so far."""

    names: Sequence[Mapping[str, Any]]
    renaming: Renaming
    utterances: dict[tuple[Any, ...], Utterance]


def rewrite_history(row: Mapping[str, Any], dialogue: Dialogue) -> list[Utterance]:
    """Rewrite the texts of a row at its mentions; utterances met before in the dialogue are taken from its cache.

    Raises:
        DataError: A mention is not within its utterance.
    """
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
        found = spans.get(index, ())
        key = (turn["speaker"], turn["text"], *found)
        utterance = dialogue.utterances.get(key)
        if utterance is None:
            try:
                utterance = _rewrite(turn, found, dialogue.renaming)
            except ValueError as error:
                raise DataError(f"row {row['row_id']!r}: entities: utterance {index}: {error}") from error
            dialogue.utterances[key] = utterance
        rewritten.append(utterance)
    return rewritten


def _rewrite(turn: dict[str, str], spans: Iterable[tuple[int, int, str]], renaming: Renaming) -> Utterance:
    text = turn["text"]
    pieces, position, renamed = [], 0, set()
    for start, end, key in _without_overlap(text, spans, renaming):
        if key not in renaming.new_names:
            continue
        surface = text[start:end]
        bare = surface.strip()
        lead = len(surface) - len(surface.lstrip())
        new = match_case(bare, renaming.new_names[key])
        pieces += [text[position : start + lead], new]
        position = start + lead + len(bare)
        renamed.add(key)
    if renamed:
        turn = {**turn, "text": "".join(pieces) + text[position:]}
    spelling = normalise(text)
    clashes = {key for key, new in renaming.new_names.items() if _stands_in(normalise(new), spelling)}
    return Utterance(turn, frozenset(renamed), frozenset(clashes))


def _without_overlap(
    text: str, spans: Iterable[tuple[int, int, str]], renaming: Renaming
) -> list[tuple[int, int, str]]:
    """Of spans that overlap the longest stands, whether or not it is renamed: it says what the text is about."""
    usable = []
    for start, end, name in spans:
        if not 0 <= start < end <= len(text):
            raise ValueError(
                f"span {start}:{end} of {name!r} is empty or outside the {len(text)} characters of {text!r}; "
                "give character offsets"
            )
        key = normalise(name)
        if text[start:end].strip() and _on_word_boundary(text, start, end):
            usable.append((start, end, key))
    usable.sort(key=lambda span: (span[0] - span[1], span[0], span[2] not in renaming.new_names, span[2]))
    kept: list[tuple[int, int, str]] = []
    for span in usable:
        if all(span[1] <= other[0] or other[1] <= span[0] for other in kept):
            kept.append(span)
    return sorted(kept)


def rewrite_state(
    state: Sequence[Mapping[str, Any]], renaming: Renaming, linked: set[str]
) -> tuple[list[dict[str, Any]], set[str], set[str]]:
    """Replace the values that refer to a renamed entity.

    Args:
        state: Dicts with `slot` and `values`.
        renaming: The dialogue's renaming.
        linked: Slots that may refer to an entity beside those with which it was listed.

    Returns:
        The new state, the keys of the entities renamed in it, and the normalised values that stayed.
    """
    rewritten, renamed, others = [], set(), set()
    for entry in state:
        slot = entry["slot"]
        values: list[str] = []
        met: set[str] = set()
        for value in entry["values"]:
            negated = _NEGATED.fullmatch(value)
            name = negated[1] if negated else value
            # A value such as "indian" may be a name here and a food there: only slots that hold names are looked at.
            key = renaming.owner(name, slot)
            if key is not None and slot not in linked and not any(slot in slots for slots in renaming.slots.values()):
                key = None
            if key is None or key not in renaming.new_names:
                values.append(value)
                others.add(normalise(value))
            elif key not in met:
                met.add(key)
                lead = len(name) - len(name.lstrip())
                trail = len(name) - len(name.rstrip())
                new = name[:lead] + match_case(name, renaming.new_names[key]) + name[len(name) - trail :]
                values.append(f"not({new})" if negated else new)
        renamed |= met
        rewritten.append({"slot": slot, "values": values})
    return rewritten, renamed, others


def _stands_in(part: str, text: str) -> bool:
    start = text.find(part)
    while start >= 0:
        if _on_word_boundary(text, start, start + len(part)):
            return True
        start = text.find(part, start + 1)
    return False


def _on_word_boundary(text: str, start: int, end: int) -> bool:
    cut_before = start > 0 and text[start - 1].isalnum() and text[start].isalnum()
    cut_after = end < len(text) and text[end - 1].isalnum() and text[end].isalnum()
    return not cut_before and not cut_after
