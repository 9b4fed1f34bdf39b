"""Format of MultiWOZ 2.1: dialogues by id, states in the `metadata` of system turns, often tokenized text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dair_hf.dialog.linking.mentions import Annotation
from dair_hf.dialog.readers.dialogues import NOT_SET, ParsedDialogue, split_unset, unset_note
from dair_hf.dialog.readers.json_values import check_text, member, objects, optional_list, strings
from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.text.rows import PLACE_SLOTS, SYSTEM, USER, Utterance
from dair_hf.dialog.text.state import State
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS
from dair_hf.metrics.state.normalizers import DONTCARE

TRACKED_SLOTS = frozenset(
    f"{domain}-{name}"
    for domain, names in {
        "attraction": "area name type",
        "bus": "arriveby bookpeople day departure destination leaveat",
        "hospital": "department",
        "hotel": "area bookday bookpeople bookstay internet name parking pricerange stars type",
        "police": "name",
        "restaurant": "area bookday bookpeople booktime food name pricerange",
        "taxi": "arriveby departure destination leaveat",
        "train": "arriveby bookpeople bookticket day departure destination leaveat",
    }.items()
    for name in names.split()
)
NAME_LIKE_SLOTS = frozenset({*NAME_SLOTS, *PLACE_SLOTS, "bus-departure", "bus-destination"})
_DONTCARE = re.compile(r"(?:i )?(?:do|does) ?n['o]?t ?care")
_SPAN_SLOTS = {
    **{(domain, "Name"): f"{domain.lower()}-name" for domain in ("Hotel", "Restaurant", "Attraction")},
    **{(domain, "Dest"): f"{domain.lower()}-destination" for domain in ("Taxi", "Train")},
    **{(domain, "Depart"): f"{domain.lower()}-departure" for domain in ("Taxi", "Train")},
    ("Booking", "Name"): "",
}

_CLITICS = frozenset({"'s", "'m", "'d", "'re", "'ll", "'ve", "n't", "'t"})
_CLOSING = re.compile(r"[.,!?;:)]+")


def detokenize(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join tokenized text.

    Clitics ("did n't", "john 's", "queens '"), closing punctuation and brackets join their neighbor. Text that was
    never tokenized is unchanged, apart from runs of white space, which become one space.
    """
    text, spans, previous = "", [], ""
    for token in tokens:
        if previous not in ("", "(") and not _joins(previous, token):
            text += " "
        spans.append((len(text), len(text) + len(token)))
        text += token
        previous = token
    return text, spans


@lru_cache(maxsize=100_000)
def _joins(previous: str, token: str) -> bool:
    if token.lower() in _CLITICS:
        return previous[-1].isalnum()
    if token == "'":
        return previous[-1] in "sS"
    return _CLOSING.fullmatch(token) is not None


@lru_cache(maxsize=100_000)
def read_value(raw: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parse a value of a state.

    `a|b` are alternatives; in `a>b` the first is preferred, in `a<b` the second. Values are lower-cased and
    detokenized, every spelling of "do not care" becomes "dontcare", "not mentioned" and "none" give no alternative.
    """
    oddities = []
    plain = _plain(raw)
    value = plain.lower()
    if value != raw.strip().lower():
        oddities.append("tokenized value")
    if value != plain:
        oddities.append("value with capitals")
    parts = re.split(r"(?<=\S)[|<>](?=\S)", value)
    if len(parts) > 1:
        oddities.append("alternatives in one value")
        if "<" in value:
            parts.reverse()
    parts = [part.strip() for part in parts]
    if any(part != DONTCARE and _DONTCARE.fullmatch(part) for part in parts):
        oddities.append("'do not care' in another spelling")
    values, unset = split_unset(DONTCARE if _DONTCARE.fullmatch(part) else part for part in parts)
    return tuple(values), (*oddities, *map(unset_note, unset))


def _plain(text: str) -> str:
    return detokenize(text.split())[0]


@lru_cache(maxsize=10_000)
def _slot(domain: str, part: str, name: str) -> str:
    return f"{domain}-{'book' if part == 'book' else ''}{name}".lower()


def _set_values(metadata: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for domain, parts in metadata.items():
        for part in ("semi", "book"):
            for name, value in member(parts, part, dict, f"{where}, metadata.{domain}").items():
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


def _parse_state(metadata: Mapping[str, Any], where: str, oddities: Counter[str]) -> State:
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
        position = f"{where}, metadata.{domain}.book"
        for booking, booking_position in objects(metadata[domain]["book"], "booked", position):
            if "name" in booking:
                name = member(booking, "name", str, booking_position)
                yield f"{domain}-name", _plain(name).lower()


def _annotations(
    turn: Mapping[str, Any], index: int, tokens: Sequence[tuple[int, int]], report: ReadReport, where: str
) -> Iterator[Annotation]:
    for entry in optional_list(turn, "span_info", where):
        if not isinstance(entry, list) or tuple(map(type, entry)) != (str, str, str, int, int):
            report.skip("span without its five fields", where)
            continue
        act, name, value, first, last = entry
        check_text(value, f"{where}: 'span_info'")
        slot = _SPAN_SLOTS.get((act.partition("-")[0], name))
        if not 0 <= first <= last < len(tokens):
            if slot is not None:
                report.skip("span outside the text", f"{where}: {first}:{last}")
            continue
        value = _plain(value).lower()
        if not _DONTCARE.fullmatch(value):
            yield Annotation(slot, value, index, tokens[first][0], tokens[last][1])


def parse_dialogue(name: str, dialogue: Any, report: ReadReport, label: str) -> ParsedDialogue | None:
    """Parse one dialogue of a `data.json`.

    The state after user turn `2 i` is in the metadata of system turn `2 i + 1`. A user turn without an answer has no
    state and gives no row.
    """
    dialogue_id = name.removesuffix(".json")
    where = f"{label}: dialogue {dialogue_id!r}"
    check_text(dialogue_id, where)
    log = member(dialogue, "log", list, where)
    utterances: list[Utterance] = []
    states: dict[int, State] = {}
    annotations: list[Annotation] = []
    booked: list[tuple[str, str]] = []
    oddities: Counter[str] = Counter()
    for index, turn in enumerate(log):
        position = f"{where}, log[{index}]"
        text, tokens = detokenize(member(turn, "text", str, position).split())
        metadata = member(turn, "metadata", dict, position)
        if not text:
            report.normalize("utterance without text", f"{dialogue_id}, log[{index}]")
        utterances.append(Utterance(SYSTEM if index % 2 else USER, text))
        annotations.extend(_annotations(turn, index, tokens, report, position))
        if index % 2:
            states[index - 1] = _parse_state(metadata, position, oddities)
            booked.extend(_booked(metadata, position))
    if len(log) % 2:
        report.skip("last user turn without an answer, so without a state", dialogue_id)
    if not states:
        report.skip("dialogue without a state", dialogue_id)
        return None
    for oddity, count in oddities.items():
        report.normalize(oddity, dialogue_id, count)
    return ParsedDialogue(dialogue_id, where, utterances, states, NAME_LIKE_SLOTS, annotations, booked)
