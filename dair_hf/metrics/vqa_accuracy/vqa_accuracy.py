"""Accuracy of visual question answering as in its official evaluation, for the `evaluate` library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dair_hf.metrics import json_metric
from dair_hf.metrics.vqa import scores


class VQAAccuracy(json_metric.JsonMetric):
    """VQA accuracy, see `DESCRIPTION`."""

    DESCRIPTION = """
Accuracy of visual question answering as in the official evaluation. An answer that n annotators gave scores
min(n / 3, 1), averaged over the subsets that leave out one of the ten annotators. The metric also reports the accuracy
without the subsets, the share of answers that any annotator gave, the accuracy by type of answer and question, and
confidence intervals with images as units.
"""
    CITATION = """
@inproceedings{antol2015vqa,
  title = {{VQA}: Visual Question Answering},
  author = {Antol, Stanislaw and Agrawal, Aishwarya and Lu, Jiasen and Mitchell, Margaret and Batra, Dhruv and
            Zitnick, C. Lawrence and Parikh, Devi},
  booktitle = {International Conference on Computer Vision},
  year = {2015}
}
"""
    INPUTS = """
Args:
    predictions: list with one item per question: an answer, or {"question_id": ..., "answer": ...} as in the public
        result files. Items with ids are matched by id, never by order.
    references: list with one item per question: the list of the annotators' answers, or {"question_id": ...,
        "answers": ..., "answer_type": ..., "question_type": ..., "image_id": ...} as in the public annotation files.
        Such a file as an object may replace the list.
    normalize: when answers are normalized: "disputed" (the official rule: if the annotators' answers differ), "always"
        or "never".
    intervals (default: True), confidence (0.95): settings of the confidence intervals.
Returns:
    vqa_accuracy, vqa_accuracy_simple, vqa_correct (each in [0, 1], with _low and _high); by_answer_type,
    by_question_type; counts; normalize.
Examples:
    >>> import evaluate, dair_hf.metrics
    >>> metric = evaluate.load(dair_hf.metrics.vqa_accuracy)
    >>> metric.compute(predictions=["a net"], references=[["net"] * 9 + ["racket"]])["vqa_accuracy"]
    1.0
"""

    def _items(self, predictions: Any, references: Any) -> tuple[Iterable[Any], Iterable[Any]]:
        return predictions, scores.reference_list(references)

    def _score(self, predictions: Any, references: Any, **settings: Any) -> dict[str, Any]:
        return scores.vqa_accuracy(predictions, references, **settings)


if __name__ == "__main__":  # page of this metric as a Space on the Hub
    import evaluate
    from evaluate.utils import launch_gradio_widget

    launch_gradio_widget(evaluate.load(__file__))
