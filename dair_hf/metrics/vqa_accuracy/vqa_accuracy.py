"""Accuracy of visual question answering as its official evaluation has it, as a metric for the `evaluate` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import evaluate

from dair_hf.metrics.vqa import breakdown as vqa_breakdown
from dair_hf.metrics.vqa.items import (
    Prediction,
    Reference,
    pair_answers,
    read_prediction,
    read_predictions,
    read_reference,
    read_references,
)

_DESCRIPTION = """
Accuracy of visual question answering as in the official evaluation: an answer scores min(n / 3, 1), n being the
annotators who gave it, averaged over the subsets that leave one of the ten annotators out. Beside it the form without
the subsets, the share of answers that any annotator gave, the accuracy by type of answer and question, and bootstrap
intervals clustered by image.
"""

_CITATION = """
@inproceedings{antol2015vqa,
  title = {{VQA}: Visual Question Answering},
  author = {Antol, Stanislaw and Agrawal, Aishwarya and Lu, Jiasen and Mitchell, Margaret and Batra, Dhruv and
            Zitnick, C. Lawrence and Parikh, Devi},
  booktitle = {International Conference on Computer Vision},
  year = {2015}
}
"""

_INPUTS = """
Args:
    predictions: one for each question: the answer, or {"question_id": ..., "answer": ...} as in the public result
        files, which is matched by id and never by order.
    references: one for each question: the list of the annotators' answers, or {"question_id": ..., "answers": ...,
        "answer_type": ..., "question_type": ..., "image_id": ...} as in the public annotation files; or such a whole
        file as an object.
    normalize: "disputed" (the official rule: only where the annotators' answers differ), "always" or "never".
    n_bootstrap, seed, confidence: settings of the intervals.
Returns:
    vqa_accuracy, vqa_accuracy_simple, vqa_correct (each in [0, 1], with _low and _high); by_answer_type,
    by_question_type; counts; normalize.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.vqa_accuracy)
    >>> metric.compute(predictions=["a net"], references=[["net"] * 9 + ["racket"]])["vqa_accuracy"]
    1.0
"""


class VQAAccuracy(evaluate.Metric):
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
        """Add one question: its predicted answer and its annotators' answers."""
        # Callers such as `evaluate.combine` name the columns.
        prediction, reference = kwargs.pop("predictions", prediction), kwargs.pop("references", reference)
        super().add(
            prediction=_stored(read_prediction(prediction, "prediction")),
            reference=_stored(read_reference(reference, "reference")),
            **kwargs,
        )

    def add_batch(self, *, predictions: Iterable[Any] | None = None, references: Any = None, **kwargs: Any) -> None:
        """Add several questions; `compute` adds what it is given in the same way."""
        said = read_predictions([] if predictions is None else predictions)
        given = read_references([] if references is None else references)
        if len(said) != len(given):
            pair_answers(said, given)  # says which ids are missing; `evaluate` would only count
        super().add_batch(
            predictions=[_stored(item) for item in said], references=[_stored(item) for item in given], **kwargs
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str], **settings: Any) -> dict[str, Any]:
        said, given = (map(json.loads, column) for column in (predictions, references))
        return vqa_breakdown.vqa_accuracy(said, given, **settings)


def _stored(item: Prediction | Reference) -> str:
    """JSON text of what counts of an item."""
    return json.dumps({name: value for name, value in item._asdict().items() if name != "where"})
