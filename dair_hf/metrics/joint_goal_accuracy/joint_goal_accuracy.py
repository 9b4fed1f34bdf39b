"""Joint goal accuracy of dialog state trackers, as a metric for the `evaluate` library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import evaluate

from dair_hf.metrics.encoding import encode_item, encode_items
from dair_hf.metrics.state import joint_goal

_DESCRIPTION = """
Joint goal accuracy: the share of user turns whose whole predicted dialog state is right. One metric with orthogonal
switches and the conventions in use as named presets: any_of, parlai_v22, dair_released, trade, simpletod, mwzeval,
sgd_fuzzy, convlab3, checkdst. Beside it: slot precision, recall and F1, accuracy by domain and on names, counts, and a
bootstrap interval clustered by dialogue.
"""

_CITATION = """
@article{huang2022robustness,
  title = {Robustness through Data Augmentation Loss Consistency},
  author = {Huang, Tianjian and Halbe, Shaunak and Sankar, Chinnadhurai and Amini, Pooyan and Kottur, Satwik and
            Geramifard, Alborz and Razaviyayn, Meisam and Beirami, Ahmad},
  journal = {Transactions on Machine Learning Research},
  year = {2022}
}
"""

_INPUTS = """
Args:
    predictions: one item for each turn: a state as a dict slot -> list of values (or one value), or its JSON text; or
        {"row_id": "MUL0003/4", "state": ...}, which is matched by id and never by order.
    references: the same, with all gold alternatives, the preferred one first.
    prediction_ids, reference_ids: row ids given apart (not in `evaluate.combine`: there they belong in the items).
    preset: the convention, "any_of" by default; any switch of it can be changed by name, such as dontcare="drop_both".
    n_bootstrap, seed, confidence: settings of the interval.
Returns:
    joint_goal_accuracy with _numerator, _denominator, _low, _high; slot_precision, slot_recall, slot_f1;
    joint_goal_accuracy_names; by_domain; counts; preset and switches. Undefined ratios are NaN.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.joint_goal_accuracy)
    >>> metric.compute(predictions=[{"hotel-area": "east"}], references=[{"hotel-area": ["east"]}])["slot_f1"]
    1.0
"""


class JointGoalAccuracy(evaluate.Metric):
    """See the description above; inputs are stored as JSON text, whatever they are given as."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one turn."""
        # Callers such as `evaluate.combine` name the columns.
        prediction, reference = kwargs.pop("predictions", prediction), kwargs.pop("references", reference)
        super().add(
            prediction=encode_item(prediction, "prediction"), reference=encode_item(reference, "reference"), **kwargs
        )

    def add_batch(
        self,
        *,
        predictions: Iterable[Any] | None = None,
        references: Iterable[Any] | None = None,
        prediction_ids: Sequence[Any] | None = None,
        reference_ids: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add several turns."""
        super().add_batch(
            predictions=encode_items(predictions, "predictions", prediction_ids),
            references=encode_items(references, "references", reference_ids),
            **kwargs,
        )

    def compute(
        self,
        *,
        predictions: Iterable[Any] | None = None,
        references: Iterable[Any] | None = None,
        prediction_ids: Sequence[Any] | None = None,
        reference_ids: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Compute over what was given here and added before."""
        return super().compute(
            predictions=encode_items(predictions, "predictions", prediction_ids),
            references=encode_items(references, "references", reference_ids),
            **kwargs,
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str], **settings: Any) -> dict[str, Any]:
        return joint_goal.joint_goal_accuracy(predictions, references, **settings)
