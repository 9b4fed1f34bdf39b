"""What a vocabulary covers, counted by hand, and the ceiling against the accuracy of every possible answer."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.scores import vqa_scores
from dair_hf.vqa.answers import AnswerVocabulary
from dair_hf.vqa.coverage import Coverage, vocabulary_coverage

VOCABULARY = AnswerVocabulary(("yes", "2", "t shirt"), ("yes", "two", "t-shirt"), (3, 2, 1))


def test_counts_and_ceiling_by_hand() -> None:
    answers = [
        ["yes"] * 10,  # 1
        ["Yes"] * 10,  # undisputed in another spelling: 0
        ["t-shirt"] * 10,  # 1
        ["t shirt"] * 10,  # 0
        ["2"] * 2 + ["Two"] + ["3"] * 7,  # the three of them: 0.9
        ["3"] * 10,  # 0, and no answer in the vocabulary
        [],  # not annotated
    ]
    found = vocabulary_coverage(VOCABULARY, answers)
    assert found[:4] == (6, 5, 60, 43)
    assert found.ceiling == pytest.approx((1 + 0 + 1 + 0 + 0.9 + 0) / 6, abs=1e-12)


def test_the_ceiling_is_reached_by_the_best_of_all_answers() -> None:
    generator = np.random.default_rng(0)
    pool = ["yes", "Yes", "yes ", "2", "two", "t-shirt", "t shirt", "no", "3"]
    answers = []
    for _ in range(300):
        some = generator.choice(pool, size=generator.integers(1, 4), replace=False)
        answers.append([str(answer) for answer in generator.choice(some, size=10)])
    best = [max(vqa_scores(VOCABULARY.spellings, [given] * 3)) for given in answers]
    assert vocabulary_coverage(VOCABULARY, answers).ceiling == pytest.approx(np.mean(best), abs=1e-12)
    assert 0.2 < np.mean(best) < 0.9


def test_as_text() -> None:
    assert str(Coverage(8, 6, 80, 50, 0.7)) == (
        "in the vocabulary: 62.50% of 80 answers, an answer to 75.00% of 8 questions; accuracy at best 70.00%"
    )


def test_no_annotated_question() -> None:
    with pytest.raises(DataError, match="no question has answers; give annotated questions"):
        vocabulary_coverage(VOCABULARY, [[], []])
    with pytest.raises(DataError, match="needs at least 4 annotators, found 1"):
        vocabulary_coverage(VOCABULARY, [["yes"]])
