"""Answers as classes of a model: vocabulary, soft targets, and correctness of predictions (H in the paper)."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces
from dair_hf.metrics.vqa.scores import vqa_correct, vqa_scores

ANSWERS = "answers"
ANSWER_IDS = "answer_ids"
ANSWER_SCORES = "answer_scores"


@dataclass(frozen=True, repr=False)
class AnswerVocabulary:
    """The most frequent answers of the training annotators, as classes.

    Answers are counted after the normalization of the official evaluation, so "two" and "2" are one class. The
    evaluation itself does not normalize if all annotators wrote the same answer, so a class is predicted in its most
    frequent spelling: "t-shirt", not "t shirt".

    Attributes:
        answers: `[A]` normalized answers by descending frequency, ties in alphabetical order.
        spellings: `[A]` texts to predict.
        counts: `[A]` number of annotators' answers in each class.

    Example:
        >>> vocabulary = AnswerVocabulary.from_answers([["two", "2", "2", "the cat"], ["a dog", "cat"]], size=2)
        >>> vocabulary.answers, vocabulary.spellings, vocabulary.counts
        (('2', 'cat'), ('2', 'cat'), (3, 2))
        >>> vocabulary.encode(["Two", "2", "dog", "cat"])
        ([0, 1], [0.5, 0.25])
    """

    answers: tuple[str, ...]
    spellings: tuple[str, ...]
    counts: tuple[int, ...]
    _ids: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {answer: number for number, answer in enumerate(self.answers)})

    @classmethod
    def from_answers(cls, answers: Iterable[Sequence[str]], size: int = 3000) -> AnswerVocabulary:
        """Build the vocabulary of at most `size` classes from the annotators' answers to the training questions.

        Answers that are empty after normalization ("the", "?") are ignored.

        Raises:
            DataError: No answers are given.
        """
        written = Counter(strip_spaces(answer) for question_answers in answers for answer in question_answers)
        counts: Counter[str] = Counter()
        spellings: dict[str, str] = {}
        for spelling, count in sorted(written.items(), key=lambda item: (-item[1], item[0])):
            answer = normalize_answer(spelling)
            counts[answer] += count
            spellings.setdefault(answer, spelling)
        del counts[""]
        frequent = sorted(counts, key=lambda answer: (-counts[answer], answer))[:size]
        if not frequent:  # a model without classes would train on no question
            raise DataError(f"answer vocabulary: expected answers of annotators, got {len(written)} usable ones")
        return cls(
            tuple(frequent), tuple(map(spellings.__getitem__, frequent)), tuple(map(counts.__getitem__, frequent))
        )

    def __len__(self) -> int:
        return len(self.answers)

    def __repr__(self) -> str:
        return f"AnswerVocabulary({len(self)} answers)"

    @property
    def id2label(self) -> dict[int, str]:
        """Class -> spelling, for the configuration of a model."""
        return dict(enumerate(self.spellings))

    def encode(self, answers: Sequence[str]) -> tuple[list[int], list[float]]:
        """Return the soft targets of one question: distinct classes in ascending order, and their scores.

        A score is the share of all annotators who gave the class. Answers outside the vocabulary have no class.
        """
        counts = Counter(self._ids.get(normalize_answer(answer)) for answer in answers)
        del counts[None]
        classes = sorted(number for number in counts if number is not None)
        return classes, [counts[number] / len(answers) for number in classes]


def encode_answers(rows: Dataset, vocabulary: AnswerVocabulary) -> Dataset:
    """Add the soft targets of every row: `answer_ids` (list of int32) and `answer_scores` (list of float32).

    Args:
        rows: Rows or edits with the column `answers`, lists of text.
        vocabulary: Vocabulary of the training rows.

    Returns:
        The rows with both columns: empty lists if a row has no answer in the vocabulary, None if its answers are None.

    Example:
        >>> vocabulary = AnswerVocabulary.from_answers([["cat", "cat", "dog"]])
        >>> rows = Dataset.from_dict({"answers": [["dog", "cat", "a cat", "cow"], ["cow"]]})
        >>> encode_answers(rows, vocabulary)["answer_ids"][:]
        [[0, 1], []]
    """
    targets = {ANSWER_IDS: List(Value("int32")), ANSWER_SCORES: List(Value("float32"))}
    return rows.map(
        _encode_batch,
        batched=True,
        fn_kwargs={"vocabulary": vocabulary},
        features=Features({**rows.features, **targets}),
        desc="Encoding answers",
    )


def _encode_batch(batch: Mapping[str, Sequence[Any]], vocabulary: AnswerVocabulary) -> dict[str, list[Any]]:
    encoded = [(None, None) if answers is None else vocabulary.encode(answers) for answers in batch[ANSWERS]]
    return {ANSWER_IDS: [ids for ids, _ in encoded], ANSWER_SCORES: [scores for _, scores in encoded]}


@dataclass(frozen=True)
class AnswerJudge:
    """Judge of the predictions of a classifier of answers, or of a model that generates its answers.

    Its methods are arguments of a `PairEvaluator`, with the annotators' answers as references:

        scores = {"vqa_accuracy": judge.accuracy}
        PairEvaluator(judge.is_correct, judge.answers, scores, references="answers")

    Predictions are N classes, as `evaluate_pairs` passes them, or N texts without a vocabulary.

    Attributes:
        vocabulary: Classes of the model; None if it generates text.

    Example:
        >>> judge = AnswerJudge(AnswerVocabulary.from_answers([["yes", "yes", "no"]]))
        >>> judge.answers([0, 1])
        ['yes', 'no']
        >>> judge.is_correct([0, 1], [["yes"] * 10, ["yes"] * 9 + ["no"]])
        array([ True,  True])
        >>> judge.accuracy([0, 1], [["yes"] * 10, ["yes"] * 9 + ["no"]]).round(6)
        array([1. , 0.3])
    """

    vocabulary: AnswerVocabulary | None = None

    def answers(self, predictions: Sequence[Any]) -> list[str]:
        """Return normalized answers, equal for equal answers, to find the flips between two views: "Two." and "2"."""
        return [normalize_answer(text) for text in self._texts(predictions)]

    def is_correct(self, predictions: Sequence[Any], references: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
        """Return `H(z) = [an annotator gave the answer]`, `[N]` bool; see `dair_hf.metrics.vqa.scores.vqa_correct`."""
        return vqa_correct(self._texts(predictions), references)

    def accuracy(self, predictions: Sequence[Any], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """Return the official accuracies, `[N]` in [0, 1]; see `dair_hf.metrics.vqa.scores.vqa_scores`."""
        return vqa_scores(self._texts(predictions), references)

    def _texts(self, predictions: Sequence[Any]) -> list[str]:
        """Return predictions as text: the spelling of the predicted class, or the generated text."""
        if self.vocabulary is None:
            return list(predictions)
        spellings = self.vocabulary.spellings
        classes = [operator.index(prediction) for prediction in predictions]
        # A negative number would be read from the end, and the answers of another vocabulary scored.
        if outside := [number for number in classes if not 0 <= number < len(spellings)]:
            raise DataError(f"predictions: expected classes 0 to {len(spellings) - 1}, got {outside[0]}")
        return [spellings[number] for number in classes]
