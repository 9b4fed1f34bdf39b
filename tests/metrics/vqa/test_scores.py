"""VQA accuracy of single answers against hand-computed values, the definition and the published code."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.scores import (
    count_matches,
    is_disputed,
    official_scores,
    simple_scores,
    vqa_correct,
    vqa_scores,
)

# (prediction, answers, accuracy by the evaluation code published with version 2 of the data)
PINNED = json.loads(Path(__file__).with_name("pinned_vqa.json").read_text(encoding="utf-8"))["scores"]


def by_subsets(prediction: str, answers: list[str]) -> Fraction:
    """Mean over the subsets that leave out one annotator: the definition of the official accuracy."""
    subsets = [answers[:left_out] + answers[left_out + 1 :] for left_out in range(len(answers))]
    return sum(min(Fraction(subset.count(prediction), 3), Fraction(1)) for subset in subsets) / len(subsets)


def test_zero_to_ten_agreeing_annotators() -> None:
    # n = 1: nine subsets have it, 9/10 x 1/3. n = 2: two have one, eight have two, (2 x 1/3 + 8 x 2/3) / 10.
    official = [0, 0.3, 0.6, 0.9, 1, 1, 1, 1, 1, 1, 1]
    simple = [0, 1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1, 1, 1]
    references = [["yes"] * n + ["no"] * (10 - n) for n in range(11)]
    assert vqa_scores(["yes"] * 11, references) == pytest.approx(official, abs=1e-12)
    assert simple_scores(*count_matches(["yes"] * 11, references)) == pytest.approx(simple, abs=1e-12)
    assert vqa_correct(["yes"] * 11, references).tolist() == [False] + [True] * 10
    assert [float(by_subsets("yes", answers)) for answers in references] == pytest.approx(official)


def test_output_of_the_published_code() -> None:
    predictions, references, expected = zip(*PINNED, strict=True)
    assert vqa_scores(predictions, references) == pytest.approx(list(expected), abs=1e-9)
    assert len(set(expected)) == 5


def test_any_number_of_annotators_against_the_definition() -> None:
    for annotators in (4, 5, 9, 10, 17):
        for n in range(annotators + 1):
            answers = ["x"] * n + ["y"] * (annotators - n)
            assert official_scores(n, annotators) == pytest.approx(float(by_subsets("x", answers)), abs=1e-12)
    counts = np.array([[0, 1], [2, 3]])
    assert official_scores(counts, 10) == pytest.approx(np.array([[0, 0.3], [0.6, 0.9]]))
    assert official_scores(counts).dtype == np.float64
    assert (simple_scores(np.arange(11)) >= official_scores(np.arange(11))).all()


def test_ties_have_equal_scores() -> None:
    answers = ["cat"] * 5 + ["dog"] * 5
    assert vqa_scores(["cat", "dog", "cow"], [answers] * 3).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("prediction", "answers", "disputed", "always", "never"),
    [
        ("yes", ["yes"] * 10, 10, 10, 10),
        ("Yes", ["yes"] * 10, 0, 10, 0),  # undisputed: not normalized
        ("Yes", ["yes"] * 9 + ["no"], 9, 9, 0),
        ("two", ["2"] * 10, 0, 10, 0),
        ("two", ["2"] * 9 + ["3"], 9, 9, 0),
        ("the net", ["net"] * 3 + ["a net"] * 3 + ["racket"] * 4, 6, 6, 0),
        (" yes\n", ["yes", "yes "] * 5, 10, 10, 10),  # spaces around answers do not count
        ("yes", ["yes", "Yes"] * 5, 10, 10, 5),
        ("dont know", ["don't know"] * 2 + ["no"] * 8, 2, 2, 0),
        ("1000", ["1,000"] * 9 + ["many"], 9, 9, 0),
        ("white red", ["red/white"] * 9 + ["white/red"], 1, 1, 0),
    ],
)
def test_when_answers_are_normalized(
    prediction: str, answers: list[str], disputed: int, always: int, never: int
) -> None:
    for normalize, expected in (("disputed", disputed), ("always", always), ("never", never)):
        matches = count_matches([prediction], [answers], normalize)
        assert (matches.matching.tolist(), matches.annotators.tolist()) == ([expected], [len(answers)])
        assert matches.matching.dtype == np.int64
        assert vqa_correct([prediction], [answers], normalize=normalize).tolist() == [expected > 0]


def test_is_disputed() -> None:
    assert not is_disputed(["yes", " yes", "yes\n"])
    assert is_disputed(["yes", "Yes"])
    assert not is_disputed([])


def test_one_match_and_one_annotator_are_enough() -> None:
    assert vqa_correct(["3", "3"], [["2"] * 9 + ["three"], ["3"]]).tolist() == [True, True]
    assert vqa_correct([], []).tolist() == []
    assert vqa_scores([], []).tolist() == []


@pytest.mark.parametrize(
    ("predictions", "references", "settings", "message"),
    [
        (["a"], [], {}, "found 1 predictions for 0 references"),
        (["a", 2], [["a"] * 10] * 2, {}, r"predictions\[1\]: an answer must be a string, found 2"),
        (
            ["a"],
            ["aaaaaaaaaa"],
            {},
            r"references\[0\]: expected the list of the annotators' answers, found 'aaaaaaaaaa'",
        ),
        (["a"], [None], {}, r"references\[0\]: expected the list .* found None"),
        (["a"], [[]], {}, r"references\[0\]: the list of answers is empty; remove questions without annotation"),
        (["a"], [["a", 2, "b", "c"]], {}, r"references\[0\]: an annotator's answer must be a string, found 2"),
        (
            ["a", "a"],
            [["a"] * 10, ["a"] * 3],
            {},
            r"references\[1\]: the official VQA accuracy needs at least 4 .* found 3",
        ),
        (["a"], [["a"] * 10], {"normalize": True}, "normalize: unknown value True; use one of disputed, always, never"),
    ],
)
def test_errors_of_invalid_input(predictions: list, references: list, settings: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        vqa_scores(predictions, references, **settings)


def test_simple_scores_need_three_annotators() -> None:
    with pytest.raises(DataError, match="the simple VQA accuracy needs at least 3 annotators, found 2"):
        simple_scores(*count_matches(["a"], [["a"] * 2]))
