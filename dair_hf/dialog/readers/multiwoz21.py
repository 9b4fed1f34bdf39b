"""MultiWOZ 2.1: one object of dialogues, states under the `metadata` of the system turns, often tokenised text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from dair_hf.dialog.readers.report import ReadReport, check_text, member, objects, optional_list, strings
from dair_hf.dialog.readers.schema import add_names
from dair_hf.dialog.text.names import NameLinker, Span
from dair_hf.dialog.text.rows import (
    DONTCARE,
    NAME_SLOTS,
    PLACE_SLOTS,
    SYSTEM,
    USER,
    RowBuilder,
    Utterance,
)
from dair_hf.dialog.text.words import detokenise
from dair_hf.errors import DataError

TRACKED_SLOTS = frozenset(
    {
        *("attraction-area", "attraction-name", "attraction-type"),
        *("bus-arriveby", "bus-bookpeople", "bus-day", "bus-departure", "bus-destination", "bus-leaveat"),
        *("hospital-department", "police-name"),
        *("hotel-area", "hotel-bookday", "hotel-bookpeople", "hotel-bookstay", "hotel-internet", "hotel-name"),
        *("hotel-parking", "hotel-pricerange", "hotel-stars", "hotel-type"),
        *("restaurant-area", "restaurant-bookday", "restaurant-bookpeople", "restaurant-booktime"),
        *("restaurant-food", "restaurant-name", "restaurant-pricerange"),
        *("taxi-arriveby", "taxi-departure", "taxi-destination", "taxi-leaveat"),
        *("train-arriveby", "train-bookpeople", "train-bookticket", "train-day", "train-departure"),
        *("train-destination", "train-leaveat"),
    }
)
NAME_LIKE = frozenset({*NAME_SLOTS, *PLACE_SLOTS, "bus-departure", "bus-destination"})
NOT_SET = frozenset({"not mentioned", "none"})
_DONTCARE = re.compile(r"(?:i )?(?:do|does)(?: n[o']t|n['o]?t| not|nt) care|dontcare|dont ?care|do nt care")
_SPAN_SLOTS = {
    **{(domain, "Name"): f"{domain.lower()}-name" for domain in ("Hotel", "Restaurant", "Attraction")},
    **{(domain, "Dest"): f"{domain.lower()}-destination" for domain in ("Taxi", "Train")},
    **{(domain, "Depart"): f"{domain.lower()}-departure" for domain in ("Taxi", "Train")},
    ("Booking", "Name"): "",
}

State = dict[str, list[str]]


@lru_cache(maxsize=100_000)
def read_value(raw: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """One state value as its alternatives, preferred first, and the oddities met.

    `a|b` are alternatives; in `a>b` the first, in `a<b` the second is preferred. Lower-cased, put together again if it
    was tokenised; every spelling of "do not care" becomes "dontcare"; "not mentioned" and "none" give no alternative.

    Example:
        >>> read_value("christs college|saint catharines")
        (('christs college', 'saint catharines'), ('alternatives in one value',))
        >>> read_value("dont care")
        (('dontcare',), ("'do not care' in another spelling",))
    """
    oddities = []
    value = detokenise(raw.split())[0].lower()
    if value != raw.strip().lower():
        oddities.append("tokenised value")
    if value != detokenise(raw.split())[0]:
        oddities.append("value with capitals")
    parts = re.split(r"(?<=\S)[|<>](?=\S)", value)
    if len(parts) > 1:
        oddities.append("alternatives in one value")
        if "<" in value:
            parts.reverse()
    values = []
    for part in parts:
        part = part.strip()
        if _DONTCARE.fullmatch(part):
            if part != DONTCARE:
                oddities.append("'do not care' in another spelling")
            part = DONTCARE
        if part in NOT_SET:
            oddities.append(f"value {part!r}, read as not set")
        elif part and part not in values:
            values.append(part)
    return tuple(values), tuple(oddities)


@lru_cache(maxsize=10_000)
def _slot(domain: str, part: str, name: str) -> str:
    return f"{domain}-{'book' if part == 'book' else ''}{name}".lower()


def _field(value: Any, key: str, kind: type, where: str) -> Any:
    return member(value, key, kind, where, "MultiWOZ 2.1")


def _set_values(metadata: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for domain, parts in metadata.items():
        for part in ("semi", "book"):
            for name, value in _field(parts, part, dict, f"{where}, metadata.{domain}").items():
                if value == "" or name == "booked":
                    continue
                slot, position = _slot(domain, part, name), f"{where}, metadata.{domain}.{part}.{name}"
                if isinstance(value, list):
                    value = "|".join(strings(value, position))
                if not isinstance(value, str):
                    raise DataError(f"{position}: expected a string, found {value!r:.60}")
                check_text(value, position)
                if slot not in TRACKED_SLOTS and value not in NOT_SET:
                    known = sorted(slot for slot in TRACKED_SLOTS if slot.startswith(f"{domain}-"))
                    raise DataError(
                        f"{position}: unknown slot {slot!r} (value {value!r}); "
                        f"MultiWOZ tracks {', '.join(known) or 'no such domain'}"
                    )
                yield slot, value


def _read_state(metadata: Mapping[str, Any], where: str, oddities: Counter[str]) -> State:
    state: State = {}
    for slot, raw in _set_values(metadata, where):
        values, odd = read_value(raw)
        if odd:
            oddities.update(odd)
        if values:
            state[slot] = list(values)
    return state


def _booked(metadata: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for domain in ("hotel", "restaurant"):
        if domain not in metadata:
            continue
        place = f"{where}, metadata.{domain}.book"
        for booking, position in objects(metadata[domain]["book"], "booked", place, "MultiWOZ 2.1"):
            if "name" in booking:
                name = _field(booking, "name", str, position)
                yield f"{domain}-name", detokenise(name.split())[0].lower()


def _read_spans(
    turn: Mapping[str, Any], index: int, places: list[tuple[int, int]], report: ReadReport, where: str
) -> Iterator[Span]:
    for entry in optional_list(turn, "span_info", where, "MultiWOZ 2.1"):
        if not isinstance(entry, list) or tuple(map(type, entry)) != (str, str, str, int, int):
            report.skip("span without its five fields", where)
            continue
        act, name, value, first, last = entry
        check_text(value, f"{where}: 'span_info'")
        slot = _SPAN_SLOTS.get((act.partition("-")[0], name))
        if not 0 <= first <= last < len(places):
            if slot is not None:
                report.skip("span outside the text", f"{where}: {first}:{last}")
            continue
        value = detokenise(value.split())[0].lower()
        if not _DONTCARE.fullmatch(value):
            yield Span(slot, value, index, places[first][0], places[last][1])


def add_dialogue(builder: RowBuilder, report: ReadReport, name: str, dialogue: Any, label: str) -> None:
    """Add one dialogue of a `data.json` to the rows.

    The state after user turn `2 i` stands in the metadata of system turn `2 i + 1`; a user turn without an answer
    has no state and gives no row.

    Args:
        builder: Takes the rows.
        report: Counts what was found.
        name: Key of the dialogue, with or without ".json".
        dialogue: Its object, with `log`.
        label: The file, for messages.

    Raises:
        DataError: A key is missing, a state names an unknown slot, or the id was there before.
    """
    dialogue_id = name.removesuffix(".json")
    where = f"{label}: dialogue {dialogue_id!r}"
    check_text(dialogue_id, where)
    log = _field(dialogue, "log", list, where)
    utterances: list[Utterance] = []
    states: dict[int, State] = {}
    spans: list[Span] = []
    linker, oddities = NameLinker(), Counter[str]()
    booked: list[tuple[str, str]] = []
    for index, turn in enumerate(log):
        position = f"{where}, log[{index}]"
        text = _field(turn, "text", str, position)
        text, places = detokenise(text.split())
        metadata = _field(turn, "metadata", dict, position)
        if not text:
            report.normalise("utterance without text", f"{dialogue_id}, log[{index}]")
        utterances.append(Utterance(SYSTEM if index % 2 else USER, text))
        spans.extend(_read_spans(turn, index, places, report, position))
        if index % 2:
            states[index - 1] = _read_state(metadata, position, oddities)
            booked.extend(_booked(metadata, position))
    if len(log) % 2:
        report.skip("last user turn without an answer, so without a state", dialogue_id)
    if not states:
        report.skip("dialogue without a state", dialogue_id)
        return
    for oddity, count in oddities.items():
        report.normalise(oddity, dialogue_id, count)
    add_names(linker, states, NAME_LIKE)
    for slot, value in dict.fromkeys(booked):
        linker.add(slot, value, in_state=False)
    mentions, names = linker.link([utterance.text for utterance in utterances], spans, report, dialogue_id)
    try:
        builder.add_dialogue(dialogue_id, utterances, states, mentions, names)
    except DataError as error:
        raise DataError(f"{label}: {error}") from error
    report.dialogues += 1
    report.turns += len(states)
    report.states += sum(map(bool, states.values()))
