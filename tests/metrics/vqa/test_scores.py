"""VQA accuracy against hand-computed values, the definition and the published code; intervals over images."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces
from dair_hf.metrics.vqa.scores import (
    _count_matches,
    _official_scores,
    _simple_scores,
    vqa_accuracy,
    vqa_correct,
    vqa_scores,
)

# Output of the evaluation code published with version 2 of the data: (text, normalized text) for all words of its
# tables and for edge cases of its rules, and (prediction, answers, accuracy).
PINNED = json.loads(Path(__file__).with_name("pinned_vqa.json").read_text(encoding="utf-8"))


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
    assert _simple_scores(_count_matches(["yes"] * 11, references)[0]) == pytest.approx(simple, abs=1e-12)
    assert vqa_correct(["yes"] * 11, references).tolist() == [False] + [True] * 10
    assert [float(by_subsets("yes", answers)) for answers in references] == pytest.approx(official)


def test_output_of_the_published_code() -> None:
    normalized = PINNED["normalized"]
    assert len(normalized) > 200 and [[text, normalize_answer(text)] for text, _ in normalized] == normalized
    predictions, references, expected = zip(*PINNED["scores"], strict=True)
    assert vqa_scores(predictions, references) == pytest.approx(list(expected), abs=1e-9)
    assert len(set(expected)) == 5


def test_any_number_of_annotators_against_the_definition() -> None:
    for annotators in (4, 5, 9, 10, 17):
        for n in range(annotators + 1):
            answers = ["x"] * n + ["y"] * (annotators - n)
            assert _official_scores(n, annotators) == pytest.approx(float(by_subsets("x", answers)), abs=1e-12)
    counts = np.array([[0, 1], [2, 3]])
    assert _official_scores(counts, 10) == pytest.approx(np.array([[0, 0.3], [0.6, 0.9]]))
    assert _official_scores(counts).dtype == np.float64
    assert (_simple_scores(np.arange(11)) >= _official_scores(np.arange(11))).all()


@pytest.mark.parametrize(
    ("prediction", "answers", "disputed", "always", "never"),
    [
        ("yes", ["yes"] * 10, 10, 10, 10),
        ("Yes", ["yes"] * 10, 0, 10, 0),  # undisputed: not normalized
        ("Yes", ["yes"] * 9 + ["no"], 9, 9, 0),
        ("two", ["2"] * 9 + ["3"], 9, 9, 0),
        ("the net", ["net"] * 3 + ["a net"] * 3 + ["racket"] * 4, 6, 6, 0),
        (" yes\n", ["yes", "yes "] * 5, 10, 10, 10),  # spaces around answers do not count
        ("yes", ["yes", "Yes"] * 5, 10, 10, 5),
        ("dont know", ["don't know"] * 2 + ["no"] * 8, 2, 2, 0),
        ("white red", ["red/white"] * 9 + ["white/red"], 1, 1, 0),
    ],
)
def test_when_answers_are_normalized(
    prediction: str, answers: list[str], disputed: int, always: int, never: int
) -> None:
    for normalize, expected in (("disputed", disputed), ("always", always), ("never", never)):
        matching, annotators = _count_matches([prediction], [answers], normalize)
        assert (matching.tolist(), annotators.tolist()) == ([expected], [len(answers)])
        assert vqa_correct([prediction], [answers], normalize=normalize).tolist() == [expected > 0]


def question(number: int, answers: list[str], kind: str, start: str) -> dict[str, Any]:
    return {"question_id": number, "answers": answers, "answer_type": kind, "question_type": start}


# Comments: official and simple accuracy by hand.
REFERENCES = [
    question(10, ["yes"] * 10, "yes/no", "is the"),
    question(11, ["yes"] * 8 + ["no"] * 2, "yes/no", "is this"),
    question(20, ["2"] * 7 + ["two"] * 2 + ["3"], "number", "how many"),
    question(21, ["3"] * 10, "number", "how many"),
    question(30, ["a net"] * 2 + ["net"] + ["mesh"] * 6, "other", "what is this"),
]
ANSWERS = {
    10: "yes",  # 10 of 10: 1, 1
    11: "no",  # 2 of 10: 0.6, 2/3
    20: "2.",  # 9 of 10: 1, 1
    21: "three",  # undisputed "3": 0, 0
    30: "net",  # 3 of 9: (3 x 2/3 + 6 x 1) / 9 = 8/9, 1
}
PREDICTIONS = [{"question_id": number, "answer": answer} for number, answer in ANSWERS.items()]


def test_means_and_breakdown_by_hand() -> None:
    results = vqa_accuracy(PREDICTIONS[::-1], REFERENCES, intervals=False)
    by_answer, by_question = results.pop("by_answer_type"), results.pop("by_question_type")
    assert results == pytest.approx(
        {
            "vqa_accuracy": (1 + 0.6 + 1 + 0 + 8 / 9) / 5,
            "vqa_accuracy_simple": (1 + 2 / 3 + 1 + 0 + 1) / 5,
            "vqa_correct": 4 / 5,
            "questions": 5,
            "undisputed": 2,
            "not_ten_annotators": 1,
            "empty_predictions": 0,
            "normalize": "disputed",
        }
    )
    assert list(by_answer) == ["number", "other", "yes/no"]
    assert by_answer["yes/no"] == {"vqa_accuracy": pytest.approx(0.8), "questions": 2}
    assert by_answer["number"] == {"vqa_accuracy": pytest.approx(0.5), "questions": 2}
    assert by_question["how many"] == by_answer["number"]
    assert by_question["is this"] == {"vqa_accuracy": pytest.approx(0.6), "questions": 1}
    assert sum(kind["questions"] for kind in by_question.values()) == 5


def interval(images: list[Any], n: int = 40) -> tuple[float, float, float]:
    """Interval of the accuracy if half of the answers are correct and question i is about images[i]."""
    references = [
        {"question_id": i, "answers": ["yes"] * 10} | ({} if images[i] is None else {"image_id": images[i]})
        for i in range(n)
    ]
    predictions = [{"question_id": i, "answer": "yes" if i < n / 2 else "no"} for i in range(n)]
    results = vqa_accuracy(predictions, references)
    return results["vqa_accuracy_low"], results["vqa_accuracy"], results["vqa_accuracy_high"]


def test_images_are_the_units_of_intervals() -> None:
    # 40 independent questions: +- 1.96 sqrt(0.25 / 40) = 0.155. Ten images with equal answers: +- 0.31.
    low, point, high = interval([None] * 40)
    assert (low, point, high) == pytest.approx((0.345, 0.5, 0.655), abs=0.03)
    assert interval(list(range(40))) == (low, point, high)
    low, point, high = interval([i // 4 for i in range(40)])
    assert (low, point, high) == pytest.approx((0.19, 0.5, 0.81), abs=0.06)
    # Edits are clustered with their original image.
    edited = [f"{i // 4:012d}_{i % 3:012d}" if i % 4 else str(i // 4) for i in range(40)]
    assert interval(edited) == (low, point, high)
    # Only a number names the original: these are 40 images, and ten.
    assert interval([f"COCO_val2014_{i:012d}" for i in range(40)]) == interval(list(range(40)))
    assert interval([f"COCO_val2014_{i // 4:012d}" for i in range(40)]) == (low, point, high)
    assert math.isnan(interval(["7"] * 40)[0])


def test_spaces() -> None:
    assert strip_spaces("\n a\tb \n") == "a b"
    assert strip_spaces("A  b") == "A  b"
    assert normalize_answer("  A  b\u00a0 c ") == "b c"
    assert normalize_answer("line\nend") == "line end"
