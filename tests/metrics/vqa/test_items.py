"""Predictions and references of VQA: accepted shapes, files, matching by id, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.items import (
    Prediction,
    Reference,
    pair_answers,
    read_prediction,
    read_predictions,
    read_reference,
    read_references,
)

Write = Callable[[str], str]

ANNOTATION: dict[str, Any] = {
    "question_type": "what is this",
    "multiple_choice_answer": "net",
    "answers": [
        {"answer": "net", "answer_confidence": "maybe", "answer_id": 1},
        {"answer": "mesh", "answer_confidence": "yes", "answer_id": 2},
    ],
    "image_id": 458752,
    "answer_type": "other",
    "question_id": 458752000,
}
PUBLIC = {
    "info": {"description": "", "version": "2.0"},
    "license": {"name": "", "url": ""},
    "data_subtype": "train2014",
    "data_type": "mscoco",
    "annotations": [ANNOTATION, ANNOTATION | {"question_id": 458752001, "answer_type": "number"}],
}
READ = ("458752000", "458752", ("net", "mesh"), "what is this", "other")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_text


def test_all_shapes_of_predictions() -> None:
    assert read_prediction("a net", "p") == Prediction(None, None, "a net", "p")
    assert read_prediction('{"answer": 1', "p").answer == '{"answer": 1'  # text is an answer even if it looks like JSON
    assert read_prediction({"question_id": 7, "answer": "x"}, "p") == Prediction("7", None, "x", "p")
    assert read_prediction({"row_id": "7", "image_id": "9_5", "answer": ""}, "p") == Prediction("7", "9_5", "", "p")
    assert read_prediction({"question_id": np.int64(7), "answer": "x"}, "p").question_id == "7"


def test_all_shapes_of_references() -> None:
    assert read_reference(ANNOTATION, "r") == Reference(*READ, "r")
    row = {"row_id": "458752000", "image_id": "458752", "answers": ["net", "mesh"], "question": "what ?"}
    row |= {"question_type": "what is this", "answer_type": "other"}
    for shape in (row, json.dumps(row), json.dumps(ANNOTATION)):
        assert read_reference(shape, "r") == Reference(*READ, "r")
    for bare in (["net", "mesh"], ("net", "mesh"), ANNOTATION["answers"], '["net", "mesh"]'):
        assert read_reference(bare, "r") == Reference(None, None, ("net", "mesh"), None, None, "r")


def test_annotation_file_as_an_object() -> None:
    references = read_references(PUBLIC)
    assert [item.where for item in references] == ["annotations[0]", "annotations[1]"]
    assert references[0] == Reference(*READ, "annotations[0]")
    assert read_references(PUBLIC["annotations"])[1].where == "references[1]"
    with pytest.raises(DataError, match="references: expected an annotation file .*, found an object with 'info'"):
        read_references({"info": {}})


@pytest.mark.parametrize(
    ("read", "item", "message"),
    [
        (read_prediction, 3, "here: expected an answer, or an object with question_id and answer, found 3"),
        (
            read_prediction,
            {"question_id": 1, "prediction": "x"},
            "here: the key 'answer' is missing; found 'question_id'",
        ),
        (read_prediction, {"question_id": 1, "answer": 2}, "here: answer must be a string, found 2"),
        (
            read_prediction,
            {"question_id": 1.5, "answer": "x"},
            "here: question_id must be a string or an integer, found 1",
        ),
        (
            read_prediction,
            {"image_id": True, "answer": "x"},
            "here: image_id must be a string or an integer, found True",
        ),
        (read_reference, None, "here: expected the list of the annotators' answers, found None"),
        (read_reference, "net", "here: invalid JSON at column 1"),
        (read_reference, [], "here: the list of answers is empty; remove questions without annotation"),
        (read_reference, ["net", 2], "here: an annotator's answer must be a string, found 2"),
        (read_reference, [{"answer_id": 1}], "here: the key 'answer' is missing in an annotation; found 'answer_id'"),
        (read_reference, {"question_id": 1, "answer": "x"}, "here: the key 'answers' is missing; found 'question_id'"),
        (read_reference, {"answers": "net"}, "here: expected the list of the annotators' answers, found 'net'"),
        (read_reference, {"answers": ["net"], "answer_type": 1}, "here: answer_type must be a string, found 1"),
    ],
)
def test_errors_of_invalid_items(read: Callable[[Any, str], Any], item: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(item, "here")
    assert str(caught.value).startswith(message)


def question(number: int, image: str | None = None) -> dict[str, Any]:
    return {"question_id": number, "answers": [str(number)] * 10} | ({"image_id": image} if image else {})


def answer(number: int, text: str, image: str | None = None) -> dict[str, Any]:
    return {"question_id": number, "answer": text} | ({"image_id": image} if image else {})


def pairs(predictions: list[Any], references: list[Any]) -> list[tuple[str, str | None, str | None]]:
    matched = pair_answers(read_predictions(predictions), read_references(references))
    return [(prediction.answer, reference.question_id, reference.image_id) for prediction, reference in matched]


def test_matching_by_id_in_the_order_of_the_references() -> None:
    assert pairs([answer(2, "b"), answer(1, "a")], [question(1), question(2)]) == [("a", "1", None), ("b", "2", None)]
    # Ids may be numbers or text, and an image id on one side only is ignored.
    assert pairs([{"row_id": "1", "answer": "a"}], [question(1, "9")]) == [("a", "1", "9")]


def test_edits_of_one_question_are_distinguished_by_image() -> None:
    edits = [question(1, "9_5"), question(1, "9_6")]
    assert pairs([answer(1, "b", "9_6"), answer(1, "a", "9_5")], edits) == [("a", "1", "9_5"), ("b", "1", "9_6")]
    with pytest.raises(
        DataError, match=r"predictions\[1\]: the id 1 was already used at predictions\[0\]; .* an image_id"
    ):
        pairs([answer(1, "b"), answer(1, "a")], edits)
    with pytest.raises(
        DataError, match=r"the id 1 \(image 9_5\) was already used at references\[0\]; ids must be unique$"
    ):
        pairs([answer(1, "b", "9_6")], [edits[0], edits[0]])


def test_matching_by_position_without_ids() -> None:
    assert pairs(["a", "b"], [["a"], ["b"]]) == [("a", None, None), ("b", None, None)]
    assert pairs([], []) == []
    with pytest.raises(
        DataError, match="2 predictions for 1 references; give one for each, or give both a question_id"
    ):
        pairs(["a", "b"], [["a"]])


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (
            [answer(1, "a")],
            [["a"]],
            "predictions have ids and references have none; give both a question_id, or neither",
        ),
        (["a"], [question(1)], "references have ids and predictions have none"),
        ([answer(1, "a"), "b"], [question(1), question(2)], "predictions: 1 of 2 items have no id, the first at pred"),
        (
            [answer(1, "a"), answer(3, "c")],
            [question(1), question(2)],
            "ids of predictions and references differ: 1 (e.g. 2) without prediction, 1 (e.g. 3) without reference",
        ),
        (
            [answer(1, "a")],
            [question(1), question(2)],
            "1 (e.g. 2) without prediction, 0 without reference; give every",
        ),
        ([], [question(1)], "1 (e.g. 1) without prediction, 0 without reference"),
    ],
)
def test_errors_of_items_that_do_not_match(predictions: list[Any], references: list[Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        pairs(predictions, references)
    assert message in str(caught.value)
