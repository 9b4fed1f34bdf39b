"""Evaluation of classifiers and regressions without an evaluator, against loops over the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
    default_data_collator,
    set_seed,
)

from dair_hf import DAIRConfig, DAIRTrainer, DataError, PairEvaluator
from dair_hf.evaluation.answers import absolute_errors, same_numbers
from dair_hf.training.checks import check_best_metric
from tests.fixtures import tiny

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
ROWS = 12


def bert(kind: type, **settings: Any) -> Any:
    return kind(BertConfig(vocab_size=tiny.VOCAB, **SIZES, **settings))


def audio() -> Any:
    layers = {"conv_dim": (4,), "conv_stride": (4,), "conv_kernel": (4,), "num_feat_extract_layers": 1}
    other = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 4}
    return Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(num_labels=3, mask_time_prob=0.0, **SIZES, **layers, **other)
    )


def made(kind: str) -> tuple[Any, list[Any], Any]:
    """The model, the labels of the rows, and what one row's logits and label make right."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 3, ROWS).tolist()
    if kind == "audio":
        return audio(), classes, lambda logits, label: logits.argmax() == label
    if kind == "text":
        return bert(BertForSequenceClassification, num_labels=3), classes, lambda z, y: z.argmax() == y
    if kind == "several":
        labels = random.integers(0, 2, (ROWS, 2)).astype(float).tolist()
        model = bert(BertForSequenceClassification, num_labels=2, problem_type="multi_label_classification")
        return model, labels, lambda z, y: [float(value > 0) for value in z] == y
    if kind == "number":
        labels = random.normal(size=ROWS).tolist()
        return bert(BertForSequenceClassification, num_labels=1), labels, lambda z, y: abs(float(z[0]) - y) <= 0.1
    labels = [[-100, *random.integers(0, 2, 2).tolist()] for _ in range(ROWS)]
    model = bert(BertForTokenClassification, num_labels=2)
    return model, labels, lambda z, y: z.argmax(-1)[1:].tolist() == y[1:]


@pytest.mark.parametrize("kind", ["audio", "text", "several", "number", "tokens"])
def test_no_evaluator_is_needed(tmp_path: Path, kind: str) -> None:
    set_seed(0)
    model, labels, is_right = made(kind)
    random = np.random.default_rng(1)
    if kind == "audio":
        name, views = "input_values", random.normal(size=(2, ROWS, 64)).astype(np.float32)
    else:
        name, views = "input_ids", random.integers(4, tiny.VOCAB, (2, ROWS, 3))
    if kind == "number":  # the standard deviation of the references of both views is 1
        labels = ((np.array(labels) - np.mean(labels)) / np.std(labels)).tolist()
    table = {name: views[0].tolist(), f"augmented_{name}": views[1].tolist(), "labels": labels}
    tokenizer = tiny.tokenizer()
    collator = DataCollatorForTokenClassification(tokenizer) if kind == "tokens" else default_data_collator
    args = DAIRConfig(str(tmp_path), use_cpu=True, report_to="none", per_device_eval_batch_size=5, disable_tqdm=True)
    if kind == "tokens":
        table["augmented_labels"] = labels
    trainer = DAIRTrainer(model, args, data_collator=collator, eval_dataset=datasets.Dataset.from_dict(table))
    model.eval()
    with torch.no_grad():
        logits = [model(**{name: torch.from_numpy(view)}).logits for view in views]
    right = [[bool(is_right(z, y)) for z, y in zip(of_view, labels, strict=True)] for of_view in logits]
    found = trainer.evaluate_pairs(intervals=False)
    assert (found["original_accuracy"], found["augmented_accuracy"]) == (np.mean(right[0]), np.mean(right[1]))
    assert found["cm_numerator"] == np.logical_and(*right).sum()
    if kind == "number":
        errors = [np.abs(z[:, 0].numpy() - labels).mean() for z in logits]
        assert [found["original_mae"], found["augmented_mae"]] == pytest.approx(errors, rel=1e-6)
    metrics = trainer.evaluate()
    assert metrics["eval_both_correct"] == found["both_correct"] == np.logical_and(*right).mean()


@pytest.mark.parametrize("metric", ["original_mae", "eval_augmented_mae", "a_original_mae"])
def test_a_small_error_of_a_regression_is_the_best(tmp_path: Path, metric: str) -> None:
    args = DAIRConfig(str(tmp_path), report_to="none", use_cpu=True, metric_for_best_model=metric)
    evaluator = PairEvaluator(same_numbers, scores={"mae": absolute_errors})
    check_best_metric(args, evaluator, {"a": None} if metric.startswith("a_") else None, makes_metrics=False)
    assert args.greater_is_better is False


def test_the_direction_of_a_score_must_be_given(tmp_path: Path) -> None:
    args = DAIRConfig(str(tmp_path), report_to="none", use_cpu=True, metric_for_best_model="original_error")
    evaluator = PairEvaluator(same_numbers, scores={"error": absolute_errors})
    with pytest.raises(DataError, match="greater_is_better"):
        check_best_metric(args, evaluator, None, makes_metrics=False)
    args.greater_is_better = False
    check_best_metric(args, evaluator, None, makes_metrics=False)
