"""Comparison of a predicted state with a gold state, slot by slot."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import Belief
from dair_hf.metrics.state.conventions import Convention
from dair_hf.metrics.state.fuzzy import fuzzy_comparison
from dair_hf.metrics.state.items import UNREAD_SHARE, Turn, require_belief_text
from dair_hf.metrics.state.normalizers import DONTCARE, normalize, normalize_slot
from dair_hf.metrics.state.slot_names import (
    SlotNames,
    fold,
    reference_names,
    require_compared_slots,
    slot_filter,
    warn_about_names,
)


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
    names: SlotNames | None = None,
) -> Comparison:
    """Compare a predicted state with a gold state.

    Args:
        prediction: slot -> values, or what was read from text. A slot that the text repeats with other values scores 0.
        reference: slot -> correct values, the preferred one first.
        convention: The rules.
        names: Slot names of all references, from `dair_hf.metrics.state.slot_names.reference_names`. None: those of
            this reference.

    Returns:
        The comparison. The turn is correct if its `score` is 1.

    Raises:
        DataError: The convention matches fuzzily and rapidfuzz is not installed.

    Example:
        >>> gold = {"hotel-area": ["centre", "center"], "hotel-stars": ["4"]}
        >>> compare_states({"hotel-area": ["center"]}, gold, Convention()).scores
        {'hotel-area': 1.0, 'hotel-stars': 0.0}
    """
    belief = prediction if isinstance(prediction, Belief) else Belief.of(prediction)
    if names is None:
        names = SlotNames(normalize_slot(convention.normalizer, slot) for slot in reference)
    predicted = _filled_slots(belief.state, convention, is_gold=False)
    gold = _filled_slots(reference, convention, is_gold=True)
    score = _scorer(convention)
    for field in belief.repeated:
        for slot, values in _filled_slots(dict([field]), convention, is_gold=False).items():
            if predicted.setdefault(slot, values) != values:
                predicted[slot] = []  # two different values, of which no gold state has both
    scores = {
        slot: score(slot, predicted[slot], values) if predicted.get(slot) else 0.0 for slot, values in gold.items()
    }
    hits = sum(scores.values(), 0.0)
    extra = [slot for slot in predicted if slot not in gold]
    unknown = [slot for slot in extra if slot not in names]
    if convention.extra == "penalise_known":
        extra = [slot for slot in extra if not names.schema_lacks(slot)]
    elif convention.extra == "ignore":
        extra = []
    scores |= dict.fromkeys(extra, 0.0)
    if convention.alternatives != "all":
        n_predicted = sum(slot in predicted for slot in scores)
        return Comparison(scores, list(gold), unknown, hits, n_predicted, len(gold), belief.answered)
    gold_pairs = {(slot, value) for slot, values in gold.items() for value in values}
    pairs = {(slot, value) for slot, values in predicted.items() if slot in scores for value in values}
    return Comparison(
        scores, list(gold), unknown, len(gold_pairs & pairs), len(pairs), len(gold_pairs), belief.answered
    )


def compare_turns(
    turns: Sequence[tuple[Turn, Turn]], convention: Convention, *, progress: bool = False
) -> list[Comparison]:
    """Compare all turns of a data set.

    Args:
        turns: (prediction, reference) of each turn.
        convention: The rules.
        progress: Show a progress bar on stderr after two seconds.

    Returns:
        One comparison for each turn.

    Raises:
        DataError: Nearly all predictions are text in another form than that of a state, or have no slot that a
            reference or MultiWOZ has; `domains` or `slots` contain an unknown name or leave nothing to compare; or as
            `compare_states`.

    Warns:
        SlotNameWarning: Predictions have slots that no reference has.
        BeliefTextWarning: Predictions are text in another form than that of a state.
    """
    require_belief_text([prediction for prediction, _ in turns])
    names = reference_names((reference.state for _, reference in turns), convention)
    require_compared_slots(names, convention)
    comparisons = [
        compare_states(prediction.belief, reference.state, convention, names)
        for prediction, reference in tqdm(turns, desc="turns", delay=2.0, leave=False, disable=not progress)
    ]
    unknown = Counter(slot for comparison in comparisons for slot in comparison.unknown)
    slots = sum(len(prediction.state) for prediction, _ in turns)
    if names.in_references and unknown.total() > UNREAD_SHARE * slots:
        raise DataError(
            f"predictions: expected slots such as {min(names.in_references)!r}, got {min(unknown)!r}; no reference has "
            f"{unknown.total()} of their {slots} slots"
        )
    warn_about_names(unknown, names, convention)
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
    compared_name = slot_filter(convention)
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
        if dontcare == "drop_both":
            values = [value for value in values if value != DONTCARE]
        if values:
            filled[slot] = values[:limit]
    return filled


@functools.lru_cache(maxsize=32)
def _scorer(convention: Convention) -> Callable[[str, list[str], list[str]], float]:
    """Return a function (slot, predicted values, gold values) -> score; neither list is empty."""
    compare_sets = convention.alternatives == "all"
    if convention.match == "exact":
        if compare_sets:
            return lambda slot, predicted, gold: float(set(predicted) == set(gold))
        return lambda slot, predicted, gold: float(not set(predicted).isdisjoint(gold))
    similarity = fuzzy_comparison(convention.match)
    categorical = set(map(fold, convention.categorical_slots)) if convention.match == "token_sort" else set()

    def score(slot: str, predicted: list[str], gold: list[str]) -> float:
        if predicted == gold:
            return 1.0
        if fold(slot) in categorical:
            return float(set(predicted) == set(gold) if compare_sets else predicted[0] == gold[0])
        best = [max(similarity(value, other) for other in gold) for value in predicted]
        if compare_sets:
            return min([*best, *(max(similarity(value, other) for value in predicted) for other in gold)])
        return max(best)

    return score
