"""Comparison of a predicted with a gold state under a convention: which slots count, and which values are equal."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dair_hf.errors import BeliefTextWarning, DataError, SlotNameWarning
from dair_hf.io.files import read_json
from dair_hf.metrics.items import Item
from dair_hf.metrics.state.belief_text import Belief
from dair_hf.metrics.state.conventions import (
    MULTIWOZ_BUS_SLOTS,
    MULTIWOZ_DOMAINS,
    MULTIWOZ_SLOTS,
    Convention,
)
from dair_hf.metrics.state.normalizers import DONTCARE, normalize, normalize_slot

_FULL_NAMES = {"arrive": "arriveby", "leave": "leaveat"}
_MULTIWOZ_ALL_DOMAINS = {*MULTIWOZ_DOMAINS, "bus"}
_UNREAD_SHARE = 0.9  # a larger share of unreadable predictions is refused
_MAX_SHOWN = 5  # unknown slots that a warning lists
_LATIN_1 = dict.fromkeys(range(128, 256))


def domain_of(slot: str) -> str:
    """Return the domain of a slot: the part before the first hyphen."""
    return slot.partition("-")[0]


@functools.lru_cache(maxsize=1 << 12)
def _fold(slot: str) -> str:
    """Return the same text for all spellings of a slot; the domain is not changed."""
    domain, hyphen, name = slot.partition("-")
    name = re.sub(r"[\W_]", "", name.lower()).removeprefix("book")
    return domain + hyphen + _FULL_NAMES.get(name, name)


_MULTIWOZ_SPELLINGS = {_fold(slot): slot for slot in (*MULTIWOZ_SLOTS, *MULTIWOZ_BUS_SLOTS)}


def multiwoz_slot(slot: str) -> str:
    """Return a slot as MultiWOZ 2.2 spells it ("Hotel_Book Day", "train-leave"); other slots in lower case."""
    slot = slot.lower() if "-" in slot else slot.lower().replace("_", "-", 1)
    return _MULTIWOZ_SPELLINGS.get(_fold(slot), slot)


class _SlotNames:
    """Slot names of the references, and of their schema unless the references spell them differently."""

    def __init__(
        self, in_references: Iterable[str], schema: Iterable[str] | None = None, known: Iterable[str] = ()
    ) -> None:
        self.in_references = frozenset(in_references)
        self.schema = MULTIWOZ_SLOTS if schema is None else tuple(schema)
        self._has_schema = schema is not None
        self._spellings = frozenset(map(_fold, self.in_references))
        self._known = frozenset(map(_fold, (*self.schema, *known)))

    def __contains__(self, slot: str) -> bool:
        return slot in self.in_references or (_fold(slot) in self._known and _fold(slot) not in self._spellings)

    def schema_lacks(self, slot: str) -> bool:
        """Return whether the schema, as given or that of MultiWOZ, is known and does not have the slot."""
        if slot in self:
            return False
        domains = {domain_of(name) for name in self.in_references or [slot]}
        return self._has_schema or domains <= _MULTIWOZ_ALL_DOMAINS


@functools.lru_cache(maxsize=32)
def _slot_filter(convention: Convention) -> Callable[[str], str | None]:
    """Return a function from a slot to its normalized name, or to None if the convention does not compare it."""
    slots = None
    if convention.slots is not None:
        slots = {normalize_slot(convention.normalizer, slot) for slot in convention.slots}

    @functools.lru_cache(maxsize=1 << 12)
    def compared_name(slot: str) -> str | None:
        slot = normalize_slot(convention.normalizer, slot)
        if slots is not None and slot not in slots:
            return None
        if convention.domains is not None and domain_of(slot) not in convention.domains:
            return None
        return slot

    return compared_name


def reference_names(references: Iterable[Mapping[str, object]], convention: Convention) -> _SlotNames:
    """Return the slot names of references, and refuse a convention that names slots which they do not have."""
    normalize = functools.partial(normalize_slot, convention.normalizer)
    in_references = {normalize(slot) for slot in {slot for reference in references for slot in reference}}
    schema = None if convention.schema_slots is None else map(normalize, convention.schema_slots)
    # The evaluator of SGD reads the schema of MultiWOZ 2.2.
    of_schema = (*convention.categorical_slots, *MULTIWOZ_BUS_SLOTS) if convention.match == "token_sort" else ()
    names = _SlotNames(in_references, schema, known=of_schema)
    domains = {*map(domain_of, (*in_references, *names.schema)), *MULTIWOZ_DOMAINS}
    unknown = [domain for domain in convention.domains or () if domain not in domains]
    unknown += [
        slot
        for slot in (*(convention.slots or ()), *(convention.consistency_slots or ()))
        if normalize(slot) not in names
    ]
    if unknown and in_references:  # a misspelt name would leave out what it means
        raise DataError(f"domains or slots: no reference has {unknown[0]!r}, only {', '.join(sorted(in_references))}")
    return names


class Comparison(NamedTuple):
    """Comparison of a predicted state with a gold state.

    scores: slot -> score in [0, 1]. A slot that was predicted but is not in the gold state scores 0.
    gold_slots: the slots that the gold state fills.
    unknown: the predicted slots that neither the references nor MultiWOZ have.
    hits, predicted, gold: counts for precision and recall, of slots, or of slot-value pairs if `alternatives` is "all".
    answered: whether the prediction fills any slot, before the convention removes some, or its text is not empty.
    """

    scores: dict[str, float]
    gold_slots: list[str]
    unknown: list[str]
    hits: float
    predicted: int
    gold: int
    answered: bool

    @property
    def score(self) -> float:
        """Joint score: the product of all scores; 1.0 for two empty states."""
        return math.prod(self.scores.values(), start=1.0)


def compare_states(
    prediction: Mapping[str, Sequence[str]] | Belief,
    reference: Mapping[str, Sequence[str]],
    convention: Convention,
    names: _SlotNames | None = None,
) -> Comparison:
    """Compare a predicted state with a gold state, slot -> values; the turn is correct if the `score` is 1.

    A slot that the text of a prediction repeats with other values scores 0. Without `names` (see `reference_names`),
    all references are taken to have the slots of this one.

    Example:
        >>> gold = {"hotel-area": ["centre", "center"], "hotel-stars": ["4"]}
        >>> compare_states({"hotel-area": ["center"]}, gold, Convention()).scores
        {'hotel-area': 1.0, 'hotel-stars': 0.0}
    """
    belief = prediction if isinstance(prediction, Belief) else Belief.of(prediction)
    if names is None:
        names = _SlotNames(normalize_slot(convention.normalizer, slot) for slot in reference)
    predicted = _filled_slots(belief.state, convention, is_gold=False)
    gold = _filled_slots(reference, convention, is_gold=True)
    score = _scorer(convention)
    for field in belief.repeated:
        for slot, values in _filled_slots(dict([field]), convention, is_gold=False).items():
            if predicted.setdefault(slot, values) != values:
                predicted[slot] = []  # two different values; no gold state has both
    scores = {
        slot: score(slot, predicted[slot], values) if predicted.get(slot) else 0.0 for slot, values in gold.items()
    }
    hits = sum(scores.values(), 0.0)
    extra = [slot for slot in predicted if slot not in gold]
    unknown = [slot for slot in extra if slot not in names]
    scores |= dict.fromkeys((slot for slot in extra if not _is_ignored(slot, convention, names)), 0.0)
    if convention.alternatives != "all":
        n_predicted = sum(slot in predicted for slot in scores)
        return Comparison(scores, list(gold), unknown, hits, n_predicted, len(gold), belief.answered)
    gold_pairs = {(slot, value) for slot, values in gold.items() for value in values}
    pairs = {(slot, value) for slot, values in predicted.items() if slot in scores for value in values}
    return Comparison(
        scores, list(gold), unknown, len(gold_pairs & pairs), len(pairs), len(gold_pairs), belief.answered
    )


def _is_ignored(slot: str, convention: Convention, names: _SlotNames) -> bool:
    """Return whether a predicted slot is ignored although the gold state does not fill it."""
    return convention.extra == "ignore" or (convention.extra == "penalise_known" and names.schema_lacks(slot))


def compare_turns(turns: Sequence[tuple[Item, Item]], convention: Convention) -> list[Comparison]:
    """Compare (prediction, reference) of all turns of a data set, whose values are `Belief` objects.

    It refuses predictions of which nearly all are text without the form of a state, or have no slot that a reference or
    MultiWOZ has, since their accuracy would be 0 for any model; of some of them it warns.
    """
    beliefs = [prediction.value for prediction, _ in turns]
    other = [prediction.where for prediction, _ in turns if not prediction.value.is_well_formed]
    form = f"{len(other)} of {len(turns)} predictions, such as {other[0]}, are" if other else ""
    expected = "text in another form than the format has, by default 'hotel-area = east ; hotel-name = warkworth house'"
    if len(other) > _UNREAD_SHARE * sum(belief.answered for belief in beliefs):
        raise DataError(f"{form} {expected}; a state as an object is given under 'state'")
    if other:
        warnings.warn(f"{form} {expected}; what is misread counts as wrong", BeliefTextWarning, stacklevel=4)
    names = reference_names((reference.value.state for _, reference in turns), convention)
    if names.in_references and not any(map(_slot_filter(convention), names.in_references)):
        raise DataError(
            "domains and slots: nothing to compare, since the convention leaves out all slots of the references: "
            f"{', '.join(sorted(names.in_references))}"
        )
    comparisons = [
        compare_states(prediction.value, reference.value.state, convention, names) for prediction, reference in turns
    ]
    unknown = Counter(slot for comparison in comparisons for slot in comparison.unknown)
    slots = sum(len(belief.state) for belief in beliefs)
    if names.in_references and unknown.total() > _UNREAD_SHARE * slots:
        raise DataError(
            f"predictions: expected slots such as {min(names.in_references)!r}, got {min(unknown)!r}; no reference has "
            f"{unknown.total()} of their {slots} slots"
        )
    if unknown:
        shown = [
            f"{slot!r} ({count} turns, {'ignored' if _is_ignored(slot, convention, names) else 'counted as wrong'})"
            for slot, count in sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:_MAX_SHOWN]
        ]
        more = [f"{len(unknown) - _MAX_SHOWN} more"] if len(unknown) > _MAX_SHOWN else []
        warnings.warn(
            f"predictions have slots that no reference has: {', '.join(shown + more)}", SlotNameWarning, stacklevel=4
        )
    if convention.match == "token_sort" and names.in_references:
        if {_fold(slot) for slot in convention.categorical_slots}.isdisjoint(map(_fold, names.in_references)):
            warnings.warn(
                "no slot of the references is in categorical_slots, so all are matched fuzzily; set it to the slots "
                "that the schema of the data calls categorical",
                SlotNameWarning,
                stacklevel=4,
            )
    return comparisons


def _filled_slots(state: Mapping[str, Sequence[str]], convention: Convention, *, is_gold: bool) -> dict[str, list[str]]:
    """Return slot -> normalized values of what the convention compares."""
    empty_values = {"", "none", "not mentioned"}
    if convention.none == "literal":
        empty_values = {""}
    elif convention.none == "omit_predicted" and is_gold:
        empty_values = {"", "not mentioned"}
    normalizer, dontcare = convention.normalizer, convention.dontcare
    limit = 1 if convention.alternatives == "first" or (convention.alternatives == "any" and not is_gold) else None
    compared_name = _slot_filter(convention)
    filled = {}
    for name, values in state.items():
        slot = compared_name(name)
        if slot is None:
            continue
        if normalizer == "strip_space":  # ConvLab-3 writes alternatives as one string
            values = [piece for value in values for piece in value.split("|")]
        values = [value for value in values if value not in empty_values]
        if dontcare == "drop_gold" and is_gold and DONTCARE in values:  # mwzeval reads it before it normalizes values
            continue
        if normalizer != "none":
            values = [normalize(normalizer, slot, value, is_gold) for value in values]
            values = [value for value in values if value not in empty_values]  # a table may map a value to "none"
        if is_gold and convention.label_maps is not None:
            others = _label_map(convention.label_maps, normalizer, slot)
            values += [other for value in values for other in others.get(value, ())]
        if dontcare == "drop_both":
            values = [value for value in values if value != DONTCARE]
        if values:
            filled[slot] = values[:limit]
    return filled


@functools.lru_cache(maxsize=1 << 8)
def _label_map(path: str, normalizer: str, slot: str) -> Mapping[str, Sequence[str]]:
    maps: dict[str, list[str]] = {}
    for value, others in read_json(path)["label_maps"].items():
        of_value = maps.setdefault(normalize(normalizer, slot, value), [])
        of_value += [normalize(normalizer, slot, other, False) for other in others]
    return maps


@functools.lru_cache(maxsize=32)
def _scorer(convention: Convention) -> Callable[[str, list[str], list[str]], float]:
    """Return a function (slot, predicted values, gold values) -> score; neither list is empty."""
    compare_sets = convention.alternatives == "all"
    if convention.match == "exact":
        if compare_sets:
            return lambda slot, predicted, gold: float(set(predicted) == set(gold))
        return lambda slot, predicted, gold: float(not set(predicted).isdisjoint(gold))
    similarity = _similarity(convention.match)
    categorical = set(map(_fold, convention.categorical_slots)) if convention.match == "token_sort" else set()

    def score(slot: str, predicted: list[str], gold: list[str]) -> float:
        if predicted == gold:
            return 1.0
        if _fold(slot) in categorical:
            return float(set(predicted) == set(gold) if compare_sets else predicted[0] == gold[0])
        best = [max(similarity(value, other) for other in gold) for value in predicted]
        if compare_sets:
            return min([*best, *(max(similarity(value, other) for value in predicted) for other in gold)])
        return max(best)

    return score


def _similarity(match: str) -> Callable[[str, str], float]:
    """Return a function that compares two values by a ratio of fuzzywuzzy 0.18 and python-Levenshtein, in [0, 1].

    The ratios of `rapidfuzz.fuzz` would give other results than the published evaluators. `partial_ratio` also tries
    substrings that are shorter than the shorter string: it gives 96 for "ian hong house" and "lan hong house", where
    fuzzywuzzy gives 93, and mwzeval accepts all above 95. `ratio` differs by rounding errors, which matter at .5.
    """
    from rapidfuzz import distance

    def percent(value: str, other: str) -> int:
        length = len(value) + len(other)
        return round(100 * (distance.Indel.similarity(value, other) / length))

    @functools.lru_cache(maxsize=1 << 16)
    def partial95(value: str, other: str) -> float:
        # The shorter string against all substrings of its length that start where a block of common characters puts it.
        shorter, longer = sorted((value, other), key=len)
        if not shorter:
            return float(value == other)
        blocks = distance.Levenshtein.opcodes(shorter, longer).as_matching_blocks()
        starts = {max(0, block.b - block.a) for block in blocks}
        return float(max(percent(shorter, longer[start : start + len(shorter)]) for start in starts) > 95)

    @functools.lru_cache(maxsize=1 << 16)
    def token_sort(value: str, other: str) -> float:
        value, other = _sorted_words(value), _sorted_words(other)
        if not value or not other:
            return float(value == other)
        return percent(value, other) / 100.0

    return partial95 if match == "partial95" else token_sort


def _sorted_words(value: str) -> str:
    """Sort the words of a value as fuzzywuzzy does: characters 128 to 255 are deleted, punctuation becomes spaces."""
    return " ".join(sorted(re.sub(r"\W", " ", value.translate(_LATIN_1)).lower().split()))
