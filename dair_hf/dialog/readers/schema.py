"""Schema-guided format of SGD and MultiWOZ 2.2: turns, frames and character spans."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dair_hf.dialog.linking.mentions import Annotation
from dair_hf.dialog.readers.dialogues import ParsedDialogue, split_unset, unset_note
from dair_hf.dialog.readers.json_values import member, objects, strings
from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.text.rows import SYSTEM, USER, Utterance
from dair_hf.dialog.text.state import State
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.metrics.state.normalizers import DONTCARE

DIALOGUE_FILE = re.compile(r"dialogues_\d+\.json")
# Slot -> its possible values; empty if any value is allowed.
Schema = Mapping[str, frozenset[str]]


def full_slot(service: str, slot: str) -> str:
    """Return the name of a slot as rows have it."""
    return slot.lower() if slot.startswith(f"{service}-") else f"{service}-{slot}".lower()


def read_schema(services: Any, label: str) -> Schema:
    """Read a `schema.json`.

    Example:
        >>> slot = {"name": "area", "is_categorical": True, "possible_values": ["east"]}
        >>> read_schema([{"service_name": "Hotels_1", "slots": [slot]}], "schema.json")
        {'hotels_1-area': frozenset({'east'})}
    """
    if not isinstance(services, list):
        raise DataError(f"{label}: holds {type(services).__name__}, expected a list of services")
    slots: dict[str, frozenset[str]] = {}
    for index, service in enumerate(services):
        where = f"{label}: service [{index}]"
        name = member(service, "service_name", str, where)
        for number, slot in enumerate(member(service, "slots", list, where)):
            position = f"{where}, slots[{number}]"
            full = full_slot(name, member(slot, "name", str, position))
            values = slot.get("possible_values", []) if slot.get("is_categorical") else []
            slots[full] = frozenset(strings(values, f"{position}.possible_values"))
    return slots


def dialogues_in(source: Source, file: str) -> Iterator[tuple[str, Any]]:
    """Yield position and content of each dialogue of a file."""
    dialogues = source.json(file)
    if not isinstance(dialogues, list):
        raise DataError(f"{source.label(file)}: holds {type(dialogues).__name__}, expected a list of dialogues")
    for index, dialogue in enumerate(dialogues):
        yield f"{source.label(file)}: dialogue [{index}]", dialogue


def _parse_state(frame: Mapping[str, Any], service: str, schema: Schema, report: ReadReport, where: str) -> State:
    state: State = {}
    for slot, values in member(member(frame, "state", dict, where), "slot_values", dict, f"{where}, state").items():
        name = full_slot(service, slot)
        if name not in schema:
            known = [slot for slot in schema if slot.startswith(f"{service.lower()}-")]
            raise DataError(
                f"{where}, state.slot_values: unknown slot {name!r}; "
                f"the schema has {', '.join(known) or 'no such service'}"
            )
        kept, unset = split_unset(strings(values, f"{where}, state.slot_values.{slot}"), schema[name])
        if kept:
            state[name] = kept
        for value in unset:
            report.normalize(unset_note(value), f"{where}: {name}")
        if schema[name] and not schema[name].issuperset(set(kept) - {DONTCARE}):
            report.normalize("value that the schema does not list, kept", f"{where}: {name} = {kept}")
    return state


def _annotations(
    frame: Mapping[str, Any],
    service: str,
    turn: int,
    text: str,
    name_slots: Collection[str],
    report: ReadReport,
    where: str,
) -> Iterator[Annotation]:
    for entry, position in objects(frame, "slots", where):
        slot = full_slot(service, member(entry, "slot", str, position))
        if "start" not in entry:
            continue  # MultiWOZ 2.2 marks a value copied from another slot by "copy_from", without a span
        start, end = member(entry, "start", int, position), member(entry, "exclusive_end", int, position)
        if not 0 <= start < end <= len(text):
            if slot in name_slots:
                report.skip("span outside the text", f"{where}: {start}:{end}")
            continue
        value = member(entry, "value", str, position) if "value" in entry else text[start:end]
        yield Annotation(slot if slot in name_slots else None, value, turn, start, end)


def parse_dialogue(
    dialogue: Any, schema: Schema, name_slots: Collection[str], report: ReadReport, where: str
) -> ParsedDialogue | None:
    """Parse one schema-guided dialogue.

    A frame holds the state of one service; the state of a row is that of all services so far.
    """
    dialogue_id = member(dialogue, "dialogue_id", str, where).removesuffix(".json")
    where = f"{where} {dialogue_id!r}"
    utterances: list[Utterance] = []
    states: dict[int, State] = {}
    by_service: dict[str, State] = {}
    annotations: list[Annotation] = []
    for index, turn in enumerate(member(dialogue, "turns", list, where)):
        position = f"{where}, turns[{index}]"
        speaker = member(turn, "speaker", str, position).lower()
        if speaker not in (USER, SYSTEM):
            raise DataError(f"{position}: speaker {turn['speaker']!r} is unknown; expected USER or SYSTEM")
        text = member(turn, "utterance", str, position)
        utterances.append(Utterance(speaker, text))
        has_state = False
        for number, frame in enumerate(member(turn, "frames", list, position)):
            frame_position = f"{position}, frames[{number}]"
            service = member(frame, "service", str, frame_position)
            annotations.extend(_annotations(frame, service, index, text, name_slots, report, frame_position))
            if speaker == USER and "state" in frame:
                by_service[service] = _parse_state(frame, service, schema, report, frame_position)
                has_state = True
        if speaker == USER:
            if not has_state:
                report.normalize(
                    "user turn without a state of its own, read with the previous one", f"{dialogue_id}, turn {index}"
                )
            states[index] = {slot: values for state in by_service.values() for slot, values in state.items()}
    if not states:
        report.skip("dialogue without a user turn", dialogue_id)
        return None
    return ParsedDialogue(dialogue_id, where, utterances, states, name_slots, annotations)
