"""Reader of Schema-Guided Dialogue (SGD): rows per user turn, and banks of names that splits do not share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.readers.dialogues import ParsedDialogue, build_rows
from dair_hf.dialog.readers.json_values import member, objects, strings
from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.readers.schema import DIALOGUE_FILE, Schema, dialogues_in, full_slot, parse_dialogue, read_schema
from dair_hf.dialog.readers.splits import SPLITS, files_of_split, known_split
from dair_hf.dialog.text.spans import normalize_name
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.records import paused_gc
from dair_hf.metrics.state.normalizers import DONTCARE

KINDS = ("hotel", "restaurant", "attraction", "place")
# Service -> kind -> its slots, in SGD and in the five variants of its schema in SGD-X ("Hotels_15" is "Hotels_1").
_SLOTS = {
    "hotels": {
        "hotel": "accommodation_name business_name hotel hotel_name lodging_name name name_of_accommodation "
        "name_of_hotel name_of_the_resort name_or_alias place place_name",
        "place": "accommodation_city city destination hotel_area hotel_city hotel_locale hotel_location house_locale "
        "house_location housing_location locale_of_hotel location location_of_accommodation location_of_hotel "
        "name_of_city where_to whereabouts",
    },
    "restaurants": {
        "restaurant": "business_name establishment_name name name_of_business name_of_establishment "
        "name_of_restaurant restaurant restaurant_name title_of_eatery",
        "place": "city city_details city_of_establishment location location_city location_of_the_restaurant "
        "restaurant_city restaurant_location",
    },
    "travel": {
        "attraction": "attraction attraction_name attraction_title common_name_of_attraction name name_of_attraction",
        "place": "attraction_city attraction_town_location city_name location location_of_attraction site_location",
    },
    "buses": {
        "place": "arrival_city arriving_to city_departure_name city_destination city_destination_name city_from "
        "city_origin city_start departing_city departure departure_city departure_location destination "
        "destination_city destination_location end_destination end_route_city ending_city from_city from_location "
        "from_where origin start start_route starting_destination starting_point_city to to_city to_location "
        "to_where trip_destination",
    },
    "trains": {
        "place": "arrival_city arrival_trip_city departure_trip_city destination destination_city ending_city "
        "first_city from starting_city starting_point to train_departure",
    },
}
_KIND_OF = {
    (service, slot): kind
    for service, kinds in _SLOTS.items()
    for kind, slots in kinds.items()
    for slot in slots.split()
}

Bank = dict[str, dict[str, list[str]]]


def name_kind(slot: str) -> str | None:
    """Return the kind of name that a slot holds: hotel, restaurant, attraction, place (a town), or None."""
    service, _, name = slot.lower().partition("-")
    service = service.rpartition("_")[0] or service
    return _KIND_OF.get((service, name))


def _open(path: str | os.PathLike[str], split: str | None) -> tuple[Source, list[str]]:
    """Return the source and the names of its dialogue files; in a folder of SPLIT.zip files, that archive."""
    split, source = known_split(split), Source(path)
    if source.path.is_dir() and f"{split}.zip" in source.names:
        source = Source(source.path / f"{split}.zip")
    names = [name for name in source.names if DIALOGUE_FILE.fullmatch(PurePosixPath(name).name)]
    return source, files_of_split(source, names, split)


def _schema_of(source: Source, name: str) -> Schema:
    beside = (PurePosixPath(name).parent / "schema.json").as_posix()
    if beside not in source.names:
        raise DataError(f"{source.label(name)}: there is no schema.json beside it; SGD has one in each split's folder")
    return read_schema(source.json(beside), source.label(beside))


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
        DataError: There is nothing to read, a file is broken, a key is missing, a state has a slot that is not in the
            schema, or a dialogue id occurs twice. The message names file and position.

    Example:
        >>> rows, report = read_sgd("sgd", split="dev")  # doctest: +SKIP
    """
    source, names = _open(path, split)
    report = ReadReport()

    def parse() -> Iterator[ParsedDialogue]:
        schemas: dict[PurePosixPath, Schema] = {}
        for name in names:
            folder = PurePosixPath(name).parent
            if folder not in schemas:
                schemas[folder] = _schema_of(source, name)
            schema = schemas[folder]
            name_slots = frozenset(slot for slot in schema if name_kind(slot) not in (None, "place"))
            for where, dialogue in dialogues_in(source, name):
                if parsed := parse_dialogue(dialogue, schema, name_slots, report, where):
                    yield parsed

    return build_rows(parse(), report, f"{source.path}: split {split or 'all'!r}"), report


@lru_cache(maxsize=10_000)
def _kind(service: str, slot: str) -> str | None:
    return name_kind(full_slot(service, slot))


def _names_in(dialogue: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield kind and name from states, actions, spans and results of service calls."""
    for index, turn in enumerate(member(dialogue, "turns", list, where)):
        position = f"{where}, turns[{index}]"
        text = member(turn, "utterance", str, position)
        for number, frame in enumerate(member(turn, "frames", list, position)):
            frame_position = f"{position}, frames[{number}]"
            service = member(frame, "service", str, frame_position)
            for slot, values, field in _slot_values(frame, text, frame_position):
                if kind := _kind(service, slot):
                    names = (value.strip() for value in strings(values, field))
                    yield from ((kind, name) for name in names if name and name != DONTCARE)


def _slot_values(frame: dict[str, Any], text: str, where: str) -> Iterator[tuple[str, Any, str]]:
    """Yield slot, values and their position in the file."""
    if "state" in frame:
        state = member(frame, "state", dict, where)
        for slot, values in member(state, "slot_values", dict, f"{where}, state").items():
            yield slot, values, f"{where}, state.slot_values.{slot}"
    for act, position in objects(frame, "actions", where):
        if "slot" in act:
            slot = member(act, "slot", str, position)
            for key in ("values", "canonical_values"):
                if key in act:
                    yield slot, act[key], f"{position}.{key}"
    for span, position in objects(frame, "slots", where):
        slot = member(span, "slot", str, position)
        start, end = (member(span, key, int, position) for key in ("start", "exclusive_end"))
        if 0 <= start < end <= len(text):
            yield slot, [text[start:end]], position
    for result, position in objects(frame, "service_results", where):
        for slot, value in result.items():
            yield slot, [value], f"{position}.{slot}"


@paused_gc()
def read_entity_names(path: str | os.PathLike[str], split: str) -> dict[str, list[str]]:
    """Read all names of one split of SGD.

    Args:
        path: As for `read_sgd`.
        split: "train", "dev" or "test".

    Returns:
        Kind (hotel, restaurant, attraction, place) -> sorted names, each in its most frequent spelling.

    Raises:
        DataError: As for `read_sgd`.
    """
    source, files = _open(path, split)
    counts: dict[str, dict[str, dict[str, int]]] = {kind: {} for kind in KINDS}
    for file in files:
        for where, dialogue in dialogues_in(source, file):
            for kind, name in _names_in(dialogue, where):
                spellings = counts[kind].setdefault(normalize_name(name), {})
                spellings[name] = spellings.get(name, 0) + 1
    return {kind: sorted(max(s, key=s.__getitem__) for s in names.values()) for kind, names in counts.items()}


def build_bank(names: Mapping[str, Mapping[str, list[str]]]) -> tuple[Bank, Bank]:
    """Make splits disjoint: a name stays in the first split that has it, in any kind, case and white space.

    Args:
        names: Split -> kind -> names. The order of the splits is train, dev, test.

    Returns:
        Split -> kind -> sorted names, and in the same form the names removed from each split.

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
