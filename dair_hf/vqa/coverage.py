"""How much of annotated questions an answer vocabulary can answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.answers import strip_spaces
from dair_hf.metrics.vqa.scores import is_disputed, official_scores
from dair_hf.vqa.answers import AnswerVocabulary


class Coverage(NamedTuple):
    """What a vocabulary covers; as text, one line.

    questions: Questions with annotations.
    answerable: Those of them with an answer in the vocabulary.
    answers: The annotators' answers.
    known: Those of them in the vocabulary.
    ceiling: Official accuracy of a model that picks the best class of every question, in [0, 1].
    """

    questions: int
    answerable: int
    answers: int
    known: int
    ceiling: float

    def __str__(self) -> str:
        return (
            f"in the vocabulary: {self.known / self.answers:.2%} of {self.answers} answers, an answer to "
            f"{self.answerable / self.questions:.2%} of {self.questions} questions; accuracy at best {self.ceiling:.2%}"
        )


def vocabulary_coverage(vocabulary: AnswerVocabulary, answers: Iterable[Sequence[str]]) -> Coverage:
    """Measure a vocabulary on annotated questions.

    Args:
        vocabulary: The vocabulary.
        answers: For each question the annotators' answers; questions without any are passed over.

    Returns:
        Counts, and the ceiling: where all annotators wrote the same, only a class of that very spelling scores.

    Raises:
        DataError: No question is annotated, or one has fewer than four annotators.

    Example:
        >>> vocabulary = AnswerVocabulary.from_answers([["2"] * 10], size=1)
        >>> print(vocabulary_coverage(vocabulary, [["2"] * 10, ["3"] * 8 + ["two"] * 2]))
        in the vocabulary: 60.00% of 20 answers, an answer to 100.00% of 2 questions; accuracy at best 80.00%
    """
    known, best, annotators = [], [], []
    for given in answers:
        if not given:
            continue
        found = Counter(number for number in map(vocabulary.id_of, given) if number is not None)
        matching = max(found.values(), default=0)
        if found and not is_disputed(given) and vocabulary.spellings[next(iter(found))] != strip_spaces(given[0]):
            matching = 0
        known.append(sum(found.values()))
        best.append(matching)
        annotators.append(len(given))
    if not annotators:
        raise DataError("coverage: no question has answers; give annotated questions")
    ceiling = float(official_scores(best, annotators).mean())
    return Coverage(len(annotators), int(np.count_nonzero(known)), sum(annotators), sum(known), ceiling)
