"""Dialogues in the schema-guided format, which SGD and MultiWOZ 2.2 share: turns, frames, character spans."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dair_hf.dialog.readers.report import ReadReport, member, objects, strings
from dair_hf.dialog.text.names import NameLinker, Span
from dair_hf.dialog.text.rows import DONTCARE, SYSTEM, USER, RowBuilder, Utterance
from dair_hf.dialog.text.spelling import kind_of
from dair_hf.errors import DataError


@dataclass(frozen=True)
class Schema:
    """The slots that states may name.

    Attributes:
        slots: Slot -> its possible values, empty where any value goes.
    """

    slots: Mapping[str, frozenset[str]]


def full_slot(service: str, slot: str) -> str:
    """The slot's name in a row.

    Example:
        >>> full_slot("Hotels_1", "hotel_name"), full_slot("hotel", "hotel-name")
        ('hotels_1-hotel_name', 'hotel-name')
    """
    return slot.lower() if slot.startswith(f"{service}-") else f"{service}-{slot}".lower()


def _field(value: Any, key: str, kind: type, where: str) -> Any:
    return member(value, key, kind, where, "schema-guided dialogues")


def read_schema(services: Any, label: str) -> Schema:
    """Read the content of a `schema.json`.

    Args:
        services: The parsed file: a list of services with their slots.
        label: The file, for messages.

    Raises:
        DataError: It is not such a list, or a key is missing.

    Example:
        >>> slot = {"name": "area", "is_categorical": True, "possible_values": ["east"]}
        >>> read_schema([{"service_name": "Hotels_1", "slots": [slot]}], "schema.json").slots
        {'hotels_1-area': frozenset({'east'})}
    """
    if not isinstance(services, list):
        raise DataError(f"{label}: holds {type(services).__name__}, expected a list of services")
    slots: dict[str, frozenset[str]] = {}
    for index, service in enumerate(services):
        where = f"{label}: service [{index}]"
        name = _field(service, "service_name", str, where)
        for number, slot in enumerate(_field(service, "slots", list, where)):
            place = f"{where}, slots[{number}]"
            full = full_slot(name, _field(slot, "name", str, place))
            values = slot.get("possible_values", []) if slot.get("is_categorical") else []
            slots[full] = frozenset(strings(values, f"{place}.possible_values"))
    return Schema(slots)


def _read_state(
    frame: Mapping[str, Any], service: str, schema: Schema, report: ReadReport, where: str
) -> dict[str, list[str]]:
    state = {}
    for slot, values in _field(_field(frame, "state", dict, where), "slot_values", dict, f"{where}, state").items():
        name = full_slot(service, slot)
        if name not in schema.slots:
            known = [slot for slot in schema.slots if slot.startswith(f"{service.lower()}-")]
            raise DataError(
                f"{where}, state.slot_values: unknown slot {name!r}; "
                f"the schema has {', '.join(known) or 'no such service'}"
            )
        if strings(values, f"{where}, state.slot_values.{slot}"):
            state[name] = list(dict.fromkeys(values))
        if schema.slots[name] and not schema.slots[name].issuperset(set(values) - {DONTCARE}):
            report.normalise("value that the schema does not list, kept", f"{where}: {name} = {values}")
    return state


def _read_spans(
    frame: Mapping[str, Any],
    service: str,
    index: int,
    text: str,
    name_like: Collection[str],
    report: ReadReport,
    where: str,
) -> Iterator[Span]:
    for entry, position in objects(frame, "slots", where, "schema-guided dialogues"):
        slot = full_slot(service, _field(entry, "slot", str, position))
        if "start" not in entry:
            continue  # MultiWOZ 2.2 marks a value carried over from another slot by "copy_from", without a place
        start, end = _field(entry, "start", int, position), _field(entry, "exclusive_end", int, position)
        if not 0 <= start < end <= len(text):
            if slot in name_like:
                report.skip("span outside the text", f"{where}: {start}:{end}")
            continue
        value = _field(entry, "value", str, position) if "value" in entry else text[start:end]
        yield Span(slot if slot in name_like else None, value, index, start, end)


def add_dialogue(
    builder: RowBuilder, report: ReadReport, dialogue: Any, schema: Schema, where: str, name_like: Collection[str]
) -> None:
    """Add one schema-guided dialogue to the rows.

    A frame holds the state of one service; the row's state is that of all services met so far.

    Args:
        builder: Takes the rows.
        report: Counts what was found.
        dialogue: Its object, with `dialogue_id` and `turns`.
        schema: The slots that may occur.
        where: File and position, for messages.
        name_like: Slots that hold names or places.

    Raises:
        DataError: A key is missing, a speaker or slot is unknown, or the id was there before.
    """
    dialogue_id = _field(dialogue, "dialogue_id", str, where).removesuffix(".json")
    where = f"{where} {dialogue_id!r}"
    utterances: list[Utterance] = []
    states: dict[int, dict[str, list[str]]] = {}
    by_service: dict[str, dict[str, list[str]]] = {}
    spans: list[Span] = []
    for index, turn in enumerate(_field(dialogue, "turns", list, where)):
        position = f"{where}, turns[{index}]"
        speaker = _field(turn, "speaker", str, position).lower()
        if speaker not in (USER, SYSTEM):
            raise DataError(f"{position}: speaker {turn['speaker']!r} is unknown; expected USER or SYSTEM")
        text = _field(turn, "utterance", str, position)
        utterances.append(Utterance(speaker, text))
        has_state = False
        for number, frame in enumerate(_field(turn, "frames", list, position)):
            place = f"{position}, frames[{number}]"
            service = _field(frame, "service", str, place)
            spans.extend(_read_spans(frame, service, index, text, name_like, report, place))
            if speaker == USER and "state" in frame:
                by_service[service] = _read_state(frame, service, schema, report, place)
                has_state = True
        if speaker == USER:
            if not has_state:
                report.normalise(
                    "user turn without a state of its own: the last one stands", f"{dialogue_id}, turn {index}"
                )
            states[index] = {slot: values for state in by_service.values() for slot, values in state.items()}
    if not states:
        report.skip("dialogue without a user turn", dialogue_id)
        return
    linker = NameLinker()
    add_names(linker, states, name_like)
    mentions, names = linker.link([utterance.text for utterance in utterances], spans, report, dialogue_id)
    try:
        builder.add_dialogue(dialogue_id, utterances, states, mentions, names)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    report.dialogues += 1
    report.turns += len(states)
    report.states += sum(map(bool, states.values()))


def add_names(linker: NameLinker, states: Mapping[int, Mapping[str, list[str]]], name_like: Collection[str]) -> None:
    """Give a linker all names of a dialogue's states: names first, so that a place that is one refers to it."""
    for places in (False, True):
        for index in sorted(states):
            for slot, values in states[index].items():
                if slot in name_like and (kind_of(slot) == "place") is places:
                    for value in values:
                        # "not(x)" is how some 2.1 states say that x is not wanted.
                        if value != DONTCARE and not value.startswith("not("):
                            linker.add(slot, value)
    pairs = ((slot, value) for state in states.values() for slot, values in state.items() for value in values)
    for other in dict.fromkeys(value for slot, value in pairs if slot not in name_like):
        linker.add_other(other)
