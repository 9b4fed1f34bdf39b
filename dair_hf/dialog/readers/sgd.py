"""Schema-Guided Dialogue: rows per user turn, and banks of entity names that the splits do not share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.readers.report import ReadReport, collector_paused, member, objects, strings
from dair_hf.dialog.readers.schema import Schema, add_dialogue, full_slot, read_schema
from dair_hf.dialog.text.rows import RowBuilder
from dair_hf.errors import DataError
from dair_hf.io.archives import Source

SPLITS = ("train", "dev", "test")
KINDS = ("hotel", "restaurant", "attraction", "place")
_DIALOGUES = re.compile(r"dialogues_\d+\.json")
_NAME_SLOTS = {
    ("hotels", "hotel_name"): "hotel",
    ("hotels", "place_name"): "hotel",
    ("restaurants", "restaurant_name"): "restaurant",
    ("travel", "attraction_name"): "attraction",
}
_PLACE_SLOTS = {
    ("buses", "origin"),
    ("buses", "destination"),
    ("buses", "from_location"),
    ("buses", "to_location"),
    ("buses", "from_city"),
    ("buses", "to_city"),
    ("hotels", "destination"),
    ("hotels", "location"),
    ("hotels", "where_to"),
    ("restaurants", "city"),
    ("restaurants", "location"),
    ("travel", "location"),
    ("trains", "from"),
    ("trains", "to"),
}

Bank = dict[str, dict[str, list[str]]]


def name_kind(slot: str) -> str | None:
    """What kind of name a slot holds: hotel, restaurant, attraction, place (towns), or None.

    Example:
        >>> name_kind("hotels_4-place_name"), name_kind("buses_1-from_location"), name_kind("hotels_1-check_in_date")
        ('hotel', 'place', None)
    """
    service, _, name = slot.lower().partition("-")
    key = (service.rpartition("_")[0] or service, name)
    return _NAME_SLOTS.get(key) or ("place" if key in _PLACE_SLOTS else None)


def _open(path: str | os.PathLike[str], split: str | None) -> tuple[Source, list[str]]:
    """The source and its dialogue files; a folder of SPLIT.zip files counts as the archive of the split asked for."""
    _check_split(split)
    source = Source(path)
    if source.path.is_dir() and split is not None and f"{split}.zip" in source.names:
        source = Source(source.path / f"{split}.zip")
    names = [name for name in source.names if _DIALOGUES.fullmatch(PurePosixPath(name).name)]
    if split is not None:
        folders = {PurePosixPath(name).parent.name for name in names}
        if folders & set(SPLITS):
            names = [name for name in names if PurePosixPath(name).parent.name == split]
        elif source.path.name.split(".")[0] in {*SPLITS} - {split}:
            names = []
    if not names:
        raise DataError(
            f"{source.path}: holds no dialogues_NNN.json of split {split or 'all'!r} "
            f"(found {', '.join(source.names[:5]) or 'nothing'}); check path and split"
        )
    return source, names


def _schema_of(source: Source, name: str) -> tuple[Schema, str]:
    beside = (PurePosixPath(name).parent / "schema.json").as_posix()
    if beside not in source.names:
        raise DataError(f"{source.label(name)}: there is no schema.json beside it; SGD has one in each split's folder")
    return read_schema(source.json(beside), source.label(beside)), beside


def _dialogues(source: Source, name: str) -> list[Any]:
    dialogues = source.json(name)
    if not isinstance(dialogues, list):
        raise DataError(f"{source.label(name)}: holds {type(dialogues).__name__}, expected a list of dialogues")
    return dialogues


@collector_paused()
def read_sgd(path: str | os.PathLike[str], split: str | None = None) -> tuple[Dataset, ReadReport]:
    """Read Schema-Guided Dialogue into rows, one per user turn.

    Slots keep their service's suffix ("hotels_1-hotel_name"); `names` holds hotels, restaurants and attractions under
    those slots. A frame holds one service; the row's state is that of all services met so far in the dialogue.

    Args:
        path: A folder or archive with `SPLIT/dialogues_NNN.json` and `SPLIT/schema.json`, a folder of
            `SPLIT.zip` (then with a split), or the folder or archive of one split.
        split: "train", "dev" or "test"; None reads everything there is.

    Returns:
        The rows, with `rows.FEATURES`, and what was found, skipped and normalised.

    Raises:
        DataError: Nothing readable is there, a file is broken, a key is missing, a state names a slot that the schema
            does not have, or a dialogue id occurs twice. The message says file and position.

    Example:
        >>> rows, report = read_sgd("sgd", split="dev")  # doctest: +SKIP
    """
    source, names = _open(path, split)
    builder, report = RowBuilder(), ReadReport()
    schemas: dict[str, Schema] = {}
    for name in names:
        folder = str(PurePosixPath(name).parent)
        if folder not in schemas:
            schemas[folder], _ = _schema_of(source, name)
        schema = schemas[folder]
        name_like = frozenset(slot for slot in schema.slots if name_kind(slot) not in (None, "place"))
        for index, dialogue in enumerate(_dialogues(source, name)):
            where = f"{source.label(name)}: dialogue [{index}]"
            add_dialogue(builder, report, dialogue, schema, where, name_like)
    if not len(builder):
        raise DataError(f"{source.path}: split {split or 'all'!r} holds no user turn; check path and split")
    return builder.build(), report


def _check_split(split: str | None) -> None:
    if split is not None and split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")


@lru_cache(maxsize=10_000)
def _kind(service: str, slot: str) -> str | None:
    return name_kind(full_slot(service, slot))


def _names_in(dialogue: Any, where: str) -> Iterator[tuple[str, str]]:
    """Kind and name, wherever a frame states one: state, actions, spans, results of the service calls."""
    for index, turn in enumerate(_field(dialogue, "turns", list, where)):
        position = f"{where}, turns[{index}]"
        text = _field(turn, "utterance", str, position)
        for number, frame in enumerate(_field(turn, "frames", list, position)):
            place = f"{position}, frames[{number}]"
            for kind, values, field in _stated(frame, _field(frame, "service", str, place), text, place):
                names = (value.strip() for value in strings(values, field))
                yield from ((kind, name) for name in names if name and name != "dontcare")


def _stated(frame: dict[str, Any], service: str, text: str, where: str) -> Iterator[tuple[str, Any, str]]:
    """Kind, values and where they stand, of every slot for names that a frame fills."""
    if "state" in frame:
        state = _field(frame, "state", dict, where)
        for slot, values in _field(state, "slot_values", dict, f"{where}, state").items():
            if kind := _kind(service, slot):
                yield kind, values, f"{where}, state.slot_values.{slot}"
    for act, place in objects(frame, "actions", where, "SGD"):
        if "slot" in act and (kind := _kind(service, _field(act, "slot", str, place))):
            for key in ("values", "canonical_values"):
                if key in act:
                    yield kind, act[key], f"{place}.{key}"
    for span, place in objects(frame, "slots", where, "SGD"):
        slot = _field(span, "slot", str, place)
        start, end = (_field(span, key, int, place) for key in ("start", "exclusive_end"))
        if 0 <= start < end <= len(text) and (kind := _kind(service, slot)):
            yield kind, [text[start:end]], place
    for result, place in objects(frame, "service_results", where, "SGD"):
        for slot, value in result.items():
            if kind := _kind(service, slot):
                yield kind, [value], f"{place}.{slot}"


def _field(value: Any, key: str, kind: type, where: str) -> Any:
    return member(value, key, kind, where, "SGD")


@collector_paused()
def read_entity_names(path: str | os.PathLike[str], split: str) -> dict[str, list[str]]:
    """All names that one split of SGD states, by kind.

    Args:
        path: As for `read_sgd`.
        split: "train", "dev" or "test".

    Returns:
        Kind (hotel, restaurant, attraction, place) -> names as they are spelled there, the most frequent spelling of
        each, sorted.

    Raises:
        DataError: As for `read_sgd`.
    """
    source, files = _open(path, split)
    counts: dict[str, dict[str, dict[str, int]]] = {kind: {} for kind in KINDS}
    for file in files:
        for index, dialogue in enumerate(_dialogues(source, file)):
            for kind, name in _names_in(dialogue, f"{source.label(file)}: dialogue [{index}]"):
                spellings = counts[kind].setdefault(name.casefold(), {})
                spellings[name] = spellings.get(name, 0) + 1
    return {kind: sorted(max(s, key=s.__getitem__) for s in found.values()) for kind, found in counts.items()}


def build_bank(names: Mapping[str, Mapping[str, list[str]]]) -> tuple[Bank, dict[str, int]]:
    """Make the splits disjoint: a name belongs to the first split that has it, whatever its kind or case there.

    Args:
        names: Split -> kind -> names. Splits are taken in the order train, dev, test.

    Returns:
        Split -> kind -> sorted names, and split -> how many names were removed from it.

    Example:
        >>> build_bank({"train": {"hotel": ["Oak"]}, "test": {"hotel": ["OAK", "Elm"]}})
        ({'train': {'hotel': ['Oak']}, 'test': {'hotel': ['Elm']}}, {'train': 0, 'test': 1})
    """
    bank: Bank = {}
    removed: dict[str, int] = {}
    earlier: set[str] = set()
    for split in sorted(names, key=SPLITS.index):
        here = {name.casefold() for found in names[split].values() for name in found}
        bank[split] = {
            kind: sorted(name for name in found if name.casefold() not in earlier)
            for kind, found in names[split].items()
        }
        removed[split] = sum(len(found) for found in names[split].values()) - sum(map(len, bank[split].values()))
        earlier |= here
    return bank, removed
