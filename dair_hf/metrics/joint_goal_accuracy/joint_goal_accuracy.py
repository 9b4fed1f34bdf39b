"""Joint goal accuracy of dialogue state trackers, for the `evaluate` library."""

from __future__ import annotations

from typing import Any

from dair_hf.metrics import json_metric
from dair_hf.metrics.state import conventions, joint_goal


class JointGoalAccuracy(json_metric.JsonMetric):
    """Joint goal accuracy, see `DESCRIPTION`."""

    CITATION = json_metric.DAIR_CITATION
    DESCRIPTION = f"""
Joint goal accuracy (JGA): the share of user turns whose predicted dialogue state is entirely correct. Evaluators differ
in what they call correct, so each convention in use is a preset, and each of its rules is a switch. The metric also
reports slot precision, recall and F1, accuracy by domain and on names, counts, and a confidence interval
clustered by dialogue. Presets: {", ".join(conventions.PRESETS)}.
"""
    INPUTS = """
Args:
    predictions: list with one item per turn. An item is a state, i.e. a dict from slots to lists of values (or single
        values), or its JSON text, or {"row_id": "MUL0003/4", "state": ...}. Items with ids are matched by id, never by
        order.
    references: list of gold states in the same form. A slot lists all correct alternatives, the preferred one first.
    preset: name of the convention, "any_of" by default. Any switch can be set by name, such as dontcare="drop_both".
    intervals (default: True), confidence (0.95): settings of the confidence interval.
Returns:
    joint_goal_accuracy with _numerator, _denominator, _low and _high; slot_precision, slot_recall, slot_f1;
    joint_goal_accuracy_names; by_domain; counts; preset and switches. Undefined ratios are NaN. For items of both views
    all but the last two once with original_ and once with augmented_ in front.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.joint_goal_accuracy)
    >>> metric.compute(predictions=[{"hotel-area": "east"}], references=[{"hotel-area": ["east"]}])["slot_f1"]
    1.0
"""

    def _score(self, predictions: Any, references: Any, **settings: Any) -> dict[str, Any]:
        return joint_goal.joint_goal_accuracy(predictions, references, **settings)


if __name__ == "__main__":  # page of this metric as a Space on the Hub
    import evaluate
    from evaluate.utils import launch_gradio_widget

    launch_gradio_widget(evaluate.load(__file__))
