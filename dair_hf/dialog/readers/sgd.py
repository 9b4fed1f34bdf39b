"""Reader of Schema-Guided Dialogue (SGD), whose format MultiWOZ 2.2 has too, and disjoint banks of its names.

Dialogues have turns, turns have frames of a service with its state, and spans are in characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.linking.mentions import Annotation
from dair_hf.dialog.readers.dialogues import ParsedDialogue, ReadReport, build_rows, split_unset
from dair_hf.dialog.readers.files import SPLITS, dialogues_in, files_of_split
from dair_hf.dialog.readers.shapes import check_json
from dair_hf.dialog.rows import USER, State, Utterance, normalize_name
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.records import paused_gc
from dair_hf.metrics.state.normalizers import DONTCARE

DIALOGUE_FILE = re.compile(r"dialogues_\d+\.json")
# Slot -> its possible values; empty if any value is allowed.
Schema = Mapping[str, frozenset[str]]
Bank = dict[str, dict[str, list[str]]]

# Shapes of the files. A span of MultiWOZ 2.2 that is copied from another slot has no place in the text.
_FRAME = {
    "service": str,
    "slots?": [{"slot": str, "start?": int, "exclusive_end?": int, "value?": (str, list)}],
    "state?": {"slot_values": {"*": [str]}},
}
# With what names are taken from besides states and spans.
_NAMING_FRAME = _FRAME | {
    "actions?": [{"slot?": str, "values?": [str], "canonical_values?": [str]}],
    "service_results?": [{"*": str}],
}
DIALOGUE, _NAMING_DIALOGUE = (
    {
        "dialogue_id": str,
        "turns": [{"speaker": frozenset({"USER", "SYSTEM", "user", "system"}), "utterance": str, "frames": [frame]}],
    }
    for frame in (_FRAME, _NAMING_FRAME)
)
_SCHEMA = [{"service_name": str, "slots": [{"name": str, "description?": str, "possible_values?": [str]}]}]

KINDS = ("hotel", "restaurant", "attraction", "place")
# Service -> kind of the names in it; buses and trains have places only. SGD-X numbers and describes them otherwise.
_SERVICES = {"hotels": "hotel", "restaurants": "restaurant", "travel": "attraction", "buses": "", "trains": ""}
# Words in the name or the description of a slot. A town has a name, too, and so do stations and streets.
_TOWN = re.compile(r"\b(?:city|town|location|locale|destination|departure|arrival|where|whereabouts)\b")
_NAME = re.compile(r"\b(?:name|title|called|goes by)\b")
_NAME_OF_TOWN = re.compile(r"\b(?:city|town)\b")
_OTHER = re.compile(r"address|street|phone|contact|call\b|station|termin|date|time\b|hour|check|arrival day|month")


@paused_gc()
def read_sgd(path: str | os.PathLike[str], split: str | None = None) -> tuple[Dataset, ReadReport]:
    """Read Schema-Guided Dialogue into rows, one per user turn.

    Slots begin with their service ("hotels_1-hotel_name"). The column `names` has hotels, restaurants and attractions.
    The state of a row is that of all services so far in the dialogue.

    Args:
        path: A folder or archive with `SPLIT/dialogues_NNN.json` and `SPLIT/schema.json`, a folder of
            `SPLIT.zip` (then with a split), or the folder or archive of one split.
        split: "train", "dev" (or "val", "validation") or "test", by the names of files and folders. None reads all.

    Returns:
        The rows, with `rows.FEATURES`, and counts of what was read, skipped and normalized.

    Raises:
        DataError: There is nothing to read, a file has another format, a state has a slot that is not in the schema,
            or a dialogue id occurs twice. The message names file and position.

    Example:
        >>> rows, report = read_sgd("sgd", split="dev")  # doctest: +SKIP
    """
    report = ReadReport()

    def parse() -> Iterator[ParsedDialogue | None]:
        for where, dialogue, schema, kinds in _dialogues(path, split, DIALOGUE):
            name_slots = frozenset(slot for slot, kind in kinds.items() if kind != "place")
            yield parse_schema_guided(dialogue, schema, name_slots, report, where)

    return build_rows(filter(None, parse()), report, f"{path}: split {split or 'all'!r}"), report


def _dialogues(
    path: str | os.PathLike[str], split: str | None, shape: Any
) -> Iterator[tuple[str, Any, Schema, dict[str, str]]]:
    """Yield position, content, schema and kinds of names (see `read_schema`) of each dialogue of a split.

    In a folder of SPLIT.zip files, that archive is read.
    """
    source = Source(path)
    archive = f"{SPLITS.get(split or '', split)}.zip"
    if source.path.is_dir() and archive in source.names:
        source = Source(source.path / archive)
    names = [name for name in source.names if DIALOGUE_FILE.fullmatch(PurePosixPath(name).name)]
    schemas = {}
    for name in files_of_split(source, names, split):
        folder = PurePosixPath(name).parent
        if folder not in schemas:
            schemas[folder] = read_schema(source, (folder / "schema.json").as_posix())
        for where, dialogue in dialogues_in(source, name, shape):
            yield where, dialogue, *schemas[folder]


def read_schema(source: Source, file: str) -> tuple[Schema, dict[str, str]]:
    """Read a `schema.json`: slot -> its possible values, and slot -> kind of the names that it holds."""
    services, label = source.json(file), source.label(file)
    check_json(services, _SCHEMA, label)
    values, kinds = {}, {}
    for service in services:
        for slot in service["slots"]:
            name, is_categorical = _full_slot(service["service_name"], slot["name"]), slot.get("is_categorical")
            values[name] = frozenset(slot.get("possible_values", ()) if is_categorical else ())
            if kind := None if is_categorical else _name_kind(name, slot.get("description", "")):
                kinds[name] = kind
    return values, kinds


def _name_kind(slot: str, description: str) -> str | None:
    """Return the kind of name that a slot holds: hotel, restaurant, attraction, place (a town), or None."""
    service, _, name = slot.partition("-")
    kind = _SERVICES.get(service.rpartition("_")[0])
    text = f"{name.replace('_', ' ')}: {description.lower()}"
    if kind is None or _OTHER.search(text):
        return None
    if kind and _NAME.search(text) and not _NAME_OF_TOWN.search(text):
        return kind
    return "place" if _TOWN.search(text) else None


def _full_slot(service: str, slot: str) -> str:
    """Return the name of a slot as rows have it."""
    return slot.lower() if slot.startswith(f"{service}-") else f"{service}-{slot}".lower()


def parse_schema_guided(
    dialogue: Mapping[str, Any], schema: Schema, name_slots: Collection[str], report: ReadReport, where: str
) -> ParsedDialogue | None:
    """Parse one dialogue of the shape `DIALOGUE`.

    A frame holds the state of one service; the state of a row is that of all services so far.
    """
    dialogue_id = dialogue["dialogue_id"].removesuffix(".json")
    where = f"{where} {dialogue_id!r}"
    utterances: list[Utterance] = []
    states: dict[int, State] = {}
    by_service: dict[str, State] = {}
    annotations: list[Annotation] = []
    for index, turn in enumerate(dialogue["turns"]):
        speaker, text, has_state = turn["speaker"].lower(), turn["utterance"], False
        utterances.append(Utterance(speaker, text))
        for number, frame in enumerate(turn["frames"]):
            position, service = f"{where}, turns[{index}].frames[{number}]", frame["service"]
            annotations.extend(_annotations(frame, index, text, name_slots, report, position))
            if speaker == USER and "state" in frame:
                by_service[service] = _parse_state(frame, schema, report, position)
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


def _parse_state(frame: Mapping[str, Any], schema: Schema, report: ReadReport, where: str) -> State:
    state: State = {}
    for slot, values in frame["state"]["slot_values"].items():
        name = _full_slot(frame["service"], slot)
        if name not in schema:
            known = [other for other in schema if other.startswith(f"{frame['service'].lower()}-")]
            raise DataError(f"{where}.state.slot_values: unknown slot {name!r}; the schema has {known} of its service")
        kept, notes = split_unset(values, schema[name])
        if kept:
            state[name] = kept
        for note in notes:
            report.normalize(note, f"{where}: {name}")
        if schema[name] and not schema[name].issuperset(set(kept) - {DONTCARE}):
            report.normalize("value that the schema does not list, kept", f"{where}: {name} = {kept}")
    return state


def _annotations(
    frame: Mapping[str, Any], turn: int, text: str, name_slots: Collection[str], report: ReadReport, where: str
) -> Iterator[Annotation]:
    for span in frame.get("slots", ()):
        if not {"start", "exclusive_end"} <= span.keys():
            continue
        slot, start, end = _full_slot(frame["service"], span["slot"]), span["start"], span["exclusive_end"]
        if not 0 <= start < end <= len(text):
            if slot in name_slots:
                report.skip("span outside the text", f"{where}: {start}:{end}")
            continue
        value = span.get("value")
        value = value if isinstance(value, str) else text[start:end]
        yield Annotation(slot if slot in name_slots else None, value, turn, start, end)


@paused_gc()
def read_entity_names(path: str | os.PathLike[str], split: str) -> dict[str, list[str]]:
    """Read all names of one split of SGD: kind (one of `KINDS`) -> sorted names, each in its most frequent spelling."""
    counts: dict[str, dict[str, dict[str, int]]] = {kind: {} for kind in KINDS}
    for _, dialogue, _, kinds in _dialogues(path, split, _NAMING_DIALOGUE):
        for kind, name in _names_in(dialogue, kinds):
            spellings = counts[kind].setdefault(normalize_name(name), {})
            spellings[name] = spellings.get(name, 0) + 1
    return {kind: sorted(max(s, key=s.__getitem__) for s in names.values()) for kind, names in counts.items()}


def _names_in(dialogue: Mapping[str, Any], kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield kind and name from states, actions, spans and results of service calls."""
    for turn in dialogue["turns"]:
        for frame in turn["frames"]:
            for slot, values in _slot_values(frame, turn["utterance"]):
                if kind := kinds.get(_full_slot(frame["service"], slot)):
                    names = (value.strip() for value in values)
                    yield from ((kind, name) for name in names if name and name != DONTCARE)


def _slot_values(frame: Mapping[str, Any], text: str) -> Iterator[tuple[str, Iterable[str]]]:
    yield from frame.get("state", {}).get("slot_values", {}).items()
    for act in frame.get("actions", ()):
        yield from ((act["slot"], act.get(key, ())) for key in ("values", "canonical_values") if "slot" in act)
    for span in frame.get("slots", ()):
        start, end = span.get("start", 0), span.get("exclusive_end", 0)
        if 0 <= start < end <= len(text):
            yield span["slot"], [text[start:end]]
    for result in frame.get("service_results", ()):
        yield from ((slot, [value]) for slot, value in result.items())


def build_bank(names: Mapping[str, Mapping[str, list[str]]]) -> tuple[Bank, Bank]:
    """Make splits disjoint: a name stays in the first split that has it, in any kind, case and white space.

    Takes and returns split -> kind -> names, and returns in the same form the names removed from each split.

    Example:
        >>> bank, removed = build_bank({"train": {"hotel": ["Oak"]}, "test": {"hotel": ["OAK", "Elm"]}})
        >>> bank["test"], removed["test"]
        ({'hotel': ['Elm']}, {'hotel': ['OAK']})
    """
    bank: Bank = {}
    removed: Bank = {}
    earlier: set[str] = set()
    for split in sorted(names, key=[*SPLITS].index):
        bank[split], removed[split] = (
            {
                kind: sorted(name for name in of_kind if (normalize_name(name) in earlier) is is_removed)
                for kind, of_kind in names[split].items()
            }
            for is_removed in (False, True)
        )
        earlier |= {normalize_name(name) for of_kind in names[split].values() for name in of_kind}
    return bank, removed
