"""The consistency metric CM = P(H(z~) = 1 | H(z) = 1), as a metric for the `evaluate` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import evaluate

from dair_hf.errors import DataError
from dair_hf.metrics.encoding import encode_item, encode_items
from dair_hf.metrics.pair_consistency import consistency_metrics, judge_pairs, read_correctness_rows
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.items import pair_turns, read_items

_DESCRIPTION = """
The consistency metric: of the pairs whose original view is answered right, the share whose augmented view is right too,
with numerator and denominator; the share right on both; flips as shares of the pairs; accuracy on both views; the
consistency metric over all rows, those without augmented view included; and bootstrap intervals clustered by dialogue.
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
Args, either correctness found elsewhere:
    original_correct: [N] bool, is the original view right.
    augmented_correct: [N] bool, is the augmented view right; None where a row has none.
    ids: [N] row ids such as "MUL0003/4", for intervals clustered by dialogue.
or dialog states of both views, judged as by the metric joint_goal_accuracy:
    predictions, references: items {"row_id": ..., "variant": "original" | "augmented", "state": ...}, paired by id.
    preset: the convention, and any switch of it by name.
and in both cases:
    n_bootstrap, seed, confidence: settings of the intervals.
Returns:
    over the rows that have an augmented view: cm, cm_numerator, cm_denominator, both_correct, pos_to_neg, neg_to_pos,
    neg_to_neg, original_accuracy_pairs, augmented_accuracy_pairs; over all rows, one without augmented view counting as
    two identical views: original_accuracy, augmented_accuracy, cm_all_rows, cm_all_rows_numerator,
    cm_all_rows_denominator. Each ratio with _low and _high; rows, pairs; for states also preset. Undefined ratios are
    NaN.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.consistency)
    >>> metric.compute(original_correct=[True, True, False], augmented_correct=[True, False, True])["cm"]
    0.5
"""


class Consistency(evaluate.Metric):
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
        """Add one view of one row: its predicted and its gold state."""
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
        original_correct: Sequence[Any] | None = None,
        augmented_correct: Sequence[Any] | None = None,
        ids: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add several views with their states, or the correctness of several rows."""
        predictions, references = _columns(predictions, references, original_correct, augmented_correct, ids)
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def compute(
        self,
        *,
        predictions: Iterable[Any] | None = None,
        references: Iterable[Any] | None = None,
        original_correct: Sequence[Any] | None = None,
        augmented_correct: Sequence[Any] | None = None,
        ids: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Compute over what was given here and added before."""
        predictions, references = _columns(predictions, references, original_correct, augmented_correct, ids)
        return super().compute(predictions=predictions, references=references, **kwargs)

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        preset: str | None = None,
        n_bootstrap: int = 1000,
        seed: int = 0,
        confidence: float = 0.95,
        **switches: Any,
    ) -> dict[str, Any]:
        settings: dict[str, Any] = {"n_bootstrap": n_bootstrap, "seed": seed, "confidence": confidence}
        if predictions and all(text == "" for text in references):
            if preset is not None or switches:
                raise DataError("preset and switches judge states; correctness was given, so leave them out")
            pairs = read_correctness_rows([(f"row {i}", json.loads(text)) for i, text in enumerate(predictions)])
            return consistency_metrics(pairs, **settings)
        name = resolve_convention(preset or "any_of", **switches)[0]
        turns = pair_turns(read_items(predictions, "predictions"), read_items(references, "references"))
        pairs = judge_pairs(turns, preset or "any_of", **switches)
        return consistency_metrics(pairs, **settings) | {"preset": name}


def _columns(
    predictions: Iterable[Any] | None,
    references: Iterable[Any] | None,
    original_correct: Sequence[Any] | None,
    augmented_correct: Sequence[Any] | None,
    ids: Sequence[Any] | None,
) -> tuple[list[str] | None, list[str] | None]:
    """Bring either kind of input into the two string columns; correctness leaves the references empty."""
    if original_correct is None and augmented_correct is None:
        return encode_items(predictions, "predictions"), encode_items(references, "references")
    if predictions is not None or references is not None:
        raise DataError("give either states (predictions, references) or correctness of both views, not both")
    if original_correct is None or augmented_correct is None or len(original_correct) != len(augmented_correct):
        raise DataError("original_correct and augmented_correct: give both, one value for each row")
    if ids is not None and len(ids) != len(original_correct):
        raise DataError(f"ids: {len(ids)} for {len(original_correct)} rows; give one id for each")
    rows = [
        {"original_correct": _plain(original), "augmented_correct": _plain(augmented)}
        | ({"row_id": str(ids[index])} if ids is not None else {})
        for index, (original, augmented) in enumerate(zip(original_correct, augmented_correct, strict=True))
    ]
    return encode_items(rows, "rows"), [""] * len(rows)


def _plain(value: Any) -> Any:
    """Unpack numpy and torch scalars, which JSON does not know."""
    return value.item() if hasattr(value, "item") else value
