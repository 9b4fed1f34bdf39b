"""VQA accuracy of many questions: overall with confidence intervals, and by type of answer and question."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.vqa.items import Prediction, Reference, pair_answers, read_predictions, read_references
from dair_hf.metrics.vqa.scores import (
    MIN_ANNOTATORS,
    Normalize,
    count_matches,
    is_disputed,
    official_scores,
    simple_scores,
    too_few_annotators,
)

PUBLIC_ANNOTATORS = 10
_EDITED = re.compile(r"\A0*(\d+)(?:_.*)?\Z", re.DOTALL)


def vqa_accuracy(predictions: Iterable[Any], references: Any, **settings: Any) -> dict[str, Any]:
    """Compute the VQA accuracy and related figures from items in any accepted shape.

    Args:
        predictions: Items (see `dair_hf.metrics.vqa.items`), matched by id if they have ids, else by position.
        references: Items with the annotators' answers, or an annotation file as an object.
        **settings: `normalize`, `intervals` and `confidence` of `summarize_answers`.

    Returns:
        See `summarize_answers`.

    Raises:
        DataError: An item is invalid, the ids do not match, there is no question, or one has too few annotators.

    Example:
        >>> results = vqa_accuracy(["net", "red"], [["net"] * 10, ["blue"] * 9 + ["red"]], intervals=False)
        >>> round(results["vqa_accuracy"], 6), results["vqa_correct"]
        (0.65, 1.0)
    """
    return summarize_answers(pair_answers(read_predictions(predictions), read_references(references)), **settings)


def summarize_answers(
    pairs: Sequence[tuple[Prediction, Reference]], normalize: Normalize = "disputed", **settings: Any
) -> dict[str, Any]:
    """Compute the VQA accuracy and related figures."""
    if not pairs:
        raise DataError("nothing to score: predictions and references contain no questions")
    predictions, references = [prediction for prediction, _ in pairs], [reference for _, reference in pairs]
    for reference in references:
        if len(reference.answers) < MIN_ANNOTATORS:
            raise DataError(too_few_annotators(reference.where, len(reference.answers)))
    matches = count_matches([p.answer for p in predictions], [r.answers for r in references], normalize)
    scores = official_scores(*matches)
    means = {
        "vqa_accuracy": scores,
        "vqa_accuracy_simple": simple_scores(*matches),
        "vqa_correct": matches.matching > 0,
    }
    ones = np.ones(len(pairs))
    ratios = ratios_with_intervals(
        {name: (values, ones) for name, values in means.items()}, _images(references), **settings
    )
    return {
        **ratios,
        "by_answer_type": _by_type(scores, [reference.answer_type for reference in references]),
        "by_question_type": _by_type(scores, [reference.question_type for reference in references]),
        "questions": len(pairs),
        "undisputed": sum(not is_disputed(reference.answers) for reference in references),
        "not_ten_annotators": int((matches.annotators != PUBLIC_ANNOTATORS).sum()),
        "empty_predictions": sum(not prediction.answer.strip() for prediction in predictions),
        "normalize": normalize,
    }


def _images(references: Sequence[Reference]) -> list[str] | None:
    """Return the original image of each question; the id of an edited image is "<number>_<removed object>".

    Other ids ("COCO_val2014_000000000042") name an original image.
    """
    if any(reference.image_id is None for reference in references):
        return None
    return [_EDITED.sub(r"\1", str(reference.image_id)) for reference in references]


def _by_type(scores: NDArray[np.float64], types: Sequence[str | None]) -> dict[str, dict[str, float]]:
    scores_of: dict[str, list[float]] = defaultdict(list)
    for score, type_name in zip(scores, types, strict=True):
        if type_name is not None:
            scores_of[type_name].append(score)
    return {
        name: {"vqa_accuracy": float(np.mean(values)), "questions": len(values)}
        for name, values in sorted(scores_of.items())
    }
