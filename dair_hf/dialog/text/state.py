r"""Belief states as text: written as training targets and parsed from generated text.

A state maps slots to lists of values. Several values are alternatives: any of them is right, the first is preferred.

    {"hotel-area": ["east"], "hotel-name": ["warkworth house", "warkworth"]}
    hotel-area = east ; hotel-name = warkworth house | warkworth

The delimiters `;`, `=` and `|`, backslashes, line breaks and tabs are escaped by a backslash. A space at either end of
a string is written `\_`, an empty string `\e`. A slot without values stands alone, without `=`. Different states have
different texts, and plain values cost no extra token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.matching import compare_states
from dair_hf.metrics.state.normalizers import normalize

State = dict[str, list[str]]

_ESCAPES = {"\\": "\\\\", ";": "\\;", "=": "\\=", "|": "\\|", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TRANSLATION = str.maketrans(_ESCAPES)
_MEANINGS = {code[1]: character for character, code in _ESCAPES.items()} | {"_": " ", "e": ""}
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_DELIMITERS = {mark: re.compile(r"\\.|" + re.escape(mark), re.DOTALL) for mark in ";=|"}
_PADDING = " \t\r\n"  # around a field; as part of a field it is escaped


def state_to_text(state: Mapping[str, Sequence[str]]) -> str:
    r"""Write a state as text.

    Args:
        state: Slot -> alternatives; the slots keep their order.

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
    """Write a state as the training target: text that a preset of the joint goal accuracy scores as right.

    For each slot this is the first alternative that the preset accepts by itself, or all alternatives if it demands
    all. Values are normalized if the preset accepts only normalized ones. Slots that the preset removes from gold
    states are left out.

    Args:
        state: Slot -> alternatives.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        lower_case: Write the values in lower case.

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
    """Return the first answer that the preset scores as right: one value, else all; without any, the first value."""
    _, convention = resolve_convention(preset)
    # Some evaluators normalize the gold values only, so that nothing but the normalized value is right.
    normalized = tuple(normalize(convention.normalizer, slot, value) for value in alternatives)
    spelled = [
        tuple(value.lower() for value in values) if lower_case else values for values in (alternatives, normalized)
    ]
    answers = [answer for values in spelled for answer in (*((value,) for value in values), values)]
    for answer in (*answers, ()):
        if compare_states({slot: answer}, {slot: alternatives}, convention).score >= 1.0:
            return answer
    return spelled[0][:1]


def parse(text: str) -> State:
    r"""Parse generated text into a state. Never raises.

    Reads what `state_to_text` wrote, without slots that have no value and without empty values. In other text a field
    without slot or value is dropped, a repeated slot keeps its last values, and `=` beyond the first and backslashes
    before ordinary characters are literal.

    Args:
        text: Belief text, possibly cut short or malformed.

    Returns:
        Slot -> alternatives. Slots and values are not empty.

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


def state_from_row(column: Iterable[Mapping[str, Any]]) -> State:
    """Convert the column `state` of a row into slot -> alternatives.

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
    """Split at every `mark` that is not escaped."""
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
