"""Correctness of classes and texts by hand, and predictions that do not fit the vocabulary."""

from __future__ import annotations

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.vqa.answers import AnswerVocabulary
from dair_hf.vqa.correctness import AnswerJudge

VOCABULARY = AnswerVocabulary(("2", "3", "t shirt"), ("2", "three", "t-shirt"), (9, 5, 4))
JUDGE = AnswerJudge(VOCABULARY)
LOGITS = [np.array([3.0, 1.0, -1.0], np.float32), [0.0, 0.5, 0.25], np.array([-3.0, -2.0, -1.0])]
REFERENCES = [["2"] * 10, ["3"] * 2 + ["4"] * 8, ["t-shirt"] * 10]


def test_answer_is_the_largest_logit() -> None:
    assert JUDGE.texts(LOGITS) == ["2", "three", "t-shirt"]
    assert JUDGE.answers(LOGITS) == ["2", "3", "t shirt"]
    assert JUDGE.answers([[1.0, 1.0, 0.0]]) == ["2"]  # the first of equal logits
    assert JUDGE.answers([]) == JUDGE.texts([]) == []


def test_correctness_and_accuracy() -> None:
    correct, accuracy = JUDGE.is_correct(LOGITS, REFERENCES), JUDGE.accuracy(LOGITS, REFERENCES)
    assert (correct.dtype, accuracy.dtype) == (np.bool_, np.float64)
    assert correct.tolist() == [True, True, True]
    assert accuracy == pytest.approx([1.0, 0.6, 1.0])
    assert JUDGE.is_correct(LOGITS[::-1], REFERENCES).tolist() == [False, True, False]
    classes = [int(np.argmax(logits)) for logits in LOGITS]  # as evaluate_pairs passes them
    assert JUDGE.texts(classes) == JUDGE.texts(LOGITS)
    assert JUDGE.is_correct(classes, REFERENCES).tolist() == [True, True, True]
    assert JUDGE.accuracy(LOGITS[::-1], REFERENCES) == pytest.approx([0.0, 0.6, 0.0])


def test_texts_of_a_model_without_vocabulary() -> None:
    texts = [" 2 ", "Three", "T-shirt"]
    assert AnswerJudge().texts(texts) == texts
    assert AnswerJudge().answers(texts) == ["2", "3", "t shirt"]  # equal for all spellings
    assert AnswerJudge(normalize="never").answers(texts) == ["2", "Three", "T-shirt"]
    assert AnswerJudge().is_correct(texts, REFERENCES).tolist() == [True, True, False]
    assert AnswerJudge(normalize="always").is_correct(texts, REFERENCES).tolist() == [True, True, True]
    assert AnswerJudge(normalize="never").accuracy(texts, REFERENCES).tolist() == [1.0, 0.0, 0.0]


def test_invalid_predictions_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 1: logits of shape \[2\] for a vocabulary of 3 answers"):
        JUDGE.answers([[0.0, 1.0, 2.0], [0.0, 1.0]])
    for prediction in ("2", 3, -1, 1.0):
        with pytest.raises(DataError, match=f"row 0: class {prediction!r} for a vocabulary of 3 answers"):
            JUDGE.is_correct([prediction], REFERENCES[:1])
    for broken in ([0.0, float("nan"), 9.0], [float("nan")] * 3):
        with pytest.raises(DataError, match="row 1: a logit is NaN"):
            JUDGE.answers([[0.0, 1.0, 2.0], broken])
    with pytest.raises(DataError, match="row 0: a prediction without vocabulary must be text, found 2"):
        AnswerJudge().answers([2])
    with pytest.raises(ValueError):
        JUDGE.accuracy(LOGITS, REFERENCES[:2])
