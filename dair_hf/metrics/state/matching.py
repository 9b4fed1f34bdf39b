"""Compare one predicted state with one gold state under a convention, slot by slot."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import Convention
from dair_hf.metrics.state.items import Turn
from dair_hf.metrics.state.normalizers import DONTCARE, normalize, normalize_slot
from dair_hf.metrics.state.slot_names import (
    SlotNames,
    check_something_counts,
    fold,
    reference_names,
    slot_filter,
    warn_about_names,
)

_UNFILLED = frozenset({"", "none", "not mentioned"})
_NEVER_A_GOLD_VALUE = frozenset({"", "not mentioned"})
_EMPTY = frozenset({""})


class Comparison(NamedTuple):
    """What came of one turn.

    scores: score in [0, 1] of every slot that counts; a slot that was predicted beside the gold has 0.
    gold_slots: the slots filled in the gold.
    unknown: the predicted slots that neither the references nor MultiWOZ know by that name.
    hits, predicted, gold: for precision and recall, in slots (in slot-value pairs where `alternatives` is "all").
    answered: whether anything at all was predicted, before the convention leaves anything out.
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
        """The joint score: the product over all slots that count; 1.0 for two empty states."""
        product = 1.0
        for score in self.scores.values():
            product *= score
        return product


def compare_states(
    prediction: Mapping[str, Sequence[str]],
    reference: Mapping[str, Sequence[str]],
    convention: Convention,
    names: SlotNames | None = None,
) -> Comparison:
    """Compare a predicted state with a gold state.

    Args:
        prediction: slot -> values.
        reference: slot -> alternatives, the first preferred.
        convention: The switches.
        names: The slot names of all references (`slot_names.reference_names`); None: those of this one.

    Returns:
        The comparison; the turn is right when its `score` is 1.

    Raises:
        DataError: The convention matches fuzzily and rapidfuzz is not installed.

    Example:
        >>> gold = {"hotel-area": ["centre", "center"], "hotel-stars": ["4"]}
        >>> compare_states({"hotel-area": ["center"]}, gold, Convention()).scores
        {'hotel-area': 1.0, 'hotel-stars': 0.0}
    """
    if names is None:
        names = SlotNames(normalize_slot(convention.normalizer, slot) for slot in reference)
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
    extra = [slot for slot in predicted if slot not in gold]
    unknown = [slot for slot in extra if slot not in names]
    if convention.extra == "penalise_known":
        extra = [slot for slot in extra if not names.schema_lacks(slot)]
    elif convention.extra == "ignore":
        # An ignored slot is one the gold does not speak of; one it names as empty must be empty.
        extra = [slot for slot in extra if slot in reference]
    for slot in extra:
        scores[slot] = 0.0
    counted = len(extra) + sum(slot in predicted for slot in gold)
    answered = any(value for values in prediction.values() for value in values)
    if convention.alternatives != "all":
        return Comparison(scores, gold_slots, unknown, hits, counted, len(gold), answered)
    pairs = {(slot, value) for slot, values in gold.items() for value in values}
    found_pairs = {(slot, value) for slot, values in predicted.items() if slot in scores for value in values}
    return Comparison(scores, gold_slots, unknown, len(pairs & found_pairs), len(found_pairs), len(pairs), answered)


def compare_turns(
    turns: Sequence[tuple[Turn, Turn]], convention: Convention, *, progress: bool = False
) -> list[Comparison]:
    """Compare all turns of a data set; unknown slot names are refused in the convention and warned of in predictions.

    Args:
        turns: (prediction, reference) of every turn.
        convention: The switches.
        progress: Show a bar on stderr once the work has taken two seconds.

    Returns:
        One comparison for each turn.

    Raises:
        DataError: `domains` or `slots` hold an unknown name or leave nothing to compare; or as `compare_states`.
    """
    names = reference_names((reference.state for _, reference in turns), convention)
    check_something_counts(names, convention)
    comparisons = [
        compare_states(prediction.state, reference.state, convention, names)
        for prediction, reference in tqdm(turns, desc="turns", delay=2.0, leave=False, disable=not progress)
    ]
    warn_about_names(Counter(slot for comparison in comparisons for slot in comparison.unknown), names, convention)
    return comparisons


def _filled(state: Mapping[str, Sequence[str]], convention: Convention, *, is_gold: bool) -> dict[str, list[str]]:
    """Leave out what the convention does not compare and normalize the rest."""
    unfilled = _UNFILLED
    if convention.none == "literal":
        unfilled = _EMPTY
    elif convention.none == "omit_predicted" and is_gold:
        unfilled = _NEVER_A_GOLD_VALUE
    normalizer, dontcare = convention.normalizer, convention.dontcare
    limit = 1 if convention.alternatives == "first" or (convention.alternatives == "any" and not is_gold) else None
    compared = slot_filter(convention)
    filled = {}
    for name, values in state.items():
        slot = compared(name)
        if slot is None:
            continue
        if normalizer == "strip_space":  # ConvLab-3 writes alternatives as one string
            values = [piece for value in values for piece in value.split("|")]
        kept = [value for value in values if value not in unfilled]
        if normalizer != "none":
            kept = [normalize(normalizer, slot, value, is_gold) for value in kept]
            kept = [value for value in kept if value not in unfilled]  # a table may only now have made it "none"
        if dontcare == "drop_both":
            kept = [value for value in kept if value != DONTCARE]
        elif dontcare == "drop_gold" and is_gold and DONTCARE in kept:
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
        return lambda slot, found, gold: float(not set(found).isdisjoint(gold))
    ratio = _ratio(convention.match)
    categorical = (
        frozenset(map(fold, convention.categorical_slots)) if convention.match == "token_sort" else frozenset()
    )
    every = convention.alternatives == "all"

    def score(slot: str, found: list[str], gold: list[str]) -> float:
        if found == gold:
            return 1.0
        if fold(slot) in categorical:
            return float(set(found) == set(gold) if every else found[0] == gold[0])
        best = [max(ratio(value, other) for other in gold) for value in found]
        if every:
            return min([*best, *(max(ratio(value, other) for value in found) for other in gold)])
        return max(best)

    return score


def _ratio(match: str) -> Callable[[str, str], float]:
    indel, levenshtein = _rapidfuzz()

    def percent(value: str, other: str) -> int:
        """Characters in common, in order, over all characters: a whole per cent, as fuzzywuzzy's `ratio`."""
        length = len(value) + len(other)
        return round(100 * ((length - indel.distance(value, other)) / length))

    @functools.lru_cache(maxsize=1 << 16)
    def partial95(value: str, other: str) -> float:
        # fuzzywuzzy's partial ratio: the shorter string against the parts of the longer one that have its length and
        # begin where a run of common characters puts it. rapidfuzz's own also tries shorter parts and so finds more.
        shorter, longer = sorted((value, other), key=len)
        if not shorter:
            return float(value == other)
        blocks = levenshtein.opcodes(shorter, longer).as_matching_blocks()
        starts = {max(0, block.b - block.a) for block in blocks}
        return float(max(percent(shorter, longer[start : start + len(shorter)]) for start in starts) > 95)

    @functools.lru_cache(maxsize=1 << 16)
    def token_sort(value: str, other: str) -> float:
        value, other = _sorted_tokens(value), _sorted_tokens(other)
        if not value or not other:
            return float(value == other)
        return percent(value, other) / 100.0

    return partial95 if match == "partial95" else token_sort


_LATIN_1 = dict.fromkeys(range(128, 256))


def _sorted_tokens(value: str) -> str:
    """Sort the words of a value as fuzzywuzzy does: without the characters 128 to 255, other marks as spaces."""
    return " ".join(sorted(re.sub(r"\W", " ", value.translate(_LATIN_1)).lower().split()))


def _rapidfuzz() -> tuple[Any, Any]:
    try:
        from rapidfuzz import distance
    except ImportError as error:
        raise DataError("fuzzy matching needs rapidfuzz, which is not installed: pip install dair-hf[fuzzy]") from error
    return distance.Indel, distance.Levenshtein
