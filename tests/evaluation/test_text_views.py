"""Texts that another program answers: prompts, expected answers, and evaluation by a trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from dair_hf import DAIRConfig, DAIRTrainer, DataError
from dair_hf.evaluation.text_views import TextViews
from tests.fixtures import saved_models, tiny

ASK = [{"role": "user", "content": "2+3?"}]
SAY = [{"role": "assistant", "content": "5"}]
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}


def test_a_chat_is_answered_up_to_its_last_answer() -> None:
    first = {"messages": ASK + SAY + ASK + SAY + ASK, "augmented_messages": None, "augmented_2_messages": ASK + SAY}
    second = {"messages": ASK + SAY, "augmented_messages": ASK * 2 + SAY, "augmented_2_messages": None}
    views = TextViews(Dataset.from_list([{**first, "tools": '[{"name": "add"}]'}, {**second, "tools": None}]))
    assert views.prompts == [
        {"row_id": "0", "view": 0, "prompt": ASK + SAY + ASK, "tools": [{"name": "add"}]},
        {"row_id": "1", "view": 0, "prompt": ASK},
        {"row_id": "1", "view": 1, "prompt": ASK * 2},
        {"row_id": "0", "view": 2, "prompt": ASK, "tools": [{"name": "add"}]},
    ]
    # Messages of prompt and completion, of which the partner inherits one; texts with a number as label.
    split = TextViews(Dataset.from_list([{"prompt": ASK, "completion": SAY, "augmented_prompt": ASK * 2}]))
    assert [line["prompt"] for line in split.prompts] == [ASK, ASK * 2]
    assert (views.references, split.references) == (["5"] * 4, ["5"] * 2)
    row = {"row_id": 7, "text": "a", "text_pair": "b", "label": 1, "augmented_text": "c"}
    texts = TextViews(Dataset.from_list([row]).with_format("torch"))
    assert texts.prompts[1] == {"row_id": 7, "view": 1, "prompt": "c", "text_pair": "b"}
    assert texts.references == ["1", "1"]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"text": "a", "augmented_text": "b"}], "messages"),
        ([{"row_id": "x", "prompt": "a", "completion": "b", "augmented_prompt": "e"}] * 2, "'x'"),
        ([{"messages": [*ASK, CALL], "augmented_messages": ASK + SAY}], "row '0'"),
    ],
)
def test_rows_without_one_expected_text_are_refused(rows: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(DataError, match=named):
        TextViews(Dataset.from_list(rows))


@pytest.mark.parametrize("kind", ["gpt2", "classifier"])
def test_a_trainer_evaluates_answers_as_its_own_predictions(tmp_path: Path, kind: str) -> None:
    names = ["yes", "no"]
    if kind == "gpt2":
        model = AutoModelForCausalLM.from_pretrained(saved_models.generator(tmp_path / kind, kind))
        rows = [{"prompt": f"w{4 + n} w5", "completion": "w7", "augmented_prompt": f"w{n + 9}"} for n in range(6)]
    else:
        model = AutoModelForSequenceClassification.from_pretrained(saved_models.classifier(tmp_path / kind))
        rows = [{"text": f"w{4 + n}", "label": names[n % 2], "augmented_text": f"w{n + 9}"} for n in range(6)]
    args = DAIRConfig(str(tmp_path), method="da", report_to="none", disable_tqdm=True, use_cpu=True)
    trainer = DAIRTrainer(model, args, processing_class=tiny.tokenizer())
    own, again, file = tmp_path / "own.jsonl", tmp_path / "again.jsonl", tmp_path / "answers.jsonl"
    pairs = Dataset.from_list(rows)
    expected = trainer.evaluate_pairs(pairs, predictions_file=own)
    lines = [json.loads(line) for line in own.read_text().splitlines()]
    for line in lines if kind == "classifier" else ():
        line["prediction"] = model.config.id2label[line["prediction"]]
    file.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    model.forward = None  # answers need none
    found = trainer.evaluate_pairs(pairs, answers=file, predictions_file=again, data_name="elsewhere")
    assert found == pytest.approx(expected, nan_ok=True) and again.read_text() == own.read_text()
    assert [*trainer.pair_results] == ["evaluation data"]  # the card has the model's own answers only
    with pytest.raises(DataError, match="max_new_tokens"):
        trainer.evaluate_pairs(pairs, answers=file, max_new_tokens=3)
    if kind == "classifier":
        file.write_text(file.read_text().replace('"yes"', '"maybe"').replace('"no"', '"maybe"'))
        with pytest.raises(DataError, match="maybe"):
            trainer.evaluate_pairs(pairs, answers=file)
