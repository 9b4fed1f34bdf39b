"""Joint goal accuracy: the correctness of each row for training, and all results for reports."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.items import Item, join_views, pair_items, read_state, read_turns, units, warn_of_one_unit
from dair_hf.metrics.state.belief_text import Belief
from dair_hf.metrics.state.conventions import (
    MULTIWOZ_DOMAINS,
    MULTIWOZ_SLOTS,
    NAME_SLOTS,
    Convention,
    resolve_convention,
)
from dair_hf.metrics.state.matching import (
    Comparison,
    compare_states,
    compare_turns,
    domain_of,
    multiwoz_slot,
    reference_names,
)
from dair_hf.metrics.state.normalizers import DONTCARE


def joint_goal_correct(
    predictions: Iterable[Any], references: Iterable[Any], preset: str = "any_of", **switches: Any
) -> NDArray[np.bool_]:
    """Return for each row whether the predicted state is entirely correct: the paper's H, usable as `is_correct`.

    Args:
        predictions: [N] states (see `dair_hf.metrics.items`), or `Belief` objects read from text; matched to
            the references by position.
        references: [N] gold states with all correct values.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        **switches: Fields of `Convention` to change.

    Returns:
        [N] bool. Rows that the preset would skip (`empty_answer="skip"`) are compared like all others, and a row with a
        graded score is correct if the score is 1, so the mean may differ from the preset's accuracy (see
        `joint_goal_scores`); `resolve_pair_convention` names these rules. Rows without a slot of `domains` and `slots`
        are correct.

    Raises:
        DataError: The preset, the value of a switch, a domain or a slot is unknown, or an item is not a state.

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
    names = reference_names(gold, convention)
    return [compare_states(p, g, convention, names) for p, g in zip(predicted, gold, strict=True)]


def joint_goal_accuracy(
    predictions: Iterable[Any],
    references: Iterable[Any],
    *,
    preset: str = "any_of",
    intervals: bool = True,
    confidence: float = 0.95,
    **switches: Any,
) -> dict[str, Any]:
    """Compute the joint goal accuracy and related figures from items in any accepted shape.

    Args:
        predictions: Items (see `dair_hf.metrics.items`), matched by id if they have ids, else by position.
        references: Items with all correct values.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        intervals: Whether to compute confidence intervals, with clusters or dialogues as units if items have them.
        confidence: Confidence level of the intervals.
        **switches: Fields of `Convention` to change.

    Returns:
        The figures that the README of the metric `joint_goal_accuracy` lists.

    Example:
        >>> gold = [{"row_id": "A/0", "state": {"hotel-area": ["east"]}}]
        >>> joint_goal_accuracy(gold, gold, intervals=False)["joint_goal_accuracy"]
        1.0
    """
    name, convention = resolve_convention(preset, **switches)
    turns = pair_items(read_turns(predictions, "predictions"), read_turns(references, "references"))
    return summarize_turns(turns, name, convention, intervals=intervals, confidence=confidence)


def summarize_turns(
    turns: Sequence[tuple[Item, Item]], name: str, convention: Convention, **settings: Any
) -> dict[str, Any]:
    """Compute the figures of `joint_goal_accuracy`."""
    references = [reference for _, reference in turns]
    if settings.get("intervals", True):
        warn_of_one_unit(units(references), [reference.row_id or reference.where for reference in references])
    compared = list(zip(references, compare_turns(turns, convention), strict=True))
    figures = {
        prefix + key: value
        for prefix, view in _views(compared).items()
        for key, value in _figures(view, convention, settings).items()
    }
    return figures | {"preset": name, "switches": dataclasses.asdict(convention)}


def _views(compared: Sequence[tuple[Item, Comparison]]) -> dict[str, Sequence[tuple[Item, Comparison]]]:
    """Return prefix of the keys -> turns of the view; one view without prefix if there is only one."""
    if len({reference.view for reference, _ in compared}) == 1:
        return {"": compared}
    rows = join_views([reference for reference, _ in compared])
    return {
        "original_": [compared[views[0]] for views in rows],
        "augmented_": [
            compared[position] for views in rows for view, position in views.items() if view or len(views) == 1
        ],
    }


def _figures(
    compared: Sequence[tuple[Item, Comparison]], convention: Convention, settings: Mapping[str, Any]
) -> dict[str, Any]:
    scored = [(reference, comparison) for reference, comparison in compared if _is_scored(comparison, convention)]
    comparisons = [comparison for _, comparison in scored]
    schema = _schema(comparisons, convention)
    ratios = {
        "joint_goal_accuracy": (np.array([c.score for c in comparisons]), np.ones(len(comparisons))),
        "joint_goal_accuracy_names": _joint_goal(comparisons, NAME_SLOTS),
        "average_goal_accuracy": _average_goal(comparisons),
        "slot_accuracy": (
            np.array([_share_right(c, schema) for c in comparisons]),
            np.ones(len(comparisons)),
        ),
    }
    result: dict[str, Any] = {
        **ratios_with_intervals(ratios, units([reference for reference, _ in scored]), **settings)
    }
    for key, (numerators, denominators) in ratios.items():
        result |= {f"{key}_numerator": _total(numerators), f"{key}_denominator": _total(denominators)}
    gold = [reference.value.state for reference, _ in compared]
    return (
        result
        | _slot_figures(comparisons)
        | {
            "by_domain": _by_domain(comparisons),
            "turns": len(compared),
            "turns_skipped": len(compared) - len(comparisons),
            "empty_predictions": sum(not comparison.answered for _, comparison in compared),
            "empty_references": sum(not any(state.values()) for state in gold),
            "references_with_dontcare": sum(any(DONTCARE in values for values in state.values()) for state in gold),
            "unknown_slots": dict(Counter(slot for _, c in compared for slot in c.unknown).most_common()),
        }
    )


def _joint_goal(
    comparisons: Sequence[Comparison], slots: Collection[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return numerators and denominators of the joint goal accuracy over some slots, in turns whose gold has one."""
    has_slot = np.array([float(any(slot in slots for slot in comparison.gold_slots)) for comparison in comparisons])
    scores = [
        math.prod(score for slot, score in comparison.scores.items() if slot in slots) for comparison in comparisons
    ]
    return np.array(scores) * has_slot, has_slot


def _schema(comparisons: Sequence[Comparison], convention: Convention) -> set[str]:
    """Return the slots that a turn may fill: given, or MultiWOZ's for data of several of its domains, else gold's."""
    domains = {domain_of(slot) for comparison in comparisons for slot in comparison.scores} - {"bus"}
    gold = {slot for comparison in comparisons for slot in comparison.gold_slots}
    of_data = MULTIWOZ_SLOTS if len(domains) > 1 and domains <= set(MULTIWOZ_DOMAINS) else gold
    schema = convention.slots or convention.schema_slots or of_data
    return {multiwoz_slot(s) for s in schema if convention.domains is None or domain_of(s) in convention.domains}


def _share_right(comparison: Comparison, schema: Collection[str]) -> float:
    """Return the share of right slots, of those of the schema and those that gold or prediction fill."""
    others = len(set(schema).difference(map(multiwoz_slot, comparison.scores)))
    return (others + sum(comparison.scores.values())) / max(others + len(comparison.scores), 1)


def _average_goal(comparisons: Sequence[Comparison]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean score of the gold slots of each turn, and whether it has any."""
    scores = [[c.scores[slot] for slot in c.gold_slots] for c in comparisons]
    has_slot = np.array([float(bool(of_turn)) for of_turn in scores])
    return np.array([math.fsum(of_turn) / max(len(of_turn), 1) for of_turn in scores]), has_slot


def _by_domain(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    result = {}
    for domain in sorted({domain_of(slot) for comparison in comparisons for slot in comparison.gold_slots}):
        slots = {slot for comparison in comparisons for slot in comparison.scores if domain_of(slot) == domain}
        numerators, denominators = _joint_goal(comparisons, slots)
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
    return {
        "slot_precision": hits / predicted if predicted else math.nan,
        "slot_recall": hits / gold if gold else math.nan,
        "slot_f1": 2 * hits / (predicted + gold) if predicted + gold else math.nan,
    }


def _total(values: NDArray[np.float64]) -> float | int:
    """Return the sum, as int if it is whole."""
    total = float(values.sum())
    return int(total) if total.is_integer() else total
