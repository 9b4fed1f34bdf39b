"""Joint goal accuracy: the correctness of each row for training, and all results for reports."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.state.conventions import NAME_SLOTS, Convention, resolve_convention
from dair_hf.metrics.state.items import Turn, pair_turns, read_items, read_state
from dair_hf.metrics.state.matching import Comparison, compare_states, compare_turns
from dair_hf.metrics.state.normalizers import DONTCARE
from dair_hf.metrics.state.slot_names import domain_of, reference_names


def joint_goal_correct(
    predictions: Iterable[Any], references: Iterable[Any], preset: str = "any_of", **switches: Any
) -> NDArray[np.bool_]:
    """Return for each row whether the predicted state is entirely correct: the paper's H, usable as `is_correct`.

    Args:
        predictions: [N] states (see `dair_hf.metrics.state.items`), matched to the references by position.
        references: [N] gold states with all correct values.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        **switches: Fields of `Convention` to change.

    Returns:
        [N] bool. Under a fuzzy convention a row is correct if its score is 1. Rows that a convention would skip
        (`empty_answer="skip"`) are compared like all others. Rows without any slot of `domains` and `slots` are
        correct; in contrast, `joint_goal_accuracy` raises an error if that concerns all rows.

    Raises:
        DataError: The preset, a switch, a domain or a slot is unknown, the lengths differ, or an item is not a state.

    Example:
        >>> joint_goal_correct([{"hotel-area": ["east"]}, {}], [{"hotel-area": ["east"]}, {"hotel-area": ["west"]}])
        array([ True, False])
    """
    _, convention = resolve_convention(preset, **switches)
    return joint_goal_scores(predictions, references, convention) >= 1.0


def joint_goal_scores(
    predictions: Iterable[Any], references: Iterable[Any], convention: Convention
) -> NDArray[np.float64]:
    """Return the joint score of each row: 0 or 1, or with `token_sort` the product of the slots' scores.

    Args:
        predictions: [N] states, matched to the references by position.
        references: [N] gold states.
        convention: The rules.

    Returns:
        [N] float64 in [0, 1].

    Raises:
        DataError: The lengths differ, an item is not a state, or the convention has an unknown domain or slot.
    """
    predicted = [read_state(state, f"predictions[{index}]") for index, state in enumerate(predictions)]
    gold = [read_state(state, f"references[{index}]") for index, state in enumerate(references)]
    if len(predicted) != len(gold):
        raise DataError(f"found {len(predicted)} predictions for {len(gold)} references; give one for each")
    names = reference_names(gold, convention)
    scores = [compare_states(p, g, convention, names).score for p, g in zip(predicted, gold, strict=True)]
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
    """Compute the joint goal accuracy and related figures from items in any accepted shape.

    Args:
        predictions: Items (see `dair_hf.metrics.state.items`), matched by id if they have ids, else by position.
        references: Items with all correct values.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        prediction_ids: One id for each prediction, if they are not in the items.
        reference_ids: One id for each reference, if they are not in the items.
        n_bootstrap: Number of bootstrap resamples, clustered by dialogue if items have ids; 0 for no intervals.
        seed: Seed of the bootstrap.
        confidence: Confidence level of the intervals.
        **switches: Fields of `Convention` to change.

    Returns:
        See `summarize_turns`.

    Raises:
        DataError: An item is invalid, the ids do not match, there is no turn, or the preset or a switch is unknown.

    Example:
        >>> gold = [{"row_id": "A/0", "state": {"hotel-area": ["east"]}}]
        >>> joint_goal_accuracy(gold, gold, n_bootstrap=0)["joint_goal_accuracy"]
        1.0
    """
    name, convention = resolve_convention(preset, **switches)
    turns = pair_turns(
        read_items(predictions, "predictions", prediction_ids), read_items(references, "references", reference_ids)
    )
    return summarize_turns(turns, name, convention, n_bootstrap=n_bootstrap, seed=seed, confidence=confidence)


def summarize_turns(
    turns: Sequence[tuple[Turn, Turn]], name: str, convention: Convention, *, progress: bool = False, **bootstrap: Any
) -> dict[str, Any]:
    """Compute the joint goal accuracy and related figures.

    Args:
        turns: (prediction, reference) of each turn.
        name: Name of the convention, as reported.
        convention: The rules.
        progress: Show a progress bar on stderr after two seconds.
        **bootstrap: `n_bootstrap`, `seed` and `confidence` of `dair_hf.evaluation.statistics.ratios_with_intervals`.

    Returns:
        - `joint_goal_accuracy` with `_numerator`, `_denominator`, `_low`, `_high`;
        - `joint_goal_accuracy_names`, likewise: over turns whose gold state has the name of an attraction, a hotel or a
          restaurant, comparing these slots only;
        - `slot_precision`, `slot_recall`, `slot_f1`;
        - `by_domain`: domain -> `joint_goal_accuracy` with `_numerator` and `_denominator` over turns whose gold state
          has the domain, comparing its slots only;
        - `turns`, `turns_skipped`, `empty_predictions`, `empty_references`, `references_with_dontcare`;
        - `unknown_slots`: predicted slot that no reference has -> number of turns;
        - `preset` and `switches`.

        Undefined ratios are NaN.

    Raises:
        DataError: There is no turn, or `domains` or `slots` contain an unknown name or leave nothing to compare.

    Warns:
        SlotNameWarning: Predictions have slots that no reference has.
    """
    if not turns:
        raise DataError("nothing to score: predictions and references contain no turns")
    all_comparisons = compare_turns(turns, convention, progress=progress)
    is_scored = [convention.empty_answer == "score" or comparison.answered for comparison in all_comparisons]
    comparisons = [comparison for comparison, scored in zip(all_comparisons, is_scored, strict=True) if scored]
    dialogues = [reference.dialogue for (_, reference), scored in zip(turns, is_scored, strict=True) if scored]
    ratios = {
        "joint_goal_accuracy": _joint_goal(comparisons),
        "joint_goal_accuracy_names": _joint_goal(comparisons, NAME_SLOTS),
    }
    clusters = [dialogue for dialogue in dialogues if dialogue is not None] or None
    values = ratios_with_intervals(ratios, clusters, **bootstrap)
    result: dict[str, Any] = {}
    for key, (numerators, denominators) in ratios.items():
        result |= {f"{key}{end}": values[f"{key}{end}"] for end in ("", "_low", "_high") if f"{key}{end}" in values}
        result |= {f"{key}_numerator": _total(numerators), f"{key}_denominator": _total(denominators)}
    return (
        result
        | _slot_figures(comparisons)
        | {
            "by_domain": _by_domain(comparisons),
            "turns": len(turns),
            "turns_skipped": len(turns) - len(comparisons),
            "empty_predictions": sum(not comparison.answered for comparison in all_comparisons),
            "empty_references": sum(not any(reference.state.values()) for _, reference in turns),
            "references_with_dontcare": sum(
                any(DONTCARE in values for values in reference.state.values()) for _, reference in turns
            ),
            "unknown_slots": dict(Counter(slot for c in all_comparisons for slot in c.unknown).most_common()),
            "preset": name,
            "switches": dataclasses.asdict(convention),
        }
    )


def _joint_goal(
    comparisons: Sequence[Comparison], slots: Collection[str] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return numerators and denominators of the joint goal accuracy over some slots, in turns whose gold has one."""
    if slots is None:
        return np.array([comparison.score for comparison in comparisons]), np.ones(len(comparisons))
    has_slot = [float(any(slot in slots for slot in comparison.gold_slots)) for comparison in comparisons]
    scores = [
        math.prod((score for slot, score in comparison.scores.items() if slot in slots), start=1.0)
        for comparison in comparisons
    ]
    return np.array(scores) * np.array(has_slot), np.array(has_slot)


def _by_domain(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    slots = {slot for comparison in comparisons for slot in comparison.scores}
    domains = {domain_of(slot) for comparison in comparisons for slot in comparison.gold_slots}
    result = {}
    for domain in sorted(domains):
        numerators, denominators = _joint_goal(comparisons, {slot for slot in slots if domain_of(slot) == domain})
        result[domain] = {
            "joint_goal_accuracy": float(numerators.sum() / denominators.sum()),
            "joint_goal_accuracy_numerator": _total(numerators),
            "joint_goal_accuracy_denominator": _total(denominators),
        }
    return result


def _slot_figures(comparisons: Sequence[Comparison]) -> dict[str, float]:
    hits, predicted, gold = (
        sum(getattr(comparison, name) for comparison in comparisons) for name in ("hits", "predicted", "gold")
    )
    undefined = float("nan")
    return {
        "slot_precision": hits / predicted if predicted else undefined,
        "slot_recall": hits / gold if gold else undefined,
        "slot_f1": 2 * hits / (predicted + gold) if predicted + gold else undefined,
    }


def _total(values: NDArray[np.float64]) -> float | int:
    """Return the sum, as int if it is whole."""
    total = float(values.sum())
    return int(total) if total.is_integer() else total
