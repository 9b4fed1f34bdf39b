"""Conventions of the joint goal accuracy: independent switches, and a preset for each convention in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from dair_hf.errors import DataError
from dair_hf.metrics.state.normalizers import NORMALIZERS
from dair_hf.settings import Settings

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


def _switch(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class Convention(Settings):
    """Rules for comparing a predicted state with a gold state. The defaults are the preset `any_of`.

    Example:
        >>> Convention().alternatives, PRESETS["mwzeval"].match
        ('any', 'partial95')
    """

    alternatives: Literal["any", "all", "first", "overlap"] = _switch(
        "any",
        "when the values of a slot match. any: the first predicted value is one of the gold values; all: the sets of "
        "values are equal; first: the first predicted value is the first gold value; overlap: any predicted value is "
        "one of the gold values",
    )
    dontcare: Literal["keep", "drop_both", "drop_gold"] = _switch(
        "keep",
        "treatment of the value 'dontcare', in this spelling only. keep: compare it like any value; drop_both: remove "
        "it from prediction and gold; drop_gold: remove gold slots that have it",
    )
    none: Literal["omit", "omit_predicted", "literal"] = _switch(
        "omit",
        "treatment of 'none' and 'not mentioned'. omit: the slot is not filled; omit_predicted: as omit, but 'none' "
        "in gold is a value; literal: both are values. The empty string never fills a slot",
    )
    match: Literal["exact", "partial95", "token_sort"] = _switch(
        "exact",
        "comparison of two values. exact: equal strings; partial95: fuzzywuzzy's partial ratio is above 95; "
        "token_sort: the score is its token-sort ratio / 100, but categorical_slots must equal the first gold value",
    )
    normalizer: Literal[
        "none", "lower", "parlai", "first_piece", "trade", "simpletod", "mwzeval", "checkdst", "strip_space", "trippy"
    ] = _switch(
        "none",
        "normalization of values before they are compared. "
        + "; ".join(f"{name}: {normalizer.text}" for name, normalizer in NORMALIZERS.items()),
    )
    label_maps: str | None = _switch(
        None, "dataset configuration of TripPy, whose label_maps list further right values of a gold value"
    )
    extra: Literal["penalise", "penalise_known", "ignore"] = _switch(
        "penalise",
        "treatment of predicted slots that the gold state does not fill. penalise: they are errors; penalise_known: "
        "they are errors if the schema has them (see schema_slots), else ignored; ignore: only gold slots count",
    )
    empty_answer: Literal["score", "skip"] = _switch(
        "score", "treatment of turns with an empty prediction. score: they count; skip: they are left out"
    )
    domains: tuple[str, ...] | None = _switch(None, "compare only slots of these domains; all if not set")
    slots: tuple[str, ...] | None = _switch(None, "compare only these slots; all if not set")
    schema_slots: tuple[str, ...] | None = _switch(
        None, "all slots of the schema, for penalise_known; if not set, MultiWOZ's for data of its domains"
    )
    categorical_slots: tuple[str, ...] = _switch(
        tuple(MULTIWOZ_CATEGORICAL_SLOTS),
        "slots that token_sort compares exactly; if not set, MultiWOZ 2.2's",
    )
    consistency_slots: tuple[str, ...] | None = _switch(
        None,
        "compare only these slots in the consistency metric, with dontcare as a value unless that is set; if not set, "
        "the slots of the joint goal accuracy",
    )

    def check(self) -> None:
        """Refuse empty lists: nothing would be compared, so that every row would be right."""
        if () in (self.domains, self.slots, self.consistency_slots):
            raise DataError("domains, slots, consistency_slots: expected a name, got an empty list")


_PARLAI = Convention(
    alternatives="all",
    dontcare="drop_both",
    none="literal",
    normalizer="parlai",
    empty_answer="skip",
    domains=MULTIWOZ_DOMAINS,
)
_SIMPLETOD = Convention(alternatives="first", none="omit_predicted")
_TRADE_SLOTS = tuple(slot for slot in MULTIWOZ_SLOTS if not slot.startswith("hospital"))

PRESETS: Mapping[str, Convention] = MappingProxyType(
    {
        "any_of": Convention(),
        "parlai_v22": _PARLAI,
        "dair_released": dataclasses.replace(
            _PARLAI, normalizer="first_piece", consistency_slots=("hotel-name", "restaurant-name")
        ),
        "trade": dataclasses.replace(_SIMPLETOD, normalizer="trade", schema_slots=_TRADE_SLOTS),
        "simpletod": _SIMPLETOD,
        "simpletod_default_cleaning": dataclasses.replace(_SIMPLETOD, normalizer="simpletod"),
        "ubar": Convention(alternatives="first", normalizer="simpletod"),
        "trippy": Convention(normalizer="trippy"),
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

# Format of a file of predictions (`state.formats`) -> preset of its evaluator.
FORMAT_PRESETS = {
    "json": "any_of",
    "trade": "trade",
    "simpletod": "simpletod",
    "parlai": "checkdst",
    "ubar": "ubar",
    "convlab": "convlab3",
    "mwz22": "mwzeval",
}


def resolve_convention(preset: str = "any_of", **switches: Any) -> tuple[str, Convention]:
    """Return a preset with some switches changed, and its name.

    Args:
        preset: A name in `PRESETS`.
        **switches: Fields of `Convention`. Tuples may be given as lists or as comma-separated strings.

    Returns:
        The name to report with every result, which contains the changed switches, and the convention.

    Raises:
        DataError: The preset or the value of a switch is unknown.

    Example:
        >>> resolve_convention("any_of", dontcare="drop_both")[0]
        'any_of(dontcare=drop_both)'
    """
    return _with_switches(preset, _preset(preset), switches)


def resolve_pair_convention(preset: str = "any_of", **switches: Any) -> tuple[str, Convention]:
    """Return the rules by which a view of a pair is right or wrong, and their name.

    They equal `resolve_convention`'s, except that empty answers are scored, since a pair needs both views, and
    that `consistency_slots` replace `slots`, with dontcare as a value. Switches that are given are kept. Where scores
    are graded (`token_sort`), a view is right if its score is 1.

    `consistency_slots=None` compares the slots of the joint goal accuracy.

    Example:
        >>> resolve_pair_convention("parlai_v22")[0], resolve_pair_convention("sgd_fuzzy")[0]
        ('parlai_v22(empty_answer=score)', 'sgd_fuzzy, scores of 1')
    """
    if switches.get("empty_answer") == "skip":
        raise DataError("empty_answer: expected 'score', got 'skip', but a pair needs both views")
    base = _preset(preset)
    slots = None if "slots" in switches else base.consistency_slots
    if "consistency_slots" in switches:
        slots = _as_tuple("consistency_slots", switches["consistency_slots"])
    if slots is not None:
        base = dataclasses.replace(base, dontcare="keep")
    name, convention = _with_switches(preset, base, {**switches, "empty_answer": "score"})
    convention = dataclasses.replace(convention, consistency_slots=slots, slots=slots or convention.slots)
    return name + (", scores of 1" if convention.match == "token_sort" else ""), convention


def _preset(name: str) -> Convention:
    if name not in PRESETS:
        raise DataError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def _with_switches(preset: str, base: Convention, switches: Mapping[str, Any]) -> tuple[str, Convention]:
    convention = dataclasses.replace(base, **{name: _as_tuple(name, value) for name, value in switches.items()})
    values = {name: getattr(convention, name) for name in switches}
    shown = [f"{name}={_shown(value)}" for name, value in values.items() if value != getattr(base, name)]
    return f"{preset}({', '.join(shown)})" if shown else preset, convention


def _shown(value: Any) -> str:
    return "all" if value is None else "+".join(value) if isinstance(value, tuple) else value


def _as_tuple(name: str, value: Any) -> Any:
    """Return the value of a switch, lists and comma-separated names as a tuple."""
    if isinstance(value, str) and (name == "domains" or name.endswith("slots")):
        value = [part.strip() for part in value.split(",") if part.strip()]
    return tuple(value) if isinstance(value, list) else value
