"""Compare one predicted state with one gold state under a convention, slot by slot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.metrics.conventions import Convention
from dair_hf.metrics.normalizers import DONTCARE, normalize

_UNFILLED = frozenset({"", "none", "not mentioned"})
_NEVER_A_GOLD_VALUE = frozenset({"", "not mentioned"})
_EMPTY = frozenset({""})


class Comparison(NamedTuple):
    """What came of one turn.

    scores: score in [0, 1] of every slot that counts; a slot that was predicted beside the gold has 0.
    gold_slots: the slots filled in the gold.
    hits, predicted, gold: for precision and recall, in slots (in slot-value pairs where `alternatives` is "all").
    answered: whether anything at all was predicted, before the convention leaves anything out.
    """

    scores: dict[str, float]
    gold_slots: list[str]
    hits: float
    predicted: int
    gold: int
    answered: bool

    @property
    def score(self) -> float:
        """The joint score: the product over all slots that count; 1.0 for two empty states."""
        product = 1.0
        for score in self.scores.values():
            product *= score
        return product


def compare_states(
    prediction: Mapping[str, Sequence[str]], reference: Mapping[str, Sequence[str]], convention: Convention
) -> Comparison:
    """Compare a predicted state with a gold state.

    Args:
        prediction: slot -> values.
        reference: slot -> alternatives, the first preferred.
        convention: The switches.

    Returns:
        The comparison; the turn is right when its `score` is 1.

    Raises:
        DataError: The convention matches fuzzily and rapidfuzz is not installed.

    Example:
        >>> gold = {"hotel-area": ["centre", "center"], "hotel-stars": ["4"]}
        >>> compare_states({"hotel-area": ["center"]}, gold, Convention()).scores
        {'hotel-area': 1.0, 'hotel-stars': 0.0}
    """
    predicted = _filled(prediction, convention, is_gold=False)
    gold = _filled(reference, convention, is_gold=True)
    score_slot = _slot_scorer(convention)
    scores = {}
    hits = 0.0
    for slot, values in gold.items():
        found = predicted.get(slot)
        score = score_slot(slot, found, values) if found is not None else 0.0
        scores[slot] = score
        hits += score
    gold_slots = list(gold)
    # An ignored slot is one the gold does not speak of; one it names as empty must be empty.
    extra = [slot for slot in predicted if slot not in gold and (convention.extra == "penalise" or slot in reference)]
    for slot in extra:
        scores[slot] = 0.0
    counted = len(extra) + sum(slot in predicted for slot in gold)
    answered = any(value for values in prediction.values() for value in values)
    if convention.alternatives != "all":
        return Comparison(scores, gold_slots, hits, counted, len(gold), answered)
    pairs = {(slot, value) for slot, values in gold.items() for value in values}
    found_pairs = {(slot, value) for slot, values in predicted.items() if slot in scores for value in values}
    return Comparison(scores, gold_slots, len(pairs & found_pairs), len(found_pairs), len(pairs), answered)


def _filled(state: Mapping[str, Sequence[str]], convention: Convention, *, is_gold: bool) -> dict[str, list[str]]:
    """Leave out what the convention does not compare and normalize the rest."""
    unfilled = _UNFILLED
    if convention.none == "literal":
        unfilled = _EMPTY
    elif convention.none == "omit_predicted" and is_gold:
        unfilled = _NEVER_A_GOLD_VALUE
    normalizer, dontcare = convention.normalizer, convention.dontcare
    limit = 1 if convention.alternatives == "first" or (convention.alternatives == "any" and not is_gold) else None
    filled = {}
    for slot, values in state.items():
        if convention.slots is not None and slot not in convention.slots:
            continue
        if convention.domains is not None and slot.partition("-")[0] not in convention.domains:
            continue
        kept = [value for value in values if value not in unfilled]
        if normalizer != "none":
            kept = [normalize(normalizer, slot, value) for value in kept]
            kept = [value for value in kept if value not in unfilled]  # a table may only now have made it "none"
        if dontcare == "drop_both":
            kept = [value for value in kept if value not in DONTCARE]
        elif dontcare == "drop_gold" and is_gold and any(value in DONTCARE for value in kept):
            continue
        if kept:
            filled[slot] = kept[:limit]
    return filled


SlotScore = Callable[[str, list[str], list[str]], float]


@functools.lru_cache(maxsize=32)
def _slot_scorer(convention: Convention) -> SlotScore:
    """Build (slot, predicted values, gold values) -> score. Both lists are non-empty and already cut to what counts."""
    if convention.alternatives == "all" and convention.match == "exact":
        return lambda slot, found, gold: float(set(found) == set(gold))
    if convention.match == "exact":
        return lambda slot, found, gold: float(any(value in gold for value in found))
    ratio = _ratio(convention.match)
    categorical = frozenset(convention.categorical_slots) if convention.match == "token_sort" else frozenset()
    every = convention.alternatives == "all"

    def score(slot: str, found: list[str], gold: list[str]) -> float:
        if slot in categorical:
            return float(set(found) == set(gold) if every else found[0] == gold[0])
        best = [max(ratio(value, other) for other in gold) for value in found]
        if every:
            return min([*best, *(max(ratio(value, other) for value in found) for other in gold)])
        return max(best)

    return score


def _ratio(match: str) -> Callable[[str, str], float]:
    fuzz, default_process = _rapidfuzz()

    # Ratios are rounded to whole per cents, as in the library that the published scripts used.
    @functools.lru_cache(maxsize=1 << 16)
    def partial95(value: str, other: str) -> float:
        return float(round(fuzz.partial_ratio(value, other)) > 95)

    @functools.lru_cache(maxsize=1 << 16)
    def token_sort(value: str, other: str) -> float:
        return round(fuzz.token_sort_ratio(value, other, processor=default_process)) / 100.0

    return partial95 if match == "partial95" else token_sort


def _rapidfuzz() -> tuple[Any, Any]:
    try:
        from rapidfuzz import fuzz, utils
    except ImportError as error:
        raise DataError("fuzzy matching needs rapidfuzz, which is not installed: pip install dair-hf[fuzzy]") from error
    return fuzz, utils.default_process
