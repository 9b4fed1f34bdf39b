"""Consistency metric CM = P(H(z~) = 1 | H(z) = 1), for the `evaluate` library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics import json_metric
from dair_hf.metrics.consistency_items import consistency_metrics, judge_pairs, read_correctness


class Consistency(json_metric.JsonMetric):
    """Consistency metric, see `DESCRIPTION`."""

    CITATION = json_metric.DAIR_CITATION
    EXTRA_INPUTS = ("original_correct", "augmented_correct", "ids")
    DESCRIPTION = """
Consistency metric (CM): the share of pairs with a correctly answered original view whose augmented view is also
answered correctly. The metric also reports the share of pairs with both views correct, flips as shares of the
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
    cm, reverse_cm, cm_same_answer, cm_all_rows, each with _numerator and _denominator; both_correct, pos_to_neg,
    neg_to_pos, neg_to_neg; original_accuracy, augmented_accuracy, and both over the pairs, with _pairs at the end;
    both_views_accuracy; rows, pairs. If rows have several partners also all_correct, cm_partner_1, cm_partner_2 and so
    on, and the number of partners. For states also preset, the rules by which a view is right or wrong. Each ratio also
    with _low and _high. Undefined ratios are NaN. The card of the metric explains the keys.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.consistency)
    >>> metric.compute(original_correct=[True, True, False], augmented_correct=[True, False, True])["cm"]
    0.5
"""

    def _items(
        self,
        predictions: Any,
        references: Any,
        original_correct: Any = None,
        augmented_correct: Any = None,
        ids: Any = None,
    ) -> tuple[Iterable[Any], Iterable[Any]]:
        if original_correct is None and augmented_correct is None:
            return predictions, references
        if predictions is not None or references is not None:
            raise DataError("expected states (predictions, references) or the correctness of both views, got both")
        rows = [
            {"original_correct": original, "augmented_correct": augmented}
            for original, augmented in zip(original_correct, augmented_correct, strict=True)
        ]
        if ids is not None:
            rows = [row | {"row_id": row_id} for row, row_id in zip(rows, ids, strict=True)]
        return rows, [None] * len(rows)  # these references mark correctness

    def _score(self, predictions: Any, references: Any, **settings: Any) -> dict[str, Any]:
        if all(reference is None for reference in references):
            return consistency_metrics(read_correctness(predictions), **settings)
        of_intervals = {name: settings.pop(name) for name in ("intervals", "confidence") if name in settings}
        preset, pairs = judge_pairs(predictions, references, **settings)
        return consistency_metrics(pairs, **of_intervals) | {"preset": preset}


if __name__ == "__main__":  # page of this metric as a Space on the Hub
    import evaluate
    from evaluate.utils import launch_gradio_widget

    launch_gradio_widget(evaluate.load(__file__))
