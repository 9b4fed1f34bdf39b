"""Correctness of VQA predictions (H in the paper), their accuracy, and the answers to compare between views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces
from dair_hf.metrics.vqa.scores import Normalize, vqa_correct, vqa_scores
from dair_hf.vqa.answers import AnswerVocabulary


@dataclass(frozen=True)
class AnswerJudge:
    """Judge of the predictions of a classifier of answers, or of a model that generates its answers.

    Its methods are arguments of a `PairEvaluator`, with the annotators' answers as references:

        scores = {"vqa_accuracy": judge.accuracy}
        PairEvaluator(judge.is_correct, judge.answers, scores, references="answers")

    Attributes:
        vocabulary: Classes of the model; None if it generates text.
        normalize: When answers are normalized; see `dair_hf.metrics.vqa.scores.count_matches`.

    Example:
        >>> judge = AnswerJudge(AnswerVocabulary.from_answers([["yes", "yes", "no"]]))
        >>> judge.answers([[2.0, -1.0], [0.0, 0.5]])
        ['yes', 'no']
        >>> judge.is_correct([[2.0, -1.0], [0.0, 0.5]], [["yes"] * 10, ["yes"] * 9 + ["no"]])
        array([ True,  True])
        >>> judge.accuracy([[2.0, -1.0], [0.0, 0.5]], [["yes"] * 10, ["yes"] * 9 + ["no"]]).round(6)
        array([1. , 0.3])
    """

    vocabulary: AnswerVocabulary | None = None
    normalize: Normalize = "disputed"

    def texts(self, predictions: Sequence[Any]) -> list[str]:
        """Return predictions as text: the spelling of the predicted class, or the generated text.

        Args:
            predictions: N classes, as `evaluate_pairs` passes them, or logits, `[A]` floats each. Without a vocabulary,
                N texts.

        Raises:
            DataError: A row has no such class, the wrong number of logits, a NaN logit, or is not text.
        """
        if self.vocabulary is not None:
            classes = [self._class(row, prediction) for row, prediction in enumerate(predictions)]
            return self.vocabulary.decode(classes)
        for row, text in enumerate(predictions):
            if not isinstance(text, str):
                raise DataError(f"row {row}: a prediction without vocabulary must be text, found {text!r:.60}")
        return list(predictions)

    def answers(self, predictions: Sequence[Any]) -> list[str]:
        """Return predictions in a form that is equal for equal answers, to find the flips between two views.

        The form is normalized, so that "Two." and "2" are no flip; with `normalize="never"` only spaces are stripped.
        """
        canonical = strip_spaces if self.normalize == "never" else normalize_answer
        return [canonical(text) for text in self.texts(predictions)]

    def is_correct(self, predictions: Sequence[Any], references: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
        """Return `H(z) = [an annotator gave the answer]`, `[N]` bool; see `dair_hf.metrics.vqa.scores.vqa_correct`."""
        return vqa_correct(self.texts(predictions), references, normalize=self.normalize)

    def accuracy(self, predictions: Sequence[Any], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """Return the official accuracies, `[N]` in [0, 1]; see `dair_hf.metrics.vqa.scores.vqa_scores`."""
        return vqa_scores(self.texts(predictions), references, normalize=self.normalize)

    def _class(self, row: int, prediction: ArrayLike) -> int:
        assert self.vocabulary is not None
        values = np.asarray(prediction)
        if values.shape == () and values.dtype.kind in "iu" and 0 <= values < len(self.vocabulary):
            return int(values)
        if values.shape != (len(self.vocabulary),):
            found = f"class {values.tolist()!r}" if values.shape == () else f"logits of shape {list(values.shape)}"
            raise DataError(
                f"row {row}: {found} for a vocabulary of {len(self.vocabulary)} answers; use the vocabulary of the "
                "model"
            )
        number = int(values.argmax())  # the position of NaN, if there is any
        if np.isnan(values[number]):
            raise DataError(f"row {row}: a logit is NaN; the model has diverged, lower the learning rate")
        return number
