"""Joint goal accuracy over many turns: per-row correctness for training, and the full set of figures for reports."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.state.conventions import NAME_SLOTS, Convention, resolve_convention
from dair_hf.metrics.state.items import Turn, pair_turns, read_items, read_state
from dair_hf.metrics.state.matching import Comparison, compare_states, compare_turns
from dair_hf.metrics.state.normalizers import DONTCARE
from dair_hf.metrics.state.slot_names import reference_names


def joint_goal_correct(
    predictions: Iterable[Any], references: Iterable[Any], preset: str = "any_of", **switches: Any
) -> NDArray[np.bool_]:
    """Tell for every row whether the whole predicted state is right: the paper's H, usable as `is_correct`.

    Args:
        predictions: [N] states (see `dair_hf.metrics.state.items`), matched to the references by position.
        references: [N] states with all alternatives.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        **switches: Changed switches.

    Returns:
        [N] bool. Fuzzy conventions count a row as right at the full score of 1. A row that a convention would skip
        (`empty_answer="skip"`) is compared like any other: a mask has no third value. Where `domains` or `slots` leave
        nothing of a row to compare it is right; `joint_goal_accuracy` refuses data of which nothing is left.

    Raises:
        DataError: Unknown preset, switch, domain or slot, different lengths, or an item that is not a state.

    Example:
        >>> joint_goal_correct([{"hotel-area": ["east"]}, {}], [{"hotel-area": ["east"]}, {"hotel-area": ["west"]}])
        array([ True, False])
    """
    _, convention = resolve_convention(preset, **switches)
    return joint_goal_scores(predictions, references, convention) >= 1.0


def joint_goal_scores(
    predictions: Iterable[Any], references: Iterable[Any], convention: Convention
) -> NDArray[np.float64]:
    """Score every row in [0, 1]: 0 or 1 for exact conventions, the product over slots for `token_sort`.

    Args:
        predictions: [N] states, matched by position.
        references: [N] states.
        convention: A resolved convention.

    Returns:
        [N] float64.

    Raises:
        DataError: Different lengths, an item that is not a state, or an unknown domain or slot in the convention.
    """
    found, gold = list(predictions), list(references)
    turns = pair_turns(
        [Turn(None, "original", None, read_state(state, f"predictions[{i}]"), "") for i, state in enumerate(found)],
        [Turn(None, "original", None, read_state(state, f"references[{i}]"), "") for i, state in enumerate(gold)],
    )
    names = reference_names((reference.state for _, reference in turns), convention)
    scores = [compare_states(p.state, r.state, convention, names).score for p, r in turns]
    return np.array(scores, dtype=np.float64)


def joint_goal_accuracy(
    predictions: Iterable[Any],
    references: Iterable[Any],
    *,
    preset: str = "any_of",
    prediction_ids: Sequence[Any] | None = None,
    reference_ids: Sequence[Any] | None = None,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    **switches: Any,
) -> dict[str, Any]:
    """Compute joint goal accuracy and what belongs beside it from items in any accepted shape.

    Args:
        predictions: Items (see `dair_hf.metrics.state.items`); matched by id where they have one, else by position.
        references: Items with all gold alternatives.
        preset: The convention's name.
        prediction_ids: Ids given apart, one for each prediction.
        reference_ids: Ids given apart, one for each reference.
        n_bootstrap: Resamples for the interval, clustered by dialogue where items have ids; 0 for none.
        seed: Seed of the resampling.
        confidence: Coverage of the interval.
        **switches: Changed switches.

    Returns:
        See `summarize_turns`.

    Raises:
        DataError: Bad items, ids that do not match, no turn at all, unknown preset or switch.

    Example:
        >>> gold = [{"row_id": "A/0", "state": {"hotel-area": ["east"]}}]
        >>> joint_goal_accuracy(gold, gold, n_bootstrap=0)["joint_goal_accuracy"]
        1.0
    """
    name, convention = resolve_convention(preset, **switches)
    turns = pair_turns(
        read_items(predictions, "predictions", prediction_ids), read_items(references, "references", reference_ids)
    )
    return summarize_turns(
        turns, name, convention, n_bootstrap=n_bootstrap, seed=seed, confidence=confidence, progress=False
    )


def summarize_turns(
    turns: Sequence[tuple[Turn, Turn]],
    name: str,
    convention: Convention,
    *,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    progress: bool = False,
) -> dict[str, Any]:
    """Compute all figures of paired turns.

    Args:
        turns: (prediction, reference) of every turn.
        name: The convention's name, printed with the figures.
        convention: The resolved convention.
        n_bootstrap: Resamples; 0 for no interval.
        seed: Seed of the resampling.
        confidence: Coverage of the interval.
        progress: Show a bar on stderr once the work has taken two seconds.

    Returns:
        `joint_goal_accuracy` with `_numerator`, `_denominator`, `_low`, `_high`; `joint_goal_accuracy_names` (turns
        whose gold names an attraction, hotel or restaurant, these slots only) with the same; `slot_precision`,
        `slot_recall`, `slot_f1`; `by_domain`: domain -> the same three for turns whose gold holds that domain, its
        slots only; the counts `turns`, `turns_skipped`, `empty_predictions`, `empty_references`,
        `references_with_dontcare`; `unknown_slots`: predicted slot that no reference holds -> turns, also said in a
        warning; `preset` and `switches`. An undefined ratio is NaN.

    Raises:
        DataError: There is no turn; `domains` or `slots` hold an unknown name, or leave nothing to compare.
    """
    if not turns:
        raise DataError("no turns to score: predictions and references are empty; check the inputs")
    compared = compare_turns(turns, convention, progress=progress)
    keeps_all = convention.empty_answer != "skip"
    kept = [
        (reference, comparison)
        for (_, reference), comparison in zip(turns, compared, strict=True)
        if keeps_all or comparison.answered
    ]
    comparisons = [comparison for _, comparison in kept]
    clusters = _clusters([reference for reference, _ in kept])
    ones = np.ones(len(kept))
    names, has_names = _restricted(comparisons, lambda slot: slot in NAME_SLOTS)
    ratios = {
        "joint_goal_accuracy": (np.array([comparison.score for comparison in comparisons]), ones),
        "joint_goal_accuracy_names": (names, has_names),
    }
    values = ratios_with_intervals(ratios, clusters, n_bootstrap=n_bootstrap, seed=seed, confidence=confidence)
    result: dict[str, Any] = {}
    for key, (numerators, denominators) in ratios.items():
        result |= {k: value for k, value in values.items() if k.removesuffix("_low").removesuffix("_high") == key}
        result |= {f"{key}_numerator": _sum(numerators), f"{key}_denominator": _sum(denominators)}
    return (
        result
        | _slot_figures(comparisons)
        | {
            "by_domain": _by_domain(comparisons),
            "turns": len(turns),
            "turns_skipped": len(turns) - len(kept),
            "empty_predictions": sum(not comparison.answered for comparison in compared),
            "empty_references": sum(not any(reference.state.values()) for _, reference in turns),
            "references_with_dontcare": sum(
                any(value == DONTCARE for values in reference.state.values() for value in values)
                for _, reference in turns
            ),
            "unknown_slots": dict(Counter(slot for c in compared for slot in c.unknown).most_common()),
            "preset": name,
            "switches": dataclasses.asdict(convention),
        }
    )


def _clusters(references: Sequence[Turn]) -> list[str] | None:
    if not references or references[0].dialogue is None:
        return None
    return [str(reference.dialogue) for reference in references]


def _restricted(comparisons: Sequence[Comparison], counts: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Joint score over the slots that count, in the turns whose gold holds one of them."""
    tops, bottoms = [], []
    for comparison in comparisons:
        present = any(counts(slot) for slot in comparison.gold_slots)
        product = 1.0 if present else 0.0
        if present:
            for slot, score in comparison.scores.items():
                if counts(slot):
                    product *= score
        tops.append(product)
        bottoms.append(float(present))
    return np.array(tops, dtype=np.float64), np.array(bottoms, dtype=np.float64)


def _by_domain(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    sums: dict[str, list[float]] = {}
    for comparison in comparisons:
        products = dict.fromkeys([slot.partition("-")[0] for slot in comparison.gold_slots], 1.0)
        for slot, score in comparison.scores.items():
            domain = slot.partition("-")[0]
            if domain in products:
                products[domain] *= score
        for domain, product in products.items():
            total = sums.setdefault(domain, [0.0, 0.0])
            total[0] += product
            total[1] += 1
    return {
        domain: {
            "joint_goal_accuracy": numerator / denominator,
            "joint_goal_accuracy_numerator": _sum(numerator),
            "joint_goal_accuracy_denominator": _sum(denominator),
        }
        for domain, (numerator, denominator) in sorted(sums.items())
    }


def _slot_figures(comparisons: Sequence[Comparison]) -> dict[str, float]:
    hits = sum(comparison.hits for comparison in comparisons)
    predicted = sum(comparison.predicted for comparison in comparisons)
    gold = sum(comparison.gold for comparison in comparisons)
    undefined = float("nan")
    return {
        "slot_precision": hits / predicted if predicted else undefined,
        "slot_recall": hits / gold if gold else undefined,
        "slot_f1": 2 * hits / (predicted + gold) if predicted + gold else undefined,
    }


def _sum(values: Any) -> float | int:
    """Sum to an int where it is one, as it always is but for fractional scores."""
    total = float(np.sum(values))
    return int(total) if total.is_integer() else total
