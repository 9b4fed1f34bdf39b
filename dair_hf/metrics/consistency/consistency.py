"""Consistency metric CM = P(H(z~) = 1 | H(z) = 1), for the `evaluate` library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics import json_metric
from dair_hf.metrics.consistency_items import consistency_metrics, judge_pairs, read_correctness
from dair_hf.metrics.json_items import encode_items
from dair_hf.metrics.state.conventions import resolve_pair_convention
from dair_hf.metrics.state.items import pair_turns, read_items


class Consistency(json_metric.JsonMetric):
    """Consistency metric, see `DESCRIPTION`."""

    CITATION = json_metric.DAIR_CITATION
    EXTRA_INPUTS = ("original_correct", "augmented_correct", "ids")
    DESCRIPTION = """
Consistency metric (CM): of the pairs whose original view is answered correctly, the share whose augmented view is
answered correctly, too. The metric also reports the share of pairs with both views correct, flips as shares of the
pairs, the accuracy on both views, CM over all rows including those without an augmented view, and confidence
intervals clustered by dialogue.
"""
    INPUTS = """
Args, either the correctness of each row:
    original_correct: [N] bool, whether the original view is correct.
    augmented_correct: [N] bool, whether the augmented view is correct; None for a row without an augmented view.
    ids: [N] row ids such as "MUL0003/4", for intervals clustered by dialogue.
or the dialogue states of both views, compared as in the metric joint_goal_accuracy:
    predictions, references: lists of {"row_id": ..., "variant": "original", "augmented" (or "augmented_2" for a second
        partner of a row, and so on), "state": ...}.
    preset: name of the convention, "any_of" by default. Any switch can be set by name. Empty answers are always scored.
and in both cases:
    intervals (default: True), confidence (0.95): settings of the confidence intervals.
Returns:
    Over the pairs with different gold states, or all pairs if none differ or only correctness is given: cm,
    cm_numerator, cm_denominator; reverse_cm, from the augmented view to the original, likewise. Over the other pairs,
    if there are both kinds: cm_same_answer, likewise. Over all pairs: both_correct, pos_to_neg, neg_to_pos, neg_to_neg;
    original_accuracy_pairs, augmented_accuracy_pairs, and their mean both_views_accuracy. Over all rows, a row without
    an augmented view counting as two identical views:
    original_accuracy, augmented_accuracy, cm_all_rows, cm_all_rows_numerator, cm_all_rows_denominator.
    Each ratio also with _low and _high. Counts: rows, pairs. If rows have several partners also all_correct,
    cm_partner_1, cm_partner_2 and so on, and the number of partners. For states also preset, the rules by which a view
    is right or wrong. Undefined ratios are NaN.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.consistency)
    >>> metric.compute(original_correct=[True, True, False], augmented_correct=[True, False, True])["cm"]
    0.5
"""

    def _encode(
        self,
        predictions: Any,
        references: Any,
        original_correct: Sequence[Any] | None = None,
        augmented_correct: Sequence[Any] | None = None,
        ids: Sequence[Any] | None = None,
    ) -> tuple[list[str], list[str]]:
        if original_correct is None and augmented_correct is None:
            return encode_items(predictions, "predictions"), encode_items(references, "references")
        if predictions is not None or references is not None:
            raise DataError("give either states (predictions, references) or the correctness of both views, not both")
        if original_correct is None or augmented_correct is None or len(original_correct) != len(augmented_correct):
            raise DataError("original_correct and augmented_correct: give both, with one value for each row")
        if ids is not None and len(ids) != len(original_correct):
            raise DataError(f"ids: found {len(ids)} ids for {len(original_correct)} rows; give one id for each row")
        rows = [
            {"original_correct": original, "augmented_correct": augmented}
            for original, augmented in zip(original_correct, augmented_correct, strict=True)
        ]
        if ids is not None:
            rows = [row | {"row_id": str(row_id)} for row, row_id in zip(rows, ids, strict=True)]
        # Empty references mark correctness.
        return encode_items(rows, "rows"), [""] * len(rows)

    def _compute(
        self, predictions: Sequence[str], references: Sequence[str], preset: str | None = None, **settings: Any
    ) -> dict[str, Any]:
        of_intervals = {name: settings.pop(name) for name in ("intervals", "confidence") if name in settings}
        if predictions and not any(references):
            if preset is not None or settings:
                raise DataError("preset and switches apply to states, but correctness was given; leave them out")
            return consistency_metrics(read_correctness(map(json.loads, predictions)), **of_intervals)
        name, convention = resolve_pair_convention(preset or "any_of", **settings)
        turns = pair_turns(read_items(predictions, "predictions"), read_items(references, "references"))
        return consistency_metrics(judge_pairs(turns, convention), **of_intervals) | {"preset": name}
