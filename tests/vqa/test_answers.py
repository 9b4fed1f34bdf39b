"""The answer vocabulary: counts and ties, soft targets by hand; correctness of classes and texts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from datasets.fingerprint import Hasher

from dair_hf.vqa.answers import AnswerJudge, AnswerVocabulary

TRAINING = [
    ["yes"] * 8 + ["no", "Yes"],  # yes 9, no 1
    ["2"] * 4 + ["two"] * 5 + ["3"],  # 2: 9, 3: 1
    ["t-shirt"] * 3 + ["T-Shirt."] * 2 + ["a shirt"] * 5,  # t shirt 5, shirt 5
    [],
    ["no"] * 2 + ["the", " ", "?"],  # no 3; the rest is empty
]


def vocabulary(size: int = 3000) -> AnswerVocabulary:
    return AnswerVocabulary.from_answers(TRAINING, size)


def test_counts_order_and_spellings() -> None:
    found = vocabulary()
    # Equal counts in alphabetical order: "2" before "yes", "shirt" before "t shirt".
    assert found.answers == ("2", "yes", "shirt", "t shirt", "no", "3")
    assert found.counts == (9, 9, 5, 5, 3, 1)
    assert found.spellings == ("two", "yes", "a shirt", "t-shirt", "no", "3")
    assert len(found) == 6
    assert found.id2label == {0: "two", 1: "yes", 2: "a shirt", 3: "t-shirt", 4: "no", 5: "3"}


def test_size_limit() -> None:
    assert vocabulary(3).answers == ("2", "yes", "shirt")  # a tie at the limit is broken the same way
    assert vocabulary(4) != vocabulary(5)


def test_order_of_questions_and_annotators_does_not_matter() -> None:
    generator = np.random.default_rng(0)
    for _ in range(5):
        shuffled = [list(generator.permutation(answers)) for answers in TRAINING]
        generator.shuffle(shuffled)
        assert AnswerVocabulary.from_answers(shuffled) == vocabulary()


def test_soft_targets_by_hand() -> None:
    found = vocabulary(4)  # 2, yes, shirt, t shirt
    assert found.encode(["yes"] * 10) == ([1], [1.0])
    assert found.encode(["YES."] * 4 + ["two"] * 3 + ["2"] + ["no"] * 2) == ([0, 1], [0.4, 0.4])
    assert found.encode(["no"] * 10) == ([], [])
    assert found.encode([]) == ([], [])
    assert found.encode(["the"] * 10) == ([], [])
    assert found.encode(["yes", "no", "no"]) == ([1], [1 / 3])  # of three annotators


def test_fingerprint_of_the_encoding() -> None:
    """Use leaves a vocabulary unchanged, so that `Dataset.map` finds its cached result."""
    used = vocabulary()
    used.encode(["yes", "zebra"])
    assert Hasher.hash(used) == Hasher.hash(vocabulary()) != Hasher.hash(vocabulary(4))


JUDGE = AnswerJudge(AnswerVocabulary(("2", "3", "t shirt"), ("2", "three", "t-shirt"), (9, 5, 4)))
REFERENCES = [["2"] * 10, ["3"] * 2 + ["4"] * 8, ["t-shirt"] * 10]


def test_correctness_and_accuracy_of_classes() -> None:
    classes = [0, np.int64(1), 2]
    correct, accuracy = JUDGE.is_correct(classes, REFERENCES), JUDGE.accuracy(classes, REFERENCES)
    assert (correct.dtype, accuracy.dtype) == (np.bool_, np.float64)
    assert JUDGE.answers(classes) == ["2", "3", "t shirt"]
    assert correct.tolist() == [True, True, True]
    assert accuracy == pytest.approx([1.0, 0.6, 1.0])
    assert JUDGE.is_correct(classes[::-1], REFERENCES).tolist() == [False, True, False]
    assert JUDGE.accuracy(classes[::-1], REFERENCES) == pytest.approx([0.0, 0.6, 0.0])
    assert JUDGE.answers([]) == []


def test_texts_of_a_model_without_vocabulary() -> None:
    texts = [" 2 ", "Three", "T-shirt"]
    assert AnswerJudge().answers(texts) == ["2", "3", "t shirt"]  # equal for all spellings
    # Undisputed answers are not normalized, as in the official evaluation.
    assert AnswerJudge().is_correct(texts, REFERENCES).tolist() == [True, True, False]
    assert AnswerJudge().accuracy(texts, REFERENCES).tolist() == pytest.approx([1.0, 0.6, 0.0])
