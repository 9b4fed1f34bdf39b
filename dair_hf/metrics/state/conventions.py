"""Conventions of the joint goal accuracy: independent switches, and a preset for each convention in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics.state.normalizers import NORMALIZERS

MULTIWOZ_DOMAINS = ("attraction", "hospital", "hotel", "police", "restaurant", "taxi", "train")
NAME_SLOTS = ("hotel-name", "restaurant-name", "attraction-name")

# Slots that trackers of MultiWOZ predict, as MultiWOZ 2.2 spells them.
MULTIWOZ_SLOTS = (
    "attraction-area attraction-name attraction-type hospital-department hotel-area hotel-bookday hotel-bookpeople "
    "hotel-bookstay hotel-internet hotel-name hotel-parking hotel-pricerange hotel-stars hotel-type restaurant-area "
    "restaurant-bookday restaurant-bookpeople restaurant-booktime restaurant-food restaurant-name "
    "restaurant-pricerange taxi-arriveby taxi-departure taxi-destination taxi-leaveat train-arriveby "
    "train-bookpeople train-day train-departure train-destination train-leaveat"
).split()

# Slots in the schema of MultiWOZ 2.2 that no turn fills.
MULTIWOZ_BUS_SLOTS = ("bus-day", "bus-departure", "bus-destination", "bus-leaveat")

# Slots that the schema of MultiWOZ 2.2 calls categorical.
MULTIWOZ_CATEGORICAL_SLOTS = (
    "attraction-area attraction-type bus-day hotel-area hotel-bookday hotel-bookpeople hotel-bookstay hotel-internet "
    "hotel-parking hotel-pricerange hotel-stars hotel-type police-name restaurant-area restaurant-bookday "
    "restaurant-bookpeople restaurant-pricerange train-bookpeople train-day train-departure train-destination"
).split()


def _switch(default: Any, choices: tuple[str, ...] | None, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices, "help": text})


@dataclasses.dataclass(frozen=True)
class Convention:
    """Rules for comparing a predicted state with a gold state. The defaults are the preset `any_of`.

    Example:
        >>> Convention().alternatives, PRESETS["mwzeval"].match
        ('any', 'partial95')
    """

    alternatives: str = _switch(
        "any",
        ("any", "all", "first", "overlap"),
        "when the values of a slot match. any: the first predicted value is one of the gold values; all: the sets of "
        "values are equal; first: the first predicted value is the first gold value; overlap: any predicted value is "
        "one of the gold values",
    )
    dontcare: str = _switch(
        "keep",
        ("keep", "drop_both", "drop_gold"),
        "treatment of the value 'dontcare', in this spelling only. keep: compare it like any value; drop_both: remove "
        "it from prediction and gold; drop_gold: remove gold slots that have it",
    )
    none: str = _switch(
        "omit",
        ("omit", "omit_predicted", "literal"),
        "treatment of 'none' and 'not mentioned'. omit: the slot is not filled; omit_predicted: likewise, but 'none' "
        "in gold is a value; literal: both are values. The empty string never fills a slot",
    )
    match: str = _switch(
        "exact",
        ("exact", "partial95", "token_sort"),
        "comparison of two values. exact: equal strings; partial95: fuzzywuzzy's partial ratio is above 95; "
        "token_sort: the score is its token-sort ratio / 100, but categorical_slots must equal the first gold value",
    )
    normalizer: str = _switch(
        "none",
        tuple(NORMALIZERS),
        "normalization of values before they are compared. "
        + "; ".join(f"{name}: {normalizer.text}" for name, normalizer in NORMALIZERS.items()),
    )
    extra: str = _switch(
        "penalise",
        ("penalise", "penalise_known", "ignore"),
        "treatment of predicted slots that the gold state does not fill. penalise: they are errors; penalise_known: "
        "they are errors if the schema has them (see schema_slots), else ignored; ignore: only gold slots count",
    )
    empty_answer: str = _switch(
        "score",
        ("score", "skip"),
        "treatment of turns with an empty prediction. score: they count; skip: they are left out",
    )
    domains: tuple[str, ...] | None = _switch(None, None, "compare only slots of these domains; all if not set")
    slots: tuple[str, ...] | None = _switch(None, None, "compare only these slots; all if not set")
    schema_slots: tuple[str, ...] | None = _switch(
        None, None, "all slots of the schema, for penalise_known; if not set, those of MultiWOZ for data of its domains"
    )
    categorical_slots: tuple[str, ...] = _switch(
        tuple(MULTIWOZ_CATEGORICAL_SLOTS),
        None,
        "slots that token_sort compares exactly; if not set, those of MultiWOZ 2.2",
    )
    consistency_slots: tuple[str, ...] | None = _switch(
        None,
        None,
        "compare only these slots in the consistency metric, with dontcare as a value unless that is set; if not set, "
        "the slots of the joint goal accuracy",
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


def resolve_convention(preset: str = "any_of", **switches: Any) -> tuple[str, Convention]:
    """Return a preset with some switches changed, and its name.

    Args:
        preset: A name in `PRESETS`.
        **switches: Fields of `Convention`. Tuples may be given as lists or as comma-separated strings.

    Returns:
        The name to report with every result, which contains the changed switches, and the convention.

    Raises:
        DataError: The preset, a switch or a value is unknown.

    Example:
        >>> resolve_convention("any_of", dontcare="drop_both")[0]
        'any_of(dontcare=drop_both)'
    """
    return _with_switches(preset, _preset(preset), switches)


def resolve_pair_convention(preset: str = "any_of", **switches: Any) -> tuple[str, Convention]:
    """Return the rules by which a view of a pair is right or wrong, and their name.

    They are those of `resolve_convention`, except that empty answers are scored, since a pair needs both views, and
    that `consistency_slots` replace `slots`, with dontcare as a value. Switches that are given are kept. Where scores
    are graded (`token_sort`), a view is right if its score is 1.

    Args:
        preset: A name in `PRESETS`.
        **switches: As for `resolve_convention`; `consistency_slots=None` compares the slots of the joint goal accuracy.

    Returns:
        The name to report with every result, and the convention.

    Raises:
        DataError: The preset, a switch or a value is unknown, or `empty_answer` is "skip".

    Example:
        >>> resolve_pair_convention("parlai_v22")[0], resolve_pair_convention("sgd_fuzzy")[0]
        ('parlai_v22(empty_answer=score)', 'sgd_fuzzy, scores of 1')
    """
    if switches.get("empty_answer") == "skip":
        raise DataError(
            "empty_answer=skip: a pair needs both views, so empty answers are scored; leave it out, or compute the "
            "joint goal accuracy of each view"
        )
    base = _preset(preset)
    slots = None if "slots" in switches else base.consistency_slots
    if "consistency_slots" in switches:
        slots = _valid("consistency_slots", switches["consistency_slots"])
    if slots is not None:
        base = dataclasses.replace(base, dontcare="keep")
    name, convention = _with_switches(preset, base, {**switches, "empty_answer": "score"})
    convention = dataclasses.replace(convention, consistency_slots=slots, slots=slots or convention.slots)
    return name + (", scores of 1" if convention.match == "token_sort" else ""), convention


def _preset(name: str) -> Convention:
    if name not in PRESETS:
        raise DataError(f"preset: unknown name {name!r}; use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def _with_switches(preset: str, base: Convention, switches: Mapping[str, Any]) -> tuple[str, Convention]:
    changed = {}
    for name, value in switches.items():
        value = _valid(name, value)
        if value != getattr(base, name):
            changed[name] = value
    if not changed:
        return preset, base
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in changed.items())
    return f"{preset}({shown})", dataclasses.replace(base, **changed)


def _shown(value: Any) -> str:
    return "all" if value is None else "+".join(value) if isinstance(value, tuple) else value


def _valid(name: str, value: Any) -> Any:
    fields = {field.name: field for field in dataclasses.fields(Convention)}
    if name not in fields:
        raise DataError(f"switch: unknown name {name!r}; use one of {', '.join(fields)}")
    choices, default = fields[name].metadata["choices"], fields[name].default
    if choices is not None:
        if value not in choices:
            raise DataError(f"{name}: unknown value {value!r}; use one of {', '.join(choices)}")
        return value
    if value is None and default is None:
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) and part for part in value):
        raise DataError(f"{name}: must be a list of names or a comma-separated string, found {value!r}")
    if not value and default is None:
        raise DataError(f"{name}: the list is empty, so nothing would be compared; leave it out to compare everything")
    return tuple(value)
