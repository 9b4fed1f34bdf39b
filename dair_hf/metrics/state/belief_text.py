r"""Belief states as text, which models are trained on, and the parser of generated text.

A state maps slots to lists of values. Several values are alternatives: any of them is right, the first is preferred.

    {"hotel-area": ["east"], "hotel-name": ["warkworth house", "warkworth"]}
    hotel-area = east ; hotel-name = warkworth house | warkworth

The delimiters `;`, `=` and `|`, backslashes, line breaks and tabs are escaped by a backslash. A space at either end of
a string is written `\_`, an empty string `\e`. A slot without values stands alone, without `=`. Different states have
different texts, and plain values cost no extra token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_ESCAPES = {"\\": "\\\\", ";": "\\;", "=": "\\=", "|": "\\|", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TRANSLATION = str.maketrans(_ESCAPES)
_MEANINGS = {code[1]: character for character, code in _ESCAPES.items()} | {"_": " ", "e": ""}
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_DELIMITERS = {mark: re.compile(r"\\.|" + re.escape(mark), re.DOTALL) for mark in ";=|"}
# A slot may contain spaces, "hotel-price range = cheap", but alone it is more likely a field in another notation.
_NO_SLOT = re.compile(r"[:,]\s")
_NO_LONE_SLOT = re.compile(r"[\s:,|/&]")
_HOLDS_SLOT = re.compile(r"[\s,|/&]")  # between two `=`; "a=b" is a value
_PADDING = " \t\r\n"  # around a field; as part of a field it is escaped


def state_to_text(state: Mapping[str, Sequence[str]]) -> str:
    r"""Write a state, slot -> alternatives, as one line of text; the empty state is an empty text.

    Example:
        >>> state_to_text({"hotel-area": ["east"], "hotel-name": ["a; b", "ab"]})
        'hotel-area = east ; hotel-name = a\\; b | ab'
    """
    fields = []
    for slot, values in state.items():
        alternatives = " | ".join([_escape(value) for value in values])
        fields.append(f"{_escape(slot)} = {alternatives}" if values else _escape(slot))
    return " ; ".join(fields)


class Belief(NamedTuple):
    """State, and further findings from the text that it was read from.

    Attributes:
        state: Slot -> alternatives.
        answered: Whether a slot is filled or, for text, whether it is not blank.
        repeated: Fields (slot, alternatives) whose slot comes again later with other values, which `state` has.
        is_well_formed: Whether the text has the form of a state: some field has `=`, and no field seems to hold
            several, "hotel-area = east, hotel-stars = 4", or another notation, "hotel-area: east".
    """

    state: Mapping[str, Sequence[str]]
    answered: bool
    repeated: tuple[tuple[str, Sequence[str]], ...] = ()
    is_well_formed: bool = True

    @classmethod
    def of(cls, state: Mapping[str, Sequence[str]]) -> Belief:
        """Return a state that is not read from text."""
        return cls(state, any(value for values in state.values() for value in values))

    @classmethod
    def of_fields(cls, fields: Sequence[tuple[str, Sequence[str]]]) -> Belief:
        """Return the state of fields (slot, alternatives), of which a slot may have several."""
        state = dict(fields)
        return cls.of(state)._replace(repeated=tuple((slot, vs) for slot, vs in fields if vs != state[slot]))


def parse(text: str) -> dict[str, list[str]]:
    r"""Parse generated text into a state. Never raises.

    Reads what `state_to_text` wrote, without slots that have no value and without empty values. In other text a field
    without slot or value is dropped, a repeated slot keeps its last values, and `=` beyond the first and backslashes
    before ordinary characters are literal.

    Example:
        >>> parse("hotel-area=east; hotel-name = a=b ; hotel-st")
        {'hotel-area': ['east'], 'hotel-name': ['a=b']}
    """
    return dict(_fields(text))


def read_belief(text: str) -> Belief:
    """Parse generated text for a comparison with a gold state. Never raises.

    Evaluators compare sets of slots with values, so "hotel-area = east ; hotel-area = west" is wrong for any gold area.

    Example:
        >>> read_belief("hotel-area = east ; hotel-area = west")
        Belief(state={'hotel-area': ['west']}, answered=True, repeated=(('hotel-area', ['east']),), is_well_formed=True)
        >>> read_belief("hotel-area = east, hotel-stars = 4").is_well_formed
        False
    """
    answered = bool(text.strip(_PADDING))
    belief = Belief.of_fields(list(_fields(text)))
    return belief._replace(answered=answered, is_well_formed=not answered or _is_well_formed(text))


def _fields(text: str) -> Iterator[tuple[str, list[str]]]:
    for field in _split(text, ";"):
        slot_text, *value_texts = _split(field, "=")
        slot = _unescape(slot_text)
        values = [_unescape(value) for value in _split("=".join(value_texts), "|")]
        values = [value for value in values if value]
        if slot and values:
            yield slot, values


def _is_well_formed(text: str) -> bool:
    fields = [[part.strip(_PADDING) for part in _split(field, "=")] for field in _split(text, ";")]
    return any(len(parts) > 1 for parts in fields) and all(map(_is_field, fields))


def _is_field(parts: Sequence[str]) -> bool:
    """Return whether the parts between the `=` of a field seem to be one slot and its values; False if blank."""
    slot, *values = parts
    if not values:
        return not _NO_LONE_SLOT.search(slot)
    broken = any(mark in part for part in parts for mark in "\t\r\n")
    return bool(slot) and not broken and not _NO_SLOT.search(slot) and not any(map(_HOLDS_SLOT.search, values[:-1]))


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
