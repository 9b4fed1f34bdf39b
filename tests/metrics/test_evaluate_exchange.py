"""The metrics as `evaluate` modules, loaded from the installed package, offline, in a new process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures.launching import forked

ANNOTATIONS: dict[str, Any] = {
    "annotations": [
        {
            "question_type": "what is this",
            "answers": [{"answer": "a net", "answer_id": 1}] * 3 + [{"answer": "racket", "answer_id": 4}] * 7,
            "answer_type": "other",
            "question_id": 458752000,
        },
        {"answers": [{"answer": "2", "answer_id": 1}] * 10, "answer_type": "number", "question_id": 524291000},
    ],
}
RESULTS = [{"question_id": 524291000, "answer": "2"}, {"question_id": 458752000, "answer": "Net."}]
IMPORT_FIRST = """
import dair_hf.metrics.joint_goal_accuracy.joint_goal_accuracy
from dair_hf.metrics.consistency.consistency import Consistency
import dair_hf.metrics
from dair_hf.metrics import consistency
assert consistency == dair_hf.metrics.consistency
"""
STILL_PATHS = """
import sys
assert isinstance(dair_hf.metrics.joint_goal_accuracy, str)
assert isinstance(dair_hf.metrics.consistency, str)
assert "dair_hf.metrics.consistency" in sys.modules
"""
EXCHANGE = """
import math, warnings, numpy as np, dair_hf.metrics, evaluate

load = evaluate.load
jga, cm = load(dair_hf.metrics.joint_goal_accuracy), load(dair_hf.metrics.consistency)
assert (jga.name, cm.name) == ("joint_goal_accuracy", "consistency")
gold = [{"hotel-area": ["centre", "center"]}, {"hotel-stars": ["4"], "train-day": ["monday"]}]
predicted = [{"hotel-area": "center"}, {"hotel-stars": "4"}]

# compute, from states and from JSON text, with switches
assert jga.compute(predictions=predicted, references=gold)["joint_goal_accuracy"] == 0.5
text = ['{"hotel-area": ["center"]}', '{"hotel-stars": "4"}']
assert jga.compute(predictions=text, references=gold, preset="parlai_v22")["joint_goal_accuracy"] == 0.0
scores = jga.compute(predictions=predicted, references=gold, preset="trade", extra="ignore")
assert scores["preset"] == "trade(extra=ignore)"

# add_batch, add
for start in (0, 1):
    jga.add_batch(predictions=predicted[start:start + 1], references=gold[start:start + 1])
jga.add(prediction=predicted[0], reference=gold[0])
scores = jga.compute(intervals=False)
assert (scores["joint_goal_accuracy_numerator"], scores["joint_goal_accuracy_denominator"]) == (2, 3)
assert "joint_goal_accuracy_low" not in scores

# consistency from correctness
original, augmented = [True, True, False], [True, False, True]
scores = cm.compute(original_correct=original, augmented_correct=augmented, ids=["A/0", "A/1", "B/0"])
assert (scores["cm_numerator"], scores["cm_denominator"], scores["neg_to_pos"]) == (1, 2, 1 / 3)
cm.add_batch(original_correct=np.array([True, False]), augmented_correct=[None, None])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scores = cm.compute()
assert [str(warning.message)[:44] for warning in caught] == ["none of 2 rows has an augmented view, so cm,"]
assert math.isnan(scores["cm"]) and scores["pairs"] == 0 and scores["original_accuracy"] == 0.5

# combine: consistency and accuracy of the same items
items = lambda *states: [
    {"row_id": f"A/{i // 2}", "variant": ("original", "augmented")[i % 2], "state": s} for i, s in enumerate(states)
]
references = items({"hotel-name": ["a"]}, {"hotel-name": ["b"]}, {"hotel-name": ["c"]}, {"hotel-name": ["d"]})
predictions = items({"hotel-name": ["a"]}, {"hotel-name": ["b"]}, {"hotel-name": ["c"]}, {"hotel-name": ["c"]})[::-1]
both = evaluate.combine([jga, cm])
scores = both.compute(predictions=predictions, references=references, intervals=False)
assert (scores["cm_numerator"], scores["cm_denominator"]) == (1, 2)
assert (scores["original_joint_goal_accuracy"], scores["augmented_joint_goal_accuracy"]) == (1.0, 0.5)
assert scores["joint_goal_accuracy_preset"] == scores["consistency_preset"] == "any_of"
both.add_batch(predictions=predictions, references=references)
assert both.compute()["cm"] == 0.5

# references that are all empty states are not mistaken for correctness
assert cm.compute(predictions=items({}, {}), references=items({}, {}))["cm"] == 1.0

# correctness and states exclude each other
try:
    cm.compute(original_correct=[1], augmented_correct=[1], predictions=predicted)
except (ValueError, TypeError):
    pass
else:
    raise AssertionError("both were accepted")
print("exchange done")
"""

VQA_EXCHANGE = """
import json, sys, dair_hf.metrics, evaluate
import dair_hf.metrics.vqa_accuracy.vqa_accuracy

assert isinstance(dair_hf.metrics.vqa_accuracy, str)
metric = evaluate.load(dair_hf.metrics.vqa_accuracy)
assert metric.name == "vqa_accuracy"
results, annotations = json.loads(sys.argv[1]), json.loads(sys.argv[2])

# the public files, whole or as lists; items without ids; settings
scores = metric.compute(predictions=results, references=annotations)
assert abs(scores["vqa_accuracy"] - 0.95) < 1e-12 and scores["vqa_accuracy_simple"] == 1.0, scores
assert scores["by_answer_type"]["number"] == {"vqa_accuracy": 1.0, "questions": 1}
assert metric.compute(predictions=results, references=annotations["annotations"]) == scores
texts, lists = ["2", "Net."], [["2"] * 10, ["a net"] * 3 + ["racket"] * 7]
scores = metric.compute(predictions=texts, references=lists, normalize="never", intervals=False)
assert scores["vqa_accuracy"] == 0.5 and scores["normalize"] == "never" and "vqa_accuracy_low" not in scores
# as a Space passes them: answers as text, lists as JSON
scores = metric.compute(predictions=texts, references=[json.dumps(answers) for answers in lists])
assert abs(scores["vqa_accuracy"] - 0.95) < 1e-12

# in several batches; an answer that looks like JSON is still an answer
for text, answers in zip(texts, lists):
    metric.add_batch(predictions=[text], references=[answers])
metric.add(prediction='{"answer": "2"}', reference=["2"] * 10)
scores = metric.compute(intervals=False)
assert scores["questions"] == 3 and abs(scores["vqa_accuracy"] - 1.9 / 3) < 1e-12
print("answers exchanged")
"""


@pytest.mark.slow
def test_load_compute_add_batch_and_combine_offline() -> None:
    """The names are paths even if the folders were imported first."""
    code = IMPORT_FIRST + STILL_PATHS + EXCHANGE + VQA_EXCHANGE
    done = forked("-c", code, json.dumps(RESULTS), json.dumps(ANNOTATIONS))
    assert done.returncode == 0, done.stderr
    assert "exchange done" in done.stdout and "answers exchanged" in done.stdout
