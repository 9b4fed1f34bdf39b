"""The conventions of joint goal accuracy: orthogonal switches, and each convention in use as a named bundle of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dair_hf.errors import DataError

MULTIWOZ_DOMAINS = ("attraction", "hospital", "hotel", "police", "restaurant", "taxi", "train")
NAME_SLOTS = ("attraction-name", "hotel-name", "restaurant-name")

# The slots whose values a tracker of MultiWOZ is asked for, as MultiWOZ 2.2 spells them.
MULTIWOZ_SLOTS = (
    "attraction-area attraction-name attraction-type hospital-department hotel-area hotel-bookday hotel-bookpeople "
    "hotel-bookstay hotel-internet hotel-name hotel-parking hotel-pricerange hotel-stars hotel-type restaurant-area "
    "restaurant-bookday restaurant-bookpeople restaurant-booktime restaurant-food restaurant-name "
    "restaurant-pricerange taxi-arriveby taxi-departure taxi-destination taxi-leaveat train-arriveby "
    "train-bookpeople train-day train-departure train-destination train-leaveat"
).split()

# The slots that the schema of MultiWOZ 2.2 calls categorical.
MULTIWOZ_CATEGORICAL_SLOTS = (
    "attraction-area attraction-type bus-day hotel-area hotel-bookday hotel-bookpeople hotel-bookstay hotel-internet "
    "hotel-parking hotel-pricerange hotel-stars hotel-type police-name restaurant-area restaurant-bookday "
    "restaurant-bookpeople restaurant-pricerange train-bookpeople train-day train-departure train-destination"
).split()


def _switch(default: Any, choices: tuple[str, ...] | None, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices, "help": text})


@dataclasses.dataclass(frozen=True)
class Convention:
    """How a predicted state is compared with a gold state. The defaults are the preset `any_of`.

    Example:
        >>> Convention().alternatives, PRESETS["mwzeval"].match
        ('any', 'partial95')
    """

    alternatives: str = _switch(
        "any",
        ("any", "all", "first", "overlap"),
        "any: the first predicted value is one of the gold alternatives; all: the sets of values are equal; first: the "
        "first predicted value is the first gold alternative; overlap: some predicted value is some gold alternative",
    )
    dontcare: str = _switch(
        "keep",
        ("keep", "drop_both", "drop_gold"),
        "keep: dontcare is a value; drop_both: left out on both sides; drop_gold: a slot with it leaves the gold only; "
        "other spellings of it are values",
    )
    none: str = _switch(
        "omit",
        ("omit", "omit_predicted", "literal"),
        "omit: 'none' and 'not mentioned' mean an unfilled slot; omit_predicted: so for predictions, in gold only "
        "'not mentioned'; literal: they are values. The empty string is always unfilled",
    )
    match: str = _switch(
        "exact",
        ("exact", "partial95", "token_sort"),
        "exact: equal strings; partial95: rounded partial ratio above 95; token_sort: rounded token-sort ratio / 100 "
        "as a score, slots in categorical_slots equal to the first alternative or 0",
    )
    normalizer: str = _switch(
        "none",
        ("none", "lower", "parlai", "first_piece", "trade", "mwzeval", "checkdst", "strip_space"),
        "what is done to values before: nothing; lower case and single spaces; single spaces, the gold lower-cased; "
        "that and cut at the first comma and space; TRADE's typo table on the gold; mwzeval's slot names and canonical "
        "names, food, times; CheckDST's spellings, cut at the first comma; no space, lower case, parted at '|'",
    )
    extra: str = _switch(
        "penalise",
        ("penalise", "penalise_known", "ignore"),
        "penalise: a predicted slot outside the gold is an error; penalise_known: it is one unless the schema has no "
        "such slot (see schema_slots), which is ignored; ignore: only slots of the gold count",
    )
    empty_answer: str = _switch(
        "score",
        ("score", "skip"),
        "score: a turn for which nothing was predicted counts; skip: it is left out",
    )
    domains: tuple[str, ...] | None = _switch(None, None, "only slots of these domains count; None: all")
    slots: tuple[str, ...] | None = _switch(None, None, "only these slots count; None: all")
    schema_slots: tuple[str, ...] | None = _switch(
        None,
        None,
        "all slots of the schema, for penalise_known; None: those of MultiWOZ, if the data is of its domains",
    )
    categorical_slots: tuple[str, ...] = _switch(
        tuple(MULTIWOZ_CATEGORICAL_SLOTS), None, "slots that token_sort compares exactly"
    )
    consistency_slots: tuple[str, ...] | None = _switch(
        None, None, "only these slots count in the consistency metric, dontcare as a value; None: the joint goal"
    )


_PARLAI = Convention(
    alternatives="all",
    dontcare="drop_both",
    none="literal",
    normalizer="parlai",
    empty_answer="skip",
    domains=MULTIWOZ_DOMAINS,
)

PRESETS: Mapping[str, Convention] = MappingProxyType(
    {
        "any_of": Convention(),
        "parlai_v22": _PARLAI,
        "dair_released": dataclasses.replace(
            _PARLAI, normalizer="first_piece", consistency_slots=("hotel-name", "restaurant-name")
        ),
        "trade": Convention(alternatives="first", none="omit_predicted", normalizer="trade"),
        "simpletod": Convention(alternatives="first", none="omit_predicted"),
        "mwzeval": Convention(
            alternatives="first", dontcare="drop_gold", none="literal", match="partial95", normalizer="mwzeval"
        ),
        "sgd_fuzzy": Convention(none="literal", match="token_sort", extra="penalise_known"),
        "convlab3": Convention(
            alternatives="overlap", none="literal", normalizer="strip_space", extra="penalise_known"
        ),
        "checkdst": Convention(none="literal", normalizer="checkdst", domains=MULTIWOZ_DOMAINS),
    }
)

SWITCHES: Mapping[str, tuple[str, ...] | None] = MappingProxyType(
    {field.name: field.metadata["choices"] for field in dataclasses.fields(Convention)}
)


def resolve_convention(preset: str = "any_of", **switches: Any) -> tuple[str, Convention]:
    """Look a preset up and apply changed switches.

    Args:
        preset: A name in `PRESETS`.
        **switches: Fields of `Convention`; tuples may also be given as a list or a comma-separated string.

    Returns:
        The name to print with every figure, and the convention. With changed switches the name says which, so that
        no changed convention passes for a preset.

    Raises:
        DataError: Unknown preset, switch or value; the message lists what exists.

    Example:
        >>> resolve_convention("any_of", dontcare="drop_both")[0]
        'any_of(dontcare=drop_both)'
    """
    if preset not in PRESETS:
        raise DataError(f"preset: unknown name {preset!r}; use one of {', '.join(PRESETS)}")
    convention = PRESETS[preset]
    changed = {}
    for name, value in switches.items():
        if name not in SWITCHES:
            raise DataError(f"switch: unknown name {name!r}; use one of {', '.join(SWITCHES)}")
        value = _checked(name, value)
        if value != getattr(convention, name):
            changed[name] = value
    if not changed:
        return preset, convention
    shown = ", ".join(f"{name}={'+'.join(v) if isinstance(v, tuple) else v}" for name, v in changed.items())
    return f"{preset}({shown})", dataclasses.replace(convention, **changed)


def consistency_convention(convention: Convention) -> Convention:
    """Return the convention by which the consistency metric judges a view: the same, but for `consistency_slots`."""
    if convention.consistency_slots is None:
        return convention
    return dataclasses.replace(convention, slots=convention.consistency_slots, dontcare="keep")


def _checked(name: str, value: Any) -> Any:
    choices = SWITCHES[name]
    if choices is not None:
        if value not in choices:
            raise DataError(f"{name}: unknown value {value!r}; use one of {', '.join(choices)}")
        return value
    if value is None and name != "categorical_slots":
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) and part for part in value):
        raise DataError(f"{name}: must be a list of names or a comma-separated string, found {value!r}")
    if not value and name != "categorical_slots":
        raise DataError(f"{name}: is empty, so nothing would count; leave it out to compare everything")
    return tuple(value)
