"""When a VQA model is right (the paper's H), how right, and what it answered."""

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
    """Judges the predictions of a classifier of answers, or of a model that writes its answers.

    Its methods are what `DAIRTrainer.evaluate_pairs` takes, with the annotators' answers as references:

        scores = {"vqa_accuracy": judge.accuracy}
        trainer.evaluate_pairs(pairs, judge.is_correct, references="answers", answers=judge.answers, scores=scores)

    Attributes:
        vocabulary: The classes; None for a model that writes text.
        normalize: When answers are normalised; see `dair_hf.metrics.vqa.scores.count_matches`.

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
        """What was answered, as text: the spelling of the class that was chosen, or the text that was written.

        Args:
            predictions: Class of each row, as `evaluate_pairs` gives it, or its logits, `[A]` floats; texts where there
                is no vocabulary.

        Returns:
            N answers.

        Raises:
            DataError: A row has no such class, another number of logits than there are classes, or one that is NaN; or
                is no text.
        """
        if self.vocabulary is not None:
            classes = [self._class(row, logits) for row, logits in enumerate(predictions)]
            return self.vocabulary.decode(classes)
        for row, text in enumerate(predictions):
            if not isinstance(text, str):
                raise DataError(f"row {row}: a prediction without vocabulary must be text, found {text!r:.60}")
        return list(predictions)

    def answers(self, predictions: Sequence[Any]) -> list[str]:
        """What was answered, such that equal answers are equal: for the flips between two views.

        Normalised ("Two." and "2" are no flip), or where the judge never normalises without the spaces around.
        """
        same = strip_spaces if self.normalize == "never" else normalize_answer
        return [same(text) for text in self.texts(predictions)]

    def is_correct(self, predictions: Sequence[Any], references: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
        """`H(z) = [some annotator gave the answer]`, `[N]` bool; see `dair_hf.metrics.vqa.scores.vqa_correct`."""
        return vqa_correct(self.texts(predictions), references, normalize=self.normalize)

    def accuracy(self, predictions: Sequence[Any], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """The official accuracy of every answer, `[N]` in [0, 1]; see `dair_hf.metrics.vqa.scores.vqa_scores`."""
        return vqa_scores(self.texts(predictions), references, normalize=self.normalize)

    def _class(self, row: int, prediction: ArrayLike) -> int:
        assert self.vocabulary is not None
        values = np.asarray(prediction)
        if values.shape == () and values.dtype.kind in "iu" and 0 <= values < len(self.vocabulary):
            return int(values)
        if values.shape != (len(self.vocabulary),):
            found = f"class {values.tolist()!r}" if values.shape == () else f"logits of shape {list(values.shape)}"
            raise DataError(
                f"row {row}: {found} for a vocabulary of {len(self.vocabulary)} answers; use the vocabulary that the "
                "model was trained with"
            )
        number = int(values.argmax())  # of NaN, if there is one: it wins every comparison
        if np.isnan(values[number]):
            raise DataError(f"row {row}: a logit is NaN; the model diverged")
        return number
