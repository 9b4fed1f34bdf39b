"""Normalization of slot names and values as in the published evaluators.

The tables are the evaluators': spelling -> canonical spelling.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

DONTCARE = "dontcare"  # no published evaluator recognizes other spellings

_TRADE_DOMAINS = ("attraction", "hotel", "restaurant", "taxi", "train")  # domains that TRADE tracks

# TRADE's table of annotation errors in MultiWOZ, for all slots.
_TRADE_ANY_SLOT = {
    variant: value
    for value, variants in {
        "guest house": ("guesthouse", "guesthouses", "guest"),
        "multiple sports": ("mutiple sports", "mutliple sports", "sports"),
        "swimming pool": ("swimmingpool", "pool"),
        "concert hall": ("concerthall", "concert"),
        "nightclub": ("night club",),
        "museum": ("mus", "musuem"),
        "architecture": ("ol", "architectural"),
        "college": ("colleges", "coll"),
        "church": ("churches",),
        "centre": (
            *("center", "center of town", "near city center", "cen", "ce", "town center", "centre of cambridge"),
            *("city center", "scentre", "town centre", "in town", "centre of town"),
        ),
        "north": ("in the north", "north part of town"),
        "east": ("east side", "east area"),
        "west": ("west part of town",),
        "south": ("the south",),
        "moderate": ("mode", "moderate -ly", "mo"),
        "friday": ("next friday",),
        "monday": ("monda",),
        "free": ("free parking",),
        "yes": ("free internet", "y"),
        "no": ("n", "does not"),
        "4": ("4 star", "4 stars"),
        "3": ("3 .",),
        "dontcare": ("any", "does not care"),
        "none": ("cb30aq", "0 star rarting", "not men", "not", "not mentioned", "not mendtioned", "fun", "art"),
    }.items()
    for variant in variants
}
# TRADE's corrections of single slots.
_TRADE_BY_SLOT = {
    (slot, variant): value
    for (slot, value), variants in {
        ("hotel-type", "none"): (
            *("nigh", "moderate -ly priced", "bed and breakfast", "centre", "venetian", "intern"),
            "a cheap -er hotel",
        ),
        ("hotel-type", "hotel"): ("hotel with free parking and free wifi", "4", "3 star hotel"),
        ("hotel-internet", "none"): ("4",),
        ("hotel-pricerange", "none"): ("2",),
        ("attraction-type", "none"): ("gastropub", "la raza", "galleria", "gallery", "science", "m"),
        ("restaurant-area", "none"): ("stansted airport", "cambridge", "silver street"),
        ("attraction-area", "none"): ("norwich", "ely", "museum", "same area as hotel"),
    }.items()
    for variant in variants
}
# TRADE's corrections of all slots whose name contains a word.
_TRADE_BY_WORD = {
    ("area", "moderate"): "none",
    ("area", "no"): "north",
    ("area", "we"): "west",
    ("area", "cent"): "centre",
    ("day", "t"): "none",
    ("day", "we"): "wednesday",
    ("day", "no"): "none",
    ("price", "ch"): "cheap",
    ("internet", "free"): "yes",
}
_TRADE_WORDS = ("area", "day", "price", "internet")
_TRADE_BY_KIND = {(slot.partition("-")[2], variant): value for (slot, variant), value in _TRADE_BY_SLOT.items()}

_MWZEVAL_NAMES = {
    "hotel du vin bistro": "hotel du vin and bistro",
    "the river bar and grill": "the river bar steakhouse and grill",
    "nando's": "nandos",
    "city center b and b": "city center north b and b",
    "acorn house": "acorn guest house",
    "caffee uno": "caffe uno",
    "cafe uno": "caffe uno",
    "rosa's": "rosas bed and breakfast",
    "restaurant called two two": "restaurant two two",
    "restaurant 2 two": "restaurant two two",
    "restaurant two 2": "restaurant two two",
    "restaurant 2 2": "restaurant two two",
    "restaurant 1 7": "restaurant one seven",
    "restaurant 17": "restaurant one seven",
    "lime house": "limehouse",
    "cityrooms": "cityroomz",
    "whale of time": "whale of a time",
    "huntingdon hotel": "huntingdon marriott hotel",
    "holiday inn exlpress, cambridge": "express by holiday inn cambridge",
    "university hotel": "university arms hotel",
    "arbury guesthouse and lodge": "arbury lodge guesthouse",
    "bridge house": "bridge guest house",
    "arbury guesthouse": "arbury lodge guesthouse",
    "nandos in the city centre": "nandos city centre",
    "broughton gallery": "broughton house gallery",
    "scudamores punt co": "scudamores punting co",
    "cambridge botanic gardens": "cambridge university botanic gardens",
    "the junction": "junction theatre",
    "trinity street college": "trinity college",
    "christ college": "christ's college",
    "christs": "christ's college",
    "history of science museum": "whipple museum of the history of science",
    "parkside pools": "parkside swimming pool",
    "the botanical gardens at cambridge university": "cambridge university botanic gardens",
    "cafe jello museum": "cafe jello gallery",
}
_MWZEVAL_TYPES = {
    "swimming pool": "swimmingpool",
    "mutliple sports": "multiple sports",
    "night club": "nightclub",
    "guest house": "guesthouse",
}
_MWZEVAL_FOOD = {
    "eriterean": "mediterranean",
    "brazilian": "portuguese",
    "sea food": "seafood",
    "portugese": "portuguese",
    "modern american": "north american",
    "americas": "north american",
    "intalian": "italian",
    "italain": "italian",
    "asian or oriental": "asian",
    "english": "british",
    "australasian": "australian",
    "gastropod": "gastropub",
    "brutish": "british",
    "bristish": "british",
    "europeon": "european",
}
_MWZEVAL_TIMES = {
    "afternoon": "13:00",
    "lunch": "12:00",
    "noon": "12:00",
    "mid-day": "12:00",
    "around lunch time": "12:00",
    "morning": "08:00",
    "seven o'clock tomorrow evening": "07:00",
    "three forty five p.m": "15:45",
    "one thirty p.m.": "13:30",
    "six fourty five": "06:45",
    "eight thirty": "08:30",
}

_MWZEVAL_SLOTS = {"arriveby": "arrive", "leaveat": "leave"}

_CHECKDST = {"centre": "center"} | {f"{stars}-star": str(stars) for stars in range(6)}


def _unchanged(slot: str, value: str) -> str:
    return value


def _single_spaces(slot: str, value: str) -> str:
    return " ".join(value.split())


def _lower(slot: str, value: str) -> str:
    return " ".join(value.lower().split())


def _first_piece(slot: str, value: str) -> str:
    # The released code joins and splits values at ", ", so only the first piece of such a value remains.
    return _single_spaces(slot, value.split(", ")[0])


def _first_piece_of_gold(slot: str, value: str) -> str:
    return _first_piece(slot, value.lower())


def _strip_space(slot: str, value: str) -> str:
    return "".join(value.split()).lower()


def _checkdst(slot: str, value: str) -> str:
    value = _single_spaces(slot, value.split(",")[0])  # CheckDST joins and splits values at ","
    return _CHECKDST.get(value, value)


def _corrected(slot: str, value: str, by_slot: Mapping[tuple[str, str], str]) -> str:
    """Correct a value by TRADE's tables of slots and of words in their names."""
    by_word = (_TRADE_BY_WORD[word, value] for word in _TRADE_WORDS if word in slot and (word, value) in _TRADE_BY_WORD)
    return by_slot.get((slot, value)) or next(by_word, value)


def _trade(slot: str, value: str) -> str:
    if slot.partition("-")[0] not in _TRADE_DOMAINS:
        return value
    return _corrected(slot, _TRADE_ANY_SLOT.get(value, value), _TRADE_BY_SLOT)


def _simpletod(slot: str, value: str) -> str:
    """Clean a value as `--default_cleaning` does: TRADE's corrections of slots, in every domain, but not its typos.

    What it corrects to "none" remains a value, on both sides.
    """
    value = _corrected(slot.partition("-")[2], value, _TRADE_BY_KIND)
    return "(none)" if value == "none" else value


def _trippy(slot: str, value: str) -> str:
    return " ".join(word for word in map(str.strip, re.split(r"(\W+)", value)) if word)


def _mwzeval(slot: str, value: str) -> str:
    kind = slot.partition("-")[2]
    if kind in ("name", "destination", "departure"):
        name = value.strip().lower().replace(" & ", " and ").replace("&", " and ").replace(" '", "'")
        return _MWZEVAL_NAMES.get(name, name)
    if kind == "type":
        return _MWZEVAL_TYPES.get(value, value)
    if kind == "food":
        food = value.strip().lower()
        return _MWZEVAL_FOOD.get(food, food)
    if kind in ("arrive", "leave", "arriveby", "leaveat", "time"):
        return _mwzeval_time(value.strip().lower())
    if kind in ("parking", "internet") and value == "free":
        return "yes"
    return value


def _mwzeval_time(time: str) -> str:
    if time in _MWZEVAL_TIMES:
        return _MWZEVAL_TIMES[time]
    for start, canonical in (("one o'clock p.m", "13:00"), ("ten o'clock a.m", "10:00")):
        if time.startswith(start):
            return canonical
    if time.startswith("by"):
        time = time[3:]
    for prefix in ("after", "afer"):
        if time.startswith(prefix):
            time = time.removeprefix(prefix).strip()
    for suffix in ("am", "a.m."):
        if time.endswith(suffix):
            time = time.removesuffix(suffix).strip()
    if time.endswith(("pm", "p.m.")):
        for suffix in ("pm", "p.m."):
            if time.endswith(suffix):
                time = time.removesuffix(suffix).strip()
        hour, *minutes = time.split(":")
        if hour.strip().isdecimal() and len(minutes) < 2:  # as in mwzeval, 12 pm becomes 24:00 on both sides
            return f"{int(hour) + 12}:{minutes[0] if minutes else '00'}"
    if not time:
        return "00:00"
    if time[-1] in ".,?":
        time = time[:-1]
    if time.isdecimal():
        return f"{time[:2]}:{time[2:]}" if len(time) == 4 else f"{time.zfill(2)}:00"
    if ":" in time:
        time = "".join(time.split(" "))
    return f"0{time}" if len(time) == 4 and time[1] == ":" else time


class _Normalizer(NamedTuple):
    """Functions `(slot, value) -> value` for predicted and gold values, and a description for `--help`."""

    of_predicted: Callable[[str, str], str]
    of_gold: Callable[[str, str], str]
    text: str


# Value of the switch `normalizer` -> what it does.
NORMALIZERS: Mapping[str, _Normalizer] = MappingProxyType(
    {
        "none": _Normalizer(_unchanged, _unchanged, "nothing"),
        "lower": _Normalizer(_lower, _lower, "lower case, single spaces"),
        "parlai": _Normalizer(_single_spaces, _lower, "single spaces, gold also in lower case"),
        "first_piece": _Normalizer(
            _first_piece, _first_piece_of_gold, "as parlai, cut at the first comma followed by a space"
        ),
        "trade": _Normalizer(_unchanged, _trade, "TRADE's table of typos, gold only"),
        "simpletod": _Normalizer(_simpletod, _simpletod, "SimpleTOD's default cleaning, of both sides"),
        "mwzeval": _Normalizer(_mwzeval, _mwzeval, "canonical slots, names, types, food and times"),
        "checkdst": _Normalizer(_checkdst, _checkdst, "center and n-star folded, cut at the first comma"),
        "strip_space": _Normalizer(_strip_space, _strip_space, "lower case without spaces, split at '|'"),
        "trippy": _Normalizer(_trippy, _trippy, "words and punctuation separated by single spaces"),
    }
)


@functools.lru_cache(maxsize=1 << 16)
def normalize(normalizer: str, slot: str, value: str, is_gold: bool = True) -> str:
    """Return the normalized value of a slot; some evaluators normalize predicted and gold values differently.

    Example:
        >>> normalize("trade", "hotel-area", "center"), normalize("trade", "hotel-area", "center", False)
        ('centre', 'center')
    """
    chosen = NORMALIZERS[normalizer]
    return chosen.of_gold(slot, value) if is_gold else chosen.of_predicted(slot, value)


@functools.lru_cache(maxsize=1 << 12)
def normalize_slot(normalizer: str, slot: str) -> str:
    """Return the normalized name of a slot; only mwzeval changes names, and no domain."""
    if normalizer != "mwzeval":
        return slot
    domain, hyphen, name = slot.partition("-")
    name = name.lower().replace(" ", "")
    return domain + hyphen + _MWZEVAL_SLOTS.get(name, name)
