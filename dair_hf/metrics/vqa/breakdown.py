"""VQA accuracy over many questions: overall with intervals, and by type of answer and question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.vqa.items import Prediction, Reference, pair_answers, read_predictions, read_references
from dair_hf.metrics.vqa.scores import (
    FEWEST_ANNOTATORS,
    Normalize,
    count_matches,
    is_disputed,
    official_scores,
    simple_scores,
)

PUBLIC_ANNOTATORS = 10


def vqa_accuracy(
    predictions: Iterable[Any],
    references: Any,
    *,
    normalize: Normalize = "disputed",
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Compute the accuracy of answers and what belongs beside it, from items in any accepted shape.

    Args:
        predictions: Items (see `dair_hf.metrics.vqa.items`); matched by id where they have one, else by position.
        references: Items with the annotators' answers, or a whole annotation file as an object.
        normalize: See `dair_hf.metrics.vqa.scores.count_matches`.
        n_bootstrap: Resamples of the intervals; 0 for none.
        seed: Seed of the resampling.
        confidence: Coverage of the intervals.

    Returns:
        See `summarize_answers`.

    Raises:
        DataError: Bad items, ids that do not match, no question at all, or too few annotators.

    Example:
        >>> found = vqa_accuracy(["net", "red"], [["net"] * 10, ["blue"] * 9 + ["red"]], n_bootstrap=0)
        >>> round(found["vqa_accuracy"], 6), found["vqa_correct"]
        (0.65, 1.0)
    """
    pairs = pair_answers(read_predictions(predictions), read_references(references))
    return summarize_answers(pairs, normalize, n_bootstrap=n_bootstrap, seed=seed, confidence=confidence)


def summarize_answers(
    pairs: Sequence[tuple[Prediction, Reference]],
    normalize: Normalize = "disputed",
    *,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Compute all figures of paired predictions and references.

    Args:
        pairs: (prediction, reference) of every question.
        normalize: See `dair_hf.metrics.vqa.scores.count_matches`.
        n_bootstrap: Resamples of the intervals, which are clustered by image where references name one; 0 for none.
        seed: Seed of the resampling.
        confidence: Coverage of the intervals.

    Returns:
        Means over the questions, in [0, 1], each with `_low` and `_high`: `vqa_accuracy` (`official_scores`),
        `vqa_accuracy_simple` (`simple_scores`), `vqa_correct` (share of answers that any annotator gave, the H of
        the paper's consistency). `by_answer_type` and `by_question_type`: type -> `vqa_accuracy` and `questions`, for
        questions whose reference names one. The counts `questions`, `undisputed` (all annotators wrote the same),
        `not_ten_annotators`, `empty_predictions`; and `normalize`.

    Raises:
        DataError: There is no question, one has fewer than four annotators, or a setting is out of range.
    """
    if not pairs:
        raise DataError("no questions to score: predictions and references are empty; check the inputs")
    for _, reference in pairs:
        if len(reference.answers) < FEWEST_ANNOTATORS:
            raise DataError(
                f"{reference.where}: holds {len(reference.answers)} answers; the official accuracy needs at least "
                f"{FEWEST_ANNOTATORS} annotators. Where only one answer can be right, repeat it ten times"
            )
    matches = count_matches(
        [prediction.answer for prediction, _ in pairs], [reference.answers for _, reference in pairs], normalize
    )
    scores = official_scores(*matches)
    means = {
        "vqa_accuracy": scores,
        "vqa_accuracy_simple": simple_scores(*matches),
        "vqa_correct": (matches.matching > 0).astype(np.float64),
    }
    ones = np.ones(len(pairs))
    found: dict[str, Any] = dict(
        ratios_with_intervals(
            {name: (values, ones) for name, values in means.items()},
            _images([reference for _, reference in pairs]),
            n_bootstrap=n_bootstrap,
            seed=seed,
            confidence=confidence,
        )
    )
    return found | {
        "by_answer_type": _by_type(scores, [reference.answer_type for _, reference in pairs]),
        "by_question_type": _by_type(scores, [reference.question_type for _, reference in pairs]),
        "questions": len(pairs),
        "undisputed": sum(not is_disputed(reference.answers) for _, reference in pairs),
        "not_ten_annotators": int((matches.annotators != PUBLIC_ANNOTATORS).sum()),
        "empty_predictions": sum(not prediction.answer.strip() for prediction, _ in pairs),
        "normalize": normalize,
    }


def _images(references: Sequence[Reference]) -> list[str] | None:
    """The photograph of every question: an edited image is named by its original, "_" and what was removed."""
    if any(reference.image_id is None for reference in references):
        return None
    return [str(reference.image_id).partition("_")[0].lstrip("0") for reference in references]


def _by_type(scores: NDArray[np.float64], types: Sequence[str | None]) -> dict[str, dict[str, float]]:
    rows: dict[str, list[int]] = {}
    for row, kind in enumerate(types):
        if kind is not None:
            rows.setdefault(kind, []).append(row)
    return {
        kind: {"vqa_accuracy": float(scores[rows[kind]].mean()), "questions": len(rows[kind])} for kind in sorted(rows)
    }
