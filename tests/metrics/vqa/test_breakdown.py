"""VQA accuracy of many questions: means, breakdown and counts by hand; intervals whose units are images."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.breakdown import vqa_accuracy


def question(number: int, answers: list[str], answer_type: str, question_type: str, image: Any) -> dict[str, Any]:
    return {
        "question_id": number,
        "answers": answers,
        "answer_type": answer_type,
        "question_type": question_type,
        "image_id": image,
    }


# Comments: official and simple accuracy by hand.
REFERENCES = [
    question(10, ["yes"] * 10, "yes/no", "is the", 1),
    question(11, ["yes"] * 8 + ["no"] * 2, "yes/no", "is this", 1),
    question(20, ["2"] * 7 + ["two"] * 2 + ["3"], "number", "how many", 2),
    question(21, ["3"] * 10, "number", "how many", 2),
    question(30, ["a net"] * 2 + ["net"] + ["mesh"] * 6, "other", "what is this", 3),
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


def test_normalization_is_a_setting_and_reported() -> None:
    always = vqa_accuracy(PREDICTIONS, REFERENCES, normalize="always", intervals=False)
    never = vqa_accuracy(PREDICTIONS, REFERENCES, normalize="never", intervals=False)
    assert (always["normalize"], never["normalize"]) == ("always", "never")
    assert always["vqa_accuracy"] == pytest.approx((1 + 0.6 + 1 + 1 + 8 / 9) / 5)
    # "2." is no annotator's answer, and "net" that of one in nine: (1 x 0 + 8 x 1/3) / 9.
    assert never["vqa_accuracy"] == pytest.approx((1 + 0.6 + 0 + 0 + 8 / 27) / 5)


def test_annotation_file_as_an_object() -> None:
    public = {"info": {}, "annotations": REFERENCES}
    assert vqa_accuracy(PREDICTIONS, public) == vqa_accuracy(PREDICTIONS, REFERENCES)


def test_no_breakdown_without_types() -> None:
    results = vqa_accuracy(["", " "], [["yes"] * 10] * 2)
    assert (results["by_answer_type"], results["by_question_type"]) == ({}, {})
    assert (results["vqa_accuracy"], results["empty_predictions"], results["undisputed"]) == (0.0, 2, 2)


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


def test_questions_are_the_units_if_one_has_no_image() -> None:
    assert interval([0] * 39 + [None]) == interval([None] * 40)


@pytest.mark.parametrize(
    ("predictions", "references", "settings", "message"),
    [
        ([], [], {}, "nothing to score: predictions and references contain no questions"),
        (
            ["a", "a"],
            [["a"] * 4, ["a"] * 3],
            {},
            r"references\[1\]: the official VQA accuracy needs at least 4 annotators, found 3",
        ),
        (
            ["a"],
            {"annotations": [{"answers": ["a"]}]},
            {},
            r"annotations\[0\]: the official VQA accuracy needs at least 4 annotators, found 1",
        ),
        (["a"], [["a"] * 10], {"normalize": "yes"}, "normalize: unknown value 'yes'"),
        (["a"], [["a"] * 10], {"confidence": 95}, "confidence: must lie between 0 and 1"),
    ],
)
def test_errors_of_invalid_input(predictions: Any, references: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        vqa_accuracy(predictions, references, **settings)
