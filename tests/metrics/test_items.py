"""Items of the three metrics: accepted shapes, pairs of predictions and references, and one table of bad inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.metrics.consistency_items import consistency_metrics, judge_pairs, read_correctness
from dair_hf.metrics.items import pair_items, read_turns
from dair_hf.metrics.state.conventions import resolve_pair_convention
from dair_hf.metrics.state.joint_goal import joint_goal_accuracy, joint_goal_correct
from dair_hf.metrics.vqa.scores import vqa_accuracy, vqa_scores

PREDICTIONS: list[dict[str, Any]] = [
    {"row_id": "A/0", "state": {"hotel-name": "acorn"}},
    {"row_id": "A/1", "state": {"hotel-area": "west"}},
    {"row_id": "B/0", "state": {}},
]
REFERENCES: list[dict[str, Any]] = [
    {"row_id": "A/0", "state": {"hotel-name": ["acorn", "acorn house"]}},
    {"row_id": "A/1", "state": {"hotel-area": ["east"]}},
    {"row_id": "B/0", "state": {}},
]


@pytest.mark.parametrize(
    "state",
    [
        {"hotel-area": ["east"], "hotel-stars": ["4"]},
        {"hotel-area": "east", "hotel-stars": 4},
        {"hotel-area": "east", "hotel-stars": 4.0},
        {"hotel-area": "east", "hotel-stars": np.int64(4)},
        {"hotel-area": "east", "hotel-stars": [np.float32(4.0)]},
        {"hotel": {"area": "east", "stars": ["4"]}},
        [{"slot": "hotel-area", "values": ["east"]}, {"slot": "hotel-stars", "values": ["4"]}],
        '{"hotel-area": "east", "hotel-stars": "4"}',
        {"id": "A/0", "prediction": "hotel-area = east ; hotel-stars = 4", "correct": True},
        {"id": "A/0", "prediction": '[{"slot": "hotel-area", "values": "east"}, {"slot": "hotel-stars", "values": 4}]'},
        {"row_id": "A/0", "variant": "original", "prediction": {"hotel": {"area": "east", "stars": 4}}},
        {"id": "A/0", "state": {"hotel-area": ["east"], "hotel-stars": ["4"]}},
        {"dialogue_id": "A", "turn_id": 0, "state": '{"hotel": {"area": "east", "stars": 4}}'},
    ],
)
def test_all_shapes_of_states_give_the_same_result(state: Any) -> None:
    reference: Any = {"hotel-area": ["east"], "hotel-stars": ["4"]}
    if isinstance(state, dict) and {"state", "prediction"} & state.keys():
        reference = {"row_id": "A/0", "state": reference}
    assert joint_goal_accuracy([state], [reference])["slot_f1"] == 1.0


@pytest.mark.parametrize("text", ["{{1}}", "{1: 'x'}", "{[1]: 2}", "{b'a': 1}", '{"a": ' + "[" * 100_000, "[1]"])
def test_text_that_is_no_state_is_a_wrong_answer(text: str) -> None:
    (item,) = read_turns([{"row_id": "A/0", "prediction": text}], "predictions")
    assert item.value.answered and not item.value.is_well_formed


def test_slot_named_state() -> None:
    assert joint_goal_correct([{"state": ["ca"]}], [{"state": ["ca", "california"]}])[0]
    assert not joint_goal_correct([{"state": "ny"}], [{"state": ["ca"]}])[0]


ANNOTATION = {"answers": [{"answer": "net", "answer_id": 1}] * 9 + [{"answer": "mesh"}], "answer_type": "other"}
PLAIN = ["net"] * 9 + ["mesh"]


@pytest.mark.parametrize(
    ("predictions", "references"),
    [
        (["a net"], [PLAIN]),
        (["a net"], [tuple(PLAIN)]),
        (["a net"], [json.dumps(PLAIN)]),
        ([{"question_id": 7, "answer": "a net"}], [ANNOTATION | {"question_id": "7"}]),
        ([{"row_id": "7", "answer": "a net"}], [json.dumps({"question_id": 7, "answers": PLAIN})]),
        ([{"question_id": np.int64(7), "answer": "a net"}], {"annotations": [ANNOTATION | {"question_id": 7}]}),
    ],
)
def test_all_shapes_of_answers_give_the_same_result(predictions: list[Any], references: Any) -> None:
    results = vqa_accuracy(predictions, references, intervals=False)
    assert (results["vqa_accuracy"], results["questions"]) == (1.0, 1)
    # Text is an answer even if it looks like JSON.
    assert vqa_accuracy(['{"answer": "net"}'], [PLAIN], intervals=False)["vqa_correct"] == 0.0


def test_items_are_paired_by_id_not_by_order() -> None:
    expected = joint_goal_accuracy(PREDICTIONS, REFERENCES, intervals=False)
    assert joint_goal_accuracy(PREDICTIONS[::-1], REFERENCES, intervals=False) == expected
    states = [[item["state"] for item in items] for items in (PREDICTIONS, REFERENCES)]
    found = [joint_goal_accuracy(predicted, states[1]) for predicted in (states[0], states[0][::-1])]
    assert [results["joint_goal_accuracy_numerator"] for results in found] == [2, 0]


def test_edits_of_one_question_are_distinguished_by_image() -> None:
    def items(key: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"question_id": 1, "image_id": image, key: value} for image, value in values.items()]

    references = items("answers", {"9_5": ["a"] * 10, "9_6": ["b"] * 10})
    predictions = items("answer", {"9_6": "b", "9_5": "a"})
    assert vqa_accuracy(predictions, references, intervals=False)["vqa_accuracy"] == 1.0
    # An image id on one side only is ignored.
    assert vqa_accuracy([{"question_id": 1, "answer": "a"}], references[:1], intervals=False)["vqa_accuracy"] == 1.0
    for wrong in ([{"question_id": 1, "answer": "a"}] * 2, predictions[:1] * 2):
        with pytest.raises(DataError, match=r"predictions\[1\]"):
            vqa_accuracy(wrong, references)


def test_a_reference_without_cluster_gets_that_of_its_prediction() -> None:
    predictions = [item | {"cluster": number} for number, item in enumerate(PREDICTIONS)]
    pairs = pair_items(read_turns(predictions, "predictions"), read_turns(REFERENCES, "references"))
    assert [reference.cluster for _, reference in pairs] == [0, 1, 2]
    own = [item | {"cluster": "x"} for item in REFERENCES]
    pairs = pair_items(read_turns(predictions, "predictions"), read_turns(own, "references"))
    assert [reference.cluster for _, reference in pairs] == ["x"] * 3


def jga(predictions: list[Any], references: Any = ({},), **switches: Any) -> Any:
    return joint_goal_accuracy(predictions, references, **switches)


def views(**changes: Any) -> list[dict[str, Any]]:
    row = {"row_id": "A/0", "correct": True} | changes
    return [row, row | {"variant": "augmented"}]


def rows(*ids: str | None, **changes: Any) -> list[dict[str, Any]]:
    return [{"row_id": name, "original_correct": True, "augmented_correct": True} | changes for name in ids]


GOLD = {"hotel-area": ["east"], "hotel-pricerange": ["cheap"], "train-leaveat": ["17:15"]}
TEN = ["a"] * 10


@pytest.mark.parametrize(
    ("call", "named"),
    [
        # Pairs of predictions and references.
        (lambda: jga([], []), "both are empty"),
        (lambda: jga([{}], [{}, {}]), "1 predictions for 2 references"),
        (lambda: jga(PREDICTIONS[:2], REFERENCES), r"B/0 \(original\) at references\[2\]"),
        (lambda: jga([*PREDICTIONS, PREDICTIONS[0]], REFERENCES), r"predictions\[3\].*A/0 .*predictions\[0\]"),
        (lambda: jga([*PREDICTIONS[:2], {}], REFERENCES), r"predictions\[2\]: expected an id"),
        (lambda: jga(PREDICTIONS, [{}] * 3), r"references\[0\]: expected an id"),
        (lambda: vqa_accuracy([{"question_id": 1, "answer": "a"}], [{"question_id": 2, "answers": TEN}]), "2 ids"),
        (lambda: jga([{"turn_id": 0, "state": {}}] * 2, REFERENCES[:2]), r"predictions\[1\]"),
        # Items of states.
        (lambda: jga(["hotel-area = east"]), r"predictions\[0\]: expected JSON"),
        (lambda: jga(["[" * 100_000]), r"predictions\[0\]: expected JSON"),
        (lambda: jga(['{"a-x": "1", "a-x": "2"}']), "'a-x' occurs several times"),
        (lambda: jga([{"row_id": "A/0", "text": "x"}]), "'state'"),
        (lambda: jga([{"row_id": "A/0", "state": None}]), r"predictions\[0\]: expected a state"),
        (lambda: jga([[{"row_id": "A/0", "state": {}}]]), r"predictions\[0\]: expected a state"),
        (lambda: jga([{"hotel": {"semi": {"area": "east"}}}]), "hotel-semi"),
        (lambda: jga([{"a-x": float("nan")}]), "a-x"),
        (lambda: jga([[{"slot": "a-x", "values": "1"}] * 2]), "a-x"),
        (lambda: jga([{"a": {"x": "1"}, "a-x": "2"}]), "a-x"),
        (lambda: jga([{"text": "x", "augmented_text": "y"}]), "augmented_text"),
        (lambda: jga([{"row_id": "A", "variant": "swapped", "state": {}}]), "variant.*'swapped'"),
        (lambda: jga([{}], [{"reference": "hotel-area: x ; hotel-stars = 4"}]), r"references\[0\]: reference"),
        # Conventions and slot names.
        (lambda: jga([{}], preset="traed"), "preset.*any_of.*'traed'"),
        (lambda: jga([{}], dontcare="drop"), "dontcare.*drop_both"),
        (lambda: jga([GOLD], [GOLD], domains=["hotel", "plane"]), "domains.*'plane'"),
        (lambda: joint_goal_correct([GOLD], [GOLD], slots="hotel-aera"), "slots.*'hotel-aera'"),
        (lambda: jga([GOLD], [GOLD], schema_slots=["hotel-area"], slots="hotel-stars"), "slots.*'hotel-stars'"),
        (lambda: judge_pairs(views(state=GOLD), views(state=GOLD), consistency_slots="hotel-nmae"), "'hotel-nmae'"),
        (lambda: jga([GOLD], [GOLD], domains="police"), "nothing to compare"),
        (lambda: jga([{"Hotels_1-a": "4"}], [{"Hotels_1-a": "4"}], preset="parlai_v22"), "nothing to compare"),
        (lambda: resolve_pair_convention("any_of", empty_answer="skip"), "empty_answer"),
        # Correctness of pairs.
        (lambda: read_correctness(rows("A/0", original_correct=None)), "original_correct"),
        (lambda: read_correctness(rows("A/0", augmented_correct="no")), "augmented_correct"),
        (lambda: read_correctness(rows("A/0", "A/0")), "A/0"),
        (lambda: read_correctness(rows("A/0", None)), "row 1: expected an id"),
        (lambda: read_correctness(views()[1:]), "row_id.*A/0"),
        (lambda: read_correctness(views() * 2), "A/0"),
        (lambda: read_correctness(views(variant=2)), "variant"),
        (lambda: judge_pairs([{}], [{}]), "row_id"),
        (lambda: judge_pairs(views(state={})[1:], views(state={})[1:]), "row_id.*A/0"),
        # Clusters, of states and of correctness: all rows have one or none.
        (lambda: jga([PREDICTIONS[0] | {"cluster": "x"}, *PREDICTIONS[1:]], REFERENCES), "cluster"),
        (lambda: jga(PREDICTIONS, [REFERENCES[0] | {"cluster": float("nan")}, *REFERENCES[1:]]), "cluster"),
        (lambda: consistency_metrics(read_correctness([*rows("A/0", cluster="x"), *rows("A/1", "A/2")])), "cluster"),
        (lambda: jga([GOLD], [GOLD], confidence=95), "confidence"),
        # Answers.
        (lambda: vqa_scores(["a"], ["aaaaaaaaaa"]), r"references\[0\]: expected the list"),
        (lambda: vqa_accuracy(["a"], ["net"]), r"references\[0\]: expected JSON"),
        (lambda: vqa_scores(["a", "a"], [TEN, ["a"] * 3]), r"references\[1\]: expected at least 4 annotators"),
        (lambda: vqa_scores(["a"], [TEN], normalize="yes"), "normalize.*'yes'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(DataError, match=named) as caught:
        call()
    assert len(str(caught.value)) < 350
