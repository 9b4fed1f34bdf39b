"""Predictions for data without labels, of every kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMultipleChoice,
    DataCollatorWithPadding,
    ViTConfig,
    default_data_collator,
    set_seed,
)

from dair_hf import DAIRConfig, DAIRTrainer
from tests.fixtures import chats, tiny


def test_answers_of_language_models_need_no_labels(tmp_path: Path) -> None:
    for kind in ("gpt2", "llama", "t5", "bart"):
        labeled = tiny.pairs(kind, 3, partner=lambda row: False)
        if kind in ("gpt2", "llama"):
            prompts = [[t for t, y in zip(r["input_ids"], r["labels"], strict=True) if y == -100] for r in labeled]
            rows = datasets.Dataset.from_dict({"input_ids": prompts})
        else:
            rows = labeled.select_columns(["input_ids", "attention_mask"])
        made = tiny.trainer(tmp_path, kind, None)
        found = made.predict(rows, max_new_tokens=3)
        assert found.label_ids is None
        assert found.predictions.tolist() == made.predict(labeled, max_new_tokens=3).predictions.tolist(), kind
        assert len(made.predict(rows).predictions) == 3


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def small(model: Any, folder: Path, **kwargs: Any) -> DAIRTrainer:
    args = DAIRConfig(str(folder), use_cpu=True, report_to="none", per_device_eval_batch_size=2, max_steps=1)
    return DAIRTrainer(model, args, **kwargs)


def test_classifiers_need_no_labels(tmp_path: Path) -> None:
    set_seed(0)
    of_images = AutoModelForImageClassification.from_config(
        ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **SIZES)
    ).eval()
    pixels = torch.rand(5, 1, 8, 8)
    rows = datasets.Dataset.from_dict({"pixel_values": pixels.tolist()})
    made = small(of_images, tmp_path, data_collator=default_data_collator)
    found = made.predict(rows)
    assert found.label_ids is None
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found.predictions), of_images(pixels).logits, rtol=0, atol=1e-5)
    of_texts = AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=tiny.VOCAB, num_labels=3, **SIZES))
    tokenizer = tiny.tokenizer()
    made = small(of_texts.eval(), tmp_path, processing_class=tokenizer)
    texts = datasets.Dataset.from_dict({"text": ["w4 w5", "w6"]})
    found = made.predict(texts)
    batch = DataCollatorWithPadding(tokenizer)([tokenizer(text) for text in texts["text"]])
    with torch.no_grad():
        wanted = of_texts(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(torch.from_numpy(found.predictions), wanted, rtol=0, atol=1e-5)


def weighted(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs.logits, labels, torch.tensor([0.2, 0.3, 0.5]), reduction="none")


def test_a_loss_of_labels_is_not_computed_without_them(tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=tiny.VOCAB, num_labels=3, **SIZES))
    ids = {"input_ids": [[4, 5], [6, 7]], "augmented_input_ids": [[4, 6], [6, 8]]}
    labeled = datasets.Dataset.from_dict({**ids, "labels": [0, 1], "augmented_labels": [1, 2]})
    made = small(model, tmp_path, train_dataset=labeled, sample_loss=weighted)
    unlabeled = datasets.Dataset.from_dict(ids)
    before = made.predict(unlabeled)
    made.train()
    after = made.predict(unlabeled)
    assert before.label_ids is after.label_ids is None and len(after.predictions) == 2
    assert "eval_loss" not in made.evaluate(unlabeled) and "eval_loss" in made.evaluate(labeled)
    made.sample_loss = made.pair_loss.sample_loss = lambda outputs, labels: outputs.logits.square().mean(1)
    assert made.predict(unlabeled).metrics["test_loss"] > 0  # of a loss that needs none


def test_each_choice_is_predicted(tmp_path: Path) -> None:
    model = BertForMultipleChoice(BertConfig(vocab_size=tiny.VOCAB, **SIZES)).eval()
    choices = torch.tensor([[[4, 5], [6, 7], [8, 9]], [[5, 4], [7, 6], [9, 8]]])
    rows = [{"input_ids": one.tolist(), "augmented_input_ids": one.tolist(), "labels": 1} for one in choices]
    made = small(model, tmp_path, sample_loss="classification", data_collator=default_data_collator)
    with torch.no_grad():
        wanted = model(input_ids=choices).logits
    torch.testing.assert_close(torch.from_numpy(made.predict(rows).predictions), wanted, rtol=0, atol=1e-5)


def test_logits_are_read_where_they_are_preprocessed_and_texts_are_judged(tmp_path: Path) -> None:
    logits = {"preprocess_logits_for_metrics": lambda logits, labels: logits}
    evaluator = {"evaluator": lambda predictions, references: [True] * len(predictions)}
    for given, generates in ((logits, False), (evaluator, True), (logits | evaluator, True)):
        assert tiny.trainer(tmp_path, "gpt2", None, **given).generates == generates


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_prompts_need_no_completion(tmp_path: Path, kind: str) -> None:
    made = tiny.trainer(tmp_path, kind, None, processing_class=tiny.tokenizer(), data_collator=None)
    prompts = ["w4 w5 w6", "w7"]
    targets = datasets.Dataset.from_dict({"prompt": prompts, "completion": ["w8", "w9"]})
    found = made.predict(datasets.Dataset.from_dict({"prompt": prompts}), max_new_tokens=3)
    assert found.label_ids is None
    assert found.predictions.tolist() == made.predict(targets, max_new_tokens=3).predictions.tolist()


def test_pairs_are_evaluated_in_the_precision_of_a_full_evaluation(tmp_path: Path) -> None:
    made = tiny.trainer(tmp_path, "gpt2", None, bf16_full_eval=True)
    made.evaluate_pairs(tiny.pairs("gpt2", 2), lambda predictions, references: [True] * len(predictions))
    assert made.model.dtype == torch.bfloat16


def test_chats_that_end_with_the_user_are_answered(tmp_path: Path) -> None:
    tokenizer = chats.tokenizer()
    made = small(chats.llama(tokenizer), tmp_path, processing_class=tokenizer)
    user, answer = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "bc"}
    answered = made.predict(datasets.Dataset.from_list([{"messages": [user, answer]}] * 2), max_new_tokens=3)
    for column in ("messages", "prompt"):
        found = made.predict(datasets.Dataset.from_list([{column: [user]}] * 2), max_new_tokens=3)
        assert found.label_ids is None and found.predictions.tolist() == answered.predictions.tolist()
    followed = [datasets.Dataset.from_list([{"messages": [user, answer, user]}] * 2) for _ in range(2)]
    made.evaluate(followed[0])  # of which the answer is the target
    found, expected = (made.predict(data, max_new_tokens=3) for data in followed)
    assert found.label_ids is None and found.predictions.tolist() == expected.predictions.tolist()
