"""Files of predictions as the published trackers and evaluators write them, read into items.

Slots are spelled as in MultiWOZ 2.2 ("hotel-bookday"), except in its own files, and ids as there ("MUL0003"). Turns
count those of the user.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import decode_utf8, read_bytes
from dair_hf.metrics.items import Item, parse_item, read_item, read_values
from dair_hf.metrics.state.belief_text import Belief
from dair_hf.metrics.state.matching import multiwoz_slot

Fields = Iterator[tuple[str, Any]]
_TAG = re.compile(r"<[^<>]*>")  # "<|belief|>", "<sos_b>", "</bs>"
_UBAR_DOMAIN = re.compile(r"\[(\w+)\]")
_UBAR_SLOTS = frozenset(
    "type parking pricerange internet stay day people area stars name leave destination departure arrive department "
    "food time car address postcode phone reference id price".split()
)
_CONVLAB = re.compile(r"\[([^\]]*)\](?:\[([^\]]*)\]|\()")
# Keys between a domain and its slots, and keys of a frame or a domain that are no slots.
_GROUPS = frozenset({"semi", "state", "slot_values", "slots_values"})
_NO_SLOTS = frozenset({"service", "slots", "actions", "active_intent", "requested_slots", "booked", "act"})


def _spaced(text: str) -> Fields:
    """Read "hotel area east, hotel book day monday" (SimpleTOD, ParlAI)."""
    for field in _TAG.sub(" ", text).split(","):
        domain, *words = field.split() or [""]
        size = 2 if words[:1] == ["book"] else 1
        if domain.isalpha() and len(words) > size:
            yield f"{domain}-{' '.join(words[:size])}", " ".join(words[size:])
        elif domain:
            yield field.strip(), field.strip()  # no slot with a value, which is wrong


def _bracketed(text: str) -> Fields:
    """Read "[hotel] area east name warkworth house [train] leave 10:00" (UBAR)."""
    domain, slot, words = "", "", list[str]()
    for word in (*_TAG.sub(" ", text).split(), ""):
        heading = _UBAR_DOMAIN.fullmatch(word)
        if heading or word in _UBAR_SLOTS or not word:
            if slot:
                yield f"{domain}-{slot}", " ".join(words)
            domain, slot, words = heading[1] if heading else domain, "" if heading else word, []
        else:
            words.append(word)


def _nested(text: str) -> Fields:
    """Read "[hotel]([area][east],[name][warkworth house]);[train]([leave at][10:00])" (T5 of ConvLab-3)."""
    domain = ""
    for name, value in _CONVLAB.findall(text):
        if value:
            yield f"{domain}-{name}", value
        else:
            domain = name


def _hyphenated(text: str) -> Fields:
    """Read "hotel-area-east" (TRADE)."""
    domain, *rest = text.split("-", 2)
    yield (f"{domain}-{rest[0]}", rest[1]) if len(rest) == 2 else (text, text)


def _fields(state: Any, text: Callable[[str], Fields], slot: str = "") -> Fields:
    """Yield slot and values of a state in any notation: text, nested by domain, frames, lists of slots with values."""
    if isinstance(state, str) and not slot:
        yield from text(state)
    elif isinstance(state, Mapping) and "slots_values_name" in state:
        yield from zip(state["slots_values_name"], state["slots_values_list"], strict=True)
    elif isinstance(state, Mapping):
        service = state.get("service", slot)
        for key, value in state.items():
            if key not in _NO_SLOTS:
                inner = service if key in _GROUPS else key if key.startswith(f"{service}-") else f"{service}-{key}"
                yield from _fields(value, text, inner.removeprefix("-"))
    elif isinstance(state, list) and not slot:
        for entry in state:
            if isinstance(entry, list):  # ["hotel", "area", "east"]
                yield "-".join(entry[:-1]), entry[-1]
            else:
                yield from _fields(entry, text)
    else:
        yield slot, state


class _Format(NamedTuple):
    """Notation of states as text, keys of the predicted and the gold state of a turn, and spelling of slots."""

    text: Callable[[str], Fields]
    predicted: str = "prediction"
    gold: str = "reference"
    slot: Callable[[str], str] = multiwoz_slot


FORMATS: Mapping[str, _Format] = MappingProxyType(
    {
        "trade": _Format(_hyphenated, "pred_bs_ptr", "turn_belief"),
        "simpletod": _Format(_spaced, "generated_turn_belief", "target_turn_belief"),
        "parlai": _Format(_spaced),
        "ubar": _Format(_bracketed, "bspn_gen", "bspn"),
        "convlab": _Format(_nested, "predictions", "state"),
        # To MultiWOZ_Evaluation, "people" is not "bookpeople".
        "mwz22": _Format(_spaced, slot=str),
    }
)


def read_published(path: str, name: str, kind: str, *, is_only: bool = False) -> list[Item]:
    """Read "predictions" or "references" from a file in one of `FORMATS`.

    With `is_only`, the file has no other states than these, so that they may also be under the key "state".
    """
    chosen = FORMATS[name]
    keys = [chosen.predicted, "prediction"] if kind == "predictions" else [chosen.gold, "reference"]
    if is_only or kind == "predictions":
        keys.append("state")
    items = []
    for number, turn in enumerate(_turns(path)):
        where = f"{path}: turn [{number}]"
        value = next((turn[key] for key in keys if turn.get(key) is not None), None)
        if value is None:
            raise DataError(f"{where}: expected {kind} under {' or '.join(keys)}, got {', '.join(turn)}")
        raw = list(_fields(value, chosen.text))
        fields = [(chosen.slot(slot), read_values(values, slot, where)) for slot, values in raw]
        is_blank = not isinstance(value, str) or not _TAG.sub("", value).strip()
        is_read = is_blank or any(slot != values for slot, values in raw)
        items.append(read_item(turn, Belief.of_fields(fields)._replace(is_well_formed=is_read), where))
    return items


def _turns(path: str) -> Iterator[dict[str, Any]]:
    """Yield the turns of a file, with ids if it has any."""
    for dialogue, number, record in _records(path):
        turn = {key: value for key, value in record.items() if key != "turn_id"}
        if isinstance(record.get("predictions"), Mapping):  # the unified format of ConvLab-3
            turn["predictions"] = record["predictions"]["state"]
        name = record.get("dialogue_id", dialogue)
        if name is not None:
            turn |= {
                "dialogue_id": str(name).removesuffix(".json").upper(),
                "turn_id": record.get("turn_id", number),
            }
        yield turn


def _records(path: str) -> Iterator[tuple[Any, Any, Mapping[str, Any]]]:
    """Yield dialogue, number and content of each turn, by the layout of the file."""
    text = decode_utf8(read_bytes(path), path)
    if path.endswith(".csv"):  # of UBAR; a line before the first turn of a dialogue has its length only
        lines = csv.DictReader(io.StringIO(text[text.find("dial_id") :], newline=""))
        yield from ((line["dial_id"], line["turn_num"], line) for line in lines if line["bspn_gen"])
        return
    is_whole = text.lstrip()[:1] == "[" or "\n{" not in text.strip()
    content = parse_item(text, path) if is_whole else [parse_item(line, path) for line in text.split("\n") if line]
    if isinstance(content, Mapping) and not {"dialog", "state", "prediction", "predictions"} & content.keys():
        for dialogue, turns in content.items():
            if isinstance(turns, Mapping) and isinstance(next(iter(turns.values()), None), list):
                columns = {key: turns[key] for key in turns if key.endswith("_turn_belief")}  # SimpleTOD
                turns = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            entries = turns.items() if isinstance(turns, Mapping) else enumerate(turns)
            yield from ((dialogue, int(turn), record) for turn, record in entries)
        return
    for number, record in enumerate(content if isinstance(content, list) else [content]):
        if "dialog" in record:  # of ParlAI: acts of teacher and model
            for turn, (asked, answered) in enumerate(record["dialog"]):
                (gold,) = asked.get("eval_labels") or asked["labels"]
                states = {"prediction": answered.get("text", ""), "reference": gold}
                yield asked.get("dial_id", number), asked.get("turn_num", turn), states
        elif "turns" in record:  # of MultiWOZ 2.2 and SGD
            users = [turn for turn in record["turns"] if turn["speaker"].lower() == "user"]
            for turn, user in enumerate(users):
                yield record["dialogue_id"], turn, {"state": user["frames"]}
        else:
            yield None, record.get("turn_id"), record
