"""Files of predictions as the published trackers and evaluators write them, read into items.

Slots are spelled as in MultiWOZ 2.2 ("hotel-bookday"), except in its own files, and ids as there ("MUL0003"). Turns
count those of the user.
"""

from __future__ import annotations

import itertools
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
_KEYS_OF_A_LINE = frozenset({"dialog", "dialogue_id", "state", "prediction", "predictions"})
_CONVLAB = re.compile(r"\[([^\]]*)\](?:\[([^\]]*)\]|\()")
# Keys between a domain and its slots, and keys of a frame or a domain that are no slots.
_GROUPS = frozenset({"semi", "state", "slot_values", "slots_values"})
_NO_SLOTS = frozenset({"service", "slots", "actions", "active_intent", "requested_slots", "booked", "act"})


def _spaced(text: str) -> Fields:
    """Read "hotel book day monday", of which SimpleTOD and ParlAI have several with commas between them."""
    domain, *words = text.split()
    size = 2 if words[:1] == ["book"] else 1
    if domain.isalpha() and len(words) > size:
        yield f"{domain}-{' '.join(words[:size])}", " ".join(words[size:])


def _bracketed(text: str) -> Fields:
    """Read "[hotel] area east name warkworth house [train] leave 10:00" (UBAR)."""
    domain, slot, words = "", "", list[str]()
    for word in (*text.split(), ""):
        heading = _UBAR_DOMAIN.fullmatch(word)
        if heading or word in _UBAR_SLOTS or not word:
            if slot:  # without domain or value it is wrong
                yield (f"{domain}-{slot}", " ".join(words) or slot) if domain else (slot, slot)
            domain, slot, words = heading[1] if heading else domain, "" if heading else word, []
        else:
            words.append(word)


def _nested(text: str) -> Fields:
    """Read "[hotel]([area][east],[name][warkworth house]);[train]([leave at][10:00])" (T5 of ConvLab-3)."""
    domain = ""
    for match in _CONVLAB.finditer(text):
        if match[2] is None:
            domain = match[1]
        else:
            yield f"{domain}-{match[1]}", match[2]


def _hyphenated(text: str) -> Fields:
    """Read "hotel-area-east" (TRADE)."""
    domain, *rest = text.split("-", 2)
    if len(rest) == 2 and rest[1]:
        yield f"{domain}-{rest[0]}", rest[1]


def _fields(state: Any, text: Callable[[str], Fields], slot: str = "") -> Fields:
    """Yield slot and values of a state in any notation: text, nested by domain, frames, lists of slots with values."""
    if isinstance(state, str) and not slot:
        content = _TAG.sub(" ", state).strip()
        if content:  # what is no slot with a value stands for itself, which is wrong
            yield from list(text(content)) or [(content, content)]
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

    Turns that have none of the keys of states may have them under "state"; references only with `is_only`, in a file
    without predictions.
    """
    chosen = FORMATS[name]
    keys = {"predictions": (chosen.predicted, "prediction"), "references": (chosen.gold, "reference")}
    items = []
    try:
        turns = list(_turns(path))
    except DataError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected a file of the format {name}, got {error!r:.200}") from error
    for number, turn in enumerate(turns):
        where = f"{path}: turn [{number}]"
        is_plain = turn.keys().isdisjoint(itertools.chain(*keys.values())) and (is_only or kind == "predictions")
        value = next((turn[key] for key in keys[kind] if key in turn), turn.get("state") if is_plain else None)
        if value is None:
            raise DataError(f"{where}: expected {kind} under {' or '.join(keys[kind])}, got {', '.join(turn)}")
        if isinstance(value, str) and chosen.text is _spaced:
            value = value.split(",")
        raw = list(_fields(value, chosen.text))
        fields = [(chosen.slot(slot), read_values(values, slot, where)) for slot, values in raw]
        is_read = not raw or any(slot != values for slot, values in raw)
        if kind == "references" and not is_read:
            raise DataError(f"{where}: expected a reference in the notation of {name}, got {value!r:.60}")
        items.append(read_item(turn, Belief.of_fields(fields)._replace(is_well_formed=is_read), where))
    return items


def _turns(path: str) -> Iterator[dict[str, Any]]:
    """Yield the turns of a file, with ids if it has any."""
    for dialogue, number, record in _records(path):
        turn = dict(record)
        if isinstance(record.get("predictions"), Mapping):  # the unified format of ConvLab-3
            turn["predictions"] = record["predictions"].get("state")
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
    is_whole = text.lstrip()[:1] == "[" or "\n{" not in text.strip()
    lines = filter(str.strip, text.split("\n"))
    content = parse_item(text, path) if is_whole else [parse_item(line, path) for line in lines]
    if isinstance(content, Mapping) and not _KEYS_OF_A_LINE & content.keys():
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
        elif "turns" in record:  # of MultiWOZ 2.2
            users = [turn for turn in record["turns"] if turn["speaker"].lower() == "user"]
            for turn, user in enumerate(users):
                yield record["dialogue_id"], turn, {"state": user["frames"]}
        else:
            yield None, record.get("utt_idx"), record
