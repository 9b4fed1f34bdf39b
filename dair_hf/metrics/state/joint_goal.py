"""Joint goal accuracy: the correctness of each row for training, and all results for reports."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.state.belief_text import Belief
from dair_hf.metrics.state.conventions import NAME_SLOTS, Convention, resolve_convention
from dair_hf.metrics.state.items import (
    Turn,
    join_views,
    pair_turns,
    read_items,
    read_state,
    warn_of_one_cluster,
)
from dair_hf.metrics.state.matching import Comparison, compare_states, compare_turns
from dair_hf.metrics.state.normalizers import DONTCARE
from dair_hf.metrics.state.slot_names import domain_of, reference_names


def joint_goal_correct(
    predictions: Iterable[Any], references: Iterable[Any], preset: str = "any_of", **switches: Any
) -> NDArray[np.bool_]:
    """Return for each row whether the predicted state is entirely correct: the paper's H, usable as `is_correct`.

    Args:
        predictions: [N] states (see `dair_hf.metrics.state.items`), or `Belief` objects read from text; matched to
            the references by position.
        references: [N] gold states with all correct values.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        **switches: Fields of `Convention` to change.

    Returns:
        [N] bool. Rows that the preset would skip (`empty_answer="skip"`) are compared like all others, and a row with a
        graded score is correct if the score is 1, so the mean may differ from the preset's accuracy, which is that of
        `joint_goal_scores`; `resolve_pair_convention` names the rules used here. Rows without any slot of `domains` and
        `slots` are correct; in contrast, `joint_goal_accuracy` raises an error if that concerns all rows.

    Raises:
        DataError: The preset, a switch, a domain or a slot is unknown, the lengths differ, or an item is not a state.

    Example:
        >>> joint_goal_correct([{"hotel-area": ["east"]}, {}], [{"hotel-area": ["east"]}, {"hotel-area": ["west"]}])
        array([ True, False])
    """
    _, convention = resolve_convention(preset, **switches)
    comparisons = _compare(predictions, references, convention)
    return np.array([comparison.score >= 1.0 for comparison in comparisons], dtype=np.bool_)


def joint_goal_scores(
    predictions: Iterable[Any], references: Iterable[Any], convention: Convention
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the joint score of each row, and whether the convention scores it.

    The joint goal accuracy is the mean of the scores over the rows that are scored.
    """
    comparisons = _compare(predictions, references, convention)
    scored = np.array([_is_scored(comparison, convention) for comparison in comparisons], dtype=np.bool_)
    return np.array([comparison.score for comparison in comparisons], dtype=np.float64), scored


def _is_scored(comparison: Comparison, convention: Convention) -> bool:
    return convention.empty_answer == "score" or comparison.answered


def _compare(predictions: Iterable[Any], references: Iterable[Any], convention: Convention) -> list[Comparison]:
    predicted = [
        state if isinstance(state, Belief) else read_state(state, f"predictions[{index}]")
        for index, state in enumerate(predictions)
    ]
    gold = [read_state(state, f"references[{index}]") for index, state in enumerate(references)]
    if len(predicted) != len(gold):
        raise DataError(f"found {len(predicted)} predictions for {len(gold)} references; give one for each")
    names = reference_names(gold, convention)
    return [compare_states(p, g, convention, names) for p, g in zip(predicted, gold, strict=True)]


def joint_goal_accuracy(
    predictions: Iterable[Any],
    references: Iterable[Any],
    *,
    preset: str = "any_of",
    prediction_ids: Sequence[Any] | None = None,
    reference_ids: Sequence[Any] | None = None,
    intervals: bool = True,
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
        intervals: Whether to compute confidence intervals, with clusters or dialogues as units if items have them.
        confidence: Confidence level of the intervals.
        **switches: Fields of `Convention` to change.

    Returns:
        See `summarize_turns`.

    Raises:
        DataError: An item is invalid, the ids do not match, there is no turn, or the preset or a switch is unknown.

    Example:
        >>> gold = [{"row_id": "A/0", "state": {"hotel-area": ["east"]}}]
        >>> joint_goal_accuracy(gold, gold, intervals=False)["joint_goal_accuracy"]
        1.0
    """
    name, convention = resolve_convention(preset, **switches)
    turns = pair_turns(
        read_items(predictions, "predictions", prediction_ids), read_items(references, "references", reference_ids)
    )
    return summarize_turns(turns, name, convention, intervals=intervals, confidence=confidence)


def summarize_turns(
    turns: Sequence[tuple[Turn, Turn]], name: str, convention: Convention, *, progress: bool = False, **settings: Any
) -> dict[str, Any]:
    """Compute the joint goal accuracy and related figures."""
    if not turns:
        raise DataError("nothing to score: predictions and references contain no turns")
    if settings.get("intervals", True):
        units = {turn.row_id or turn.where: turn.unit for _, turn in turns if turn.unit is not None}
        warn_of_one_cluster(list(units.values()), next(iter(units), None))
    comparisons = compare_turns(turns, convention, progress=progress)
    compared = [(reference, comparison) for (_, reference), comparison in zip(turns, comparisons, strict=True)]
    figures = {
        prefix + key: value
        for prefix, view in _views(compared).items()
        for key, value in _figures(view, convention, settings).items()
    }
    return figures | {"preset": name, "switches": dataclasses.asdict(convention)}


def _views(compared: Sequence[tuple[Turn, Comparison]]) -> dict[str, Sequence[tuple[Turn, Comparison]]]:
    """Return prefix of the keys -> turns of the view; one view without prefix if there is only one."""
    if len({reference.variant for reference, _ in compared}) == 1:
        return {"": compared}
    rows = join_views((reference.row_id, reference.variant, reference.where) for reference, _ in compared).values()
    return {
        "original_": [compared[numbers["original"]] for numbers in rows],
        "augmented_": [
            compared[number]
            for numbers in rows
            for variant, number in numbers.items()
            if variant != "original" or len(numbers) == 1
        ],
    }


def _figures(
    compared: Sequence[tuple[Turn, Comparison]], convention: Convention, settings: Mapping[str, Any]
) -> dict[str, Any]:
    all_comparisons = [comparison for _, comparison in compared]
    scored = [(reference, comparison) for reference, comparison in compared if _is_scored(comparison, convention)]
    comparisons = [comparison for _, comparison in scored]
    ratios = {
        "joint_goal_accuracy": _joint_goal(comparisons),
        "joint_goal_accuracy_names": _joint_goal(comparisons, NAME_SLOTS),
    }
    clusters = [reference.unit for reference, _ in scored if reference.unit is not None] or None
    values = ratios_with_intervals(ratios, clusters, **settings)
    result: dict[str, Any] = {}
    for key, (numerators, denominators) in ratios.items():
        result |= {f"{key}{end}": values[f"{key}{end}"] for end in ("", "_low", "_high") if f"{key}{end}" in values}
        result |= {f"{key}_numerator": _total(numerators), f"{key}_denominator": _total(denominators)}
    return (
        result
        | _slot_figures(comparisons)
        | {
            "by_domain": _by_domain(comparisons),
            "turns": len(compared),
            "turns_skipped": len(compared) - len(comparisons),
            "empty_predictions": sum(not comparison.answered for comparison in all_comparisons),
            "empty_references": sum(not any(reference.state.values()) for reference, _ in compared),
            "references_with_dontcare": sum(
                any(DONTCARE in values for values in reference.state.values()) for reference, _ in compared
            ),
            "unknown_slots": dict(Counter(slot for c in all_comparisons for slot in c.unknown).most_common()),
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
