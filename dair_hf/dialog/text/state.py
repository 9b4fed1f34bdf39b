r"""Belief states as text: what the model is trained to write, and how what it wrote is read back.

A state maps slots to lists of values. Several values are alternatives of which any is right, the first preferred.

    {"hotel-area": ["east"], "hotel-name": ["warkworth house", "warkworth"]}
    hotel-area = east ; hotel-name = warkworth house | warkworth

The four characters that carry structure (`;`, `=`, `|` and the backslash), line breaks and tabs are written behind a
backslash, as is a space at either end of a string (`\_`). An empty string is `\e`. A slot with no value at all stands
alone, without `=`. So any strings whatever come back as they were, and plain values cost no extra token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.matching import compare_states
from dair_hf.metrics.state.normalizers import normalize

State = dict[str, list[str]]

_ESCAPES = {"\\": "\\\\", ";": "\\;", "=": "\\=", "|": "\\|", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TRANSLATION = str.maketrans(_ESCAPES)
_MEANINGS = {code[1]: character for character, code in _ESCAPES.items()} | {"_": " ", "e": ""}
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_DELIMITERS = {mark: re.compile(r"\\.|" + re.escape(mark), re.DOTALL) for mark in ";=|"}
_PADDING = " \t\r\n"  # what may surround a field; a field that itself begins or ends so has it escaped


def state_to_text(state: Mapping[str, Sequence[str]]) -> str:
    r"""Write a state as text from which `text_to_state` restores it exactly, whatever the strings hold.

    Args:
        state: slot -> alternatives. Slots are written in the mapping's own order.

    Returns:
        One line of text; the empty string for the empty state.

    Example:
        >>> state_to_text({"hotel-area": ["east"], "hotel-name": ["a; b", "ab"]})
        'hotel-area = east ; hotel-name = a\\; b | ab'
    """
    fields = []
    for slot, values in state.items():
        alternatives = " | ".join([_escape(value) for value in values])
        fields.append(f"{_escape(slot)} = {alternatives}" if values else _escape(slot))
    return " ; ".join(fields)


def target_text(state: Mapping[str, Sequence[str]], preset: str = "any_of", *, lower_case: bool = False) -> str:
    """Write the training target: of every slot the values that are right by a preset of the joint goal accuracy.

    These are the first alternative that the preset takes for right by itself, or all alternatives where it demands all,
    spelled as it spells gold values where it demands that; a slot that it leaves out of gold states is not written.

    Args:
        state: slot -> alternatives.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        lower_case: Whether the values are written in lower case.

    Returns:
        One line of text; the empty string for the empty state.

    Raises:
        DataError: Unknown preset.

    Example:
        >>> target_text({"hotel-area": ["centre", "center"], "hotel-name": []})
        'hotel-area = centre'
        >>> target_text({"hotel-area": ["centre", "center"]}, "parlai_v22")
        'hotel-area = centre | center'
    """
    written = {slot: _written(slot, tuple(values), preset, lower_case) for slot, values in state.items()}
    return state_to_text({slot: values for slot, values in written.items() if values})


@lru_cache(maxsize=1 << 16)
def _written(slot: str, alternatives: tuple[str, ...], preset: str, lower_case: bool) -> tuple[str, ...]:
    """The first answer that the preset takes for right, the shortest tried first; the first alternative if none is."""
    _, convention = resolve_convention(preset)
    # Some evaluators change the gold values alone, so that only what they make of them can be right.
    normalized = tuple(normalize(convention.normalizer, slot, value) for value in alternatives)
    spelled = [
        tuple(value.lower() for value in values) if lower_case else values for values in (alternatives, normalized)
    ]
    answers = [answer for values in spelled for answer in (*((value,) for value in values), values)]
    for answer in (*answers, ()):
        if compare_states({slot: answer}, {slot: alternatives}, convention).score >= 1.0:
            return answer
    return spelled[0][:1]


def text_to_state(text: str) -> State:
    r"""Read text that `state_to_text` wrote: the exact inverse, strict about everything else.

    Args:
        text: A belief text.

    Returns:
        slot -> alternatives, in the order of the text.

    Raises:
        DataError: An empty field, a repeated slot, a second `=`, or a backslash before a character that needs none.
            Model output, which may hold any of these, is for `parse`.

    Example:
        >>> text_to_state("hotel-area = east ; hotel-name = a\\; b | ab")
        {'hotel-area': ['east'], 'hotel-name': ['a; b', 'ab']}
    """
    state: State = {}
    if not text.strip(_PADDING):
        return state
    for position, field in enumerate(_split(text, ";"), start=1):
        where = f"belief text, field {position} ({field.strip(_PADDING)!r})"
        slot_text, *value_texts = _split(field, "=")
        if len(value_texts) > 1:
            raise DataError(f"{where}: more than one '='; write a literal one as '\\='")
        slot = _unescape_strict(slot_text, where)
        if slot in state:
            raise DataError(f"{where}: the slot {slot!r} occurs twice; join its values with '|'")
        alternatives = _split(value_texts[0], "|") if value_texts else []
        state[slot] = [_unescape_strict(value, where) for value in alternatives]
    return state


def parse(text: str) -> State:
    r"""Read whatever a model wrote. Never raises, for any string.

    On well-formed text this is `text_to_state` without the slots that carry no value and without empty strings. Beyond
    that: a field without slot or value is dropped, of a repeated slot the last wins, `=` beyond the first and
    backslashes before ordinary characters are literal.

    Args:
        text: A generated belief text, possibly cut short or malformed.

    Returns:
        slot -> alternatives; every slot non-empty, with at least one non-empty value.

    Example:
        >>> parse("hotel-area=east; hotel-name = a=b ; hotel-st")
        {'hotel-area': ['east'], 'hotel-name': ['a=b']}
    """
    state: State = {}
    for field in _split(text, ";"):
        slot_text, *value_texts = _split(field, "=")
        slot = _unescape(slot_text)
        values = [_unescape(value) for value in _split("=".join(value_texts), "|")]
        values = [value for value in values if value]
        if slot and values:
            state[slot] = values
    return state


def state_to_row(state: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Turn a state into the row column `state`: a list of {slot, values} sorted by slot.

    Example:
        >>> state_to_row({"hotel-name": ["a", "b"], "hotel-area": ["east"]})
        [{'slot': 'hotel-area', 'values': ['east']}, {'slot': 'hotel-name', 'values': ['a', 'b']}]
    """
    return [{"slot": slot, "values": list(state[slot])} for slot in sorted(state)]


def state_from_row(column: Iterable[Mapping[str, Any]]) -> State:
    """Turn the row column `state` back into slot -> alternatives; the inverse of `state_to_row`.

    Example:
        >>> state_from_row([{"slot": "hotel-area", "values": ["east"]}])
        {'hotel-area': ['east']}
    """
    return {entry["slot"]: list(entry["values"]) for entry in column}


def _escape(string: str) -> str:
    if not string:
        return "\\e"
    escaped = string.translate(_TRANSLATION)
    if escaped.endswith(" "):
        escaped = escaped[:-1] + "\\_"
    if escaped.startswith(" "):
        escaped = "\\_" + escaped[1:]
    return escaped


def _split(text: str, mark: str) -> list[str]:
    """Split at every `mark` that no backslash precedes; escapes stay as they are."""
    if "\\" not in text:
        return text.split(mark)
    parts, start = [], 0
    for match in _DELIMITERS[mark].finditer(text):
        if match.group() == mark:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _unescape(field: str) -> str:
    field = field.strip(_PADDING)
    if "\\" not in field:
        return field
    return _ESCAPED.sub(lambda match: _MEANINGS.get(match.group(1), match.group()), field)


def _unescape_strict(field: str, where: str) -> str:
    field = field.strip(_PADDING)
    if not field:
        raise DataError(f"{where}: an empty slot or value; write an empty string as '\\e'")
    for match in _ESCAPED.finditer(field):
        if match.group(1) not in _MEANINGS:
            raise DataError(f"{where}: {match.group()!r} is not an escape; write a literal backslash as '\\\\'")
    return _unescape(field)
