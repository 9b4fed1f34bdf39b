"""Predictions and `compute_metrics` equal those of the plain `Trainer` on the originals, for many settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    EvalPrediction,
    Seq2SeqTrainingArguments,
    Trainer,
)

from dair_hf import DAIRConfig, DAIRTrainer
from tests.fixtures import tiny

OWN = set(DAIRConfig.__dataclass_fields__) - set(Seq2SeqTrainingArguments.__dataclass_fields__)


def classifier() -> BertForSequenceClassification:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=tiny.VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, num_labels=3, initializer_range=0.5,
    )  # fmt: skip
    return BertForSequenceClassification(config).double()


def classes(rows: int, label: str) -> datasets.Dataset:
    """Return rows of two to four tokens with a class, every other row with a partner."""
    table: dict[str, list[Any]] = {"input_ids": [], "attention_mask": [], label: []}
    for row in range(rows):
        table["input_ids"].append([4 + row, 6, 7 + row, 8][: 2 + row % 3])
        table["attention_mask"].append([1] * (2 + row % 3))
        table[label].append(row % 3)
    partners = {
        f"augmented_{name}": [None if row % 2 else value for row, value in enumerate(values)]
        for name, values in table.items()
    }
    return datasets.Dataset.from_dict({**table, **partners})


def sequences(kind: str, rows: int) -> datasets.Dataset:
    """Return rows of tokens with partners of the same length, since views are padded together."""
    data = tiny.pairs(kind, rows, partner=lambda row: False)
    partners = {
        f"augmented_{name}": [values[:] if name == "labels" else values[::-1] for values in data[name]]
        for name in ("input_ids", "attention_mask", "labels")
    }
    return datasets.Dataset.from_dict({**{name: data[name][:] for name in data.column_names}, **partners})


class Calls:
    """Records the arguments of `compute_metrics`."""

    def __init__(self) -> None:
        self.given: list[tuple[EvalPrediction, bool | None]] = []

    def __call__(self, found: EvalPrediction, compute_result: bool | None = None) -> dict[str, float]:
        self.given.append((found, compute_result))
        return {"calls": len(self.given)}


def plainly(value: Any) -> Any:
    """Convert nested tensors and arrays to lists, for comparison by `==`."""
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plainly(part) for part in value]
    return {name: plainly(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def first_logit(logits: Any, labels: Tensor) -> Tensor:
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits[..., 0] + labels


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "preprocess": ({}, {"preprocess_logits_for_metrics": first_logit}),
    "include": ({"include_for_metrics": ["inputs", "loss"]}, {}),
    "batches": ({"batch_eval_metrics": True, "include_for_metrics": ["inputs", "loss"]}, {}),
    "not concatenated": ({"eval_do_concat_batches": False}, {}),
    "moved in steps": ({"eval_accumulation_steps": 1}, {}),
    "losses only": ({"prediction_loss_only": True}, {}),
}
LABEL = {"classifier": "label", "classifier with ids": "label_ids", "t5": "labels", "gpt2": "labels"}


def trainers(folder: Path, kind: str, settings: dict[str, Any], given: dict[str, Any]) -> list[tuple[Any, Calls]]:
    """Return a `DAIRTrainer` and a plain trainer, each with its calls of `compute_metrics`."""
    known, sequences = tiny.tokenizer(), LABEL[kind] == "labels"
    # With `preprocess_logits_for_metrics` nothing is generated.
    generates = None if given else False
    args = tiny.config(folder, method="erm", normalization="token", predict_with_generate=generates, **settings)
    fields = [name for name, field in DAIRConfig.__dataclass_fields__.items() if name not in OWN and field.init]
    plain = Seq2SeqTrainingArguments(**{name: getattr(args, name) for name in fields})
    collator = DataCollatorForSeq2Seq(known, model=None) if sequences else DataCollatorWithPadding(known)
    found = []
    for build, its_args in ((DAIRTrainer, args), (Trainer, plain)):
        model, calls = tiny.model(kind) if sequences else classifier(), Calls()
        made = build(model, its_args, collator, processing_class=known, compute_metrics=calls, **given)
        found.append((made, calls))
    return found


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", LABEL)
def test_metrics_and_predictions_equal_those_of_the_plain_trainer(tmp_path: Path, kind: str, name: str) -> None:
    data = classes(7, LABEL[kind]) if LABEL[kind] != "labels" else sequences(kind, 7)
    originals = data.select_columns([n for n in data.column_names if not n.startswith("augmented_") and n != "row_id"])
    (ours, our_calls), (plain, plain_calls) = trainers(tmp_path, kind, *SETTINGS[name])
    found, expected = ours.evaluate(data), plain.evaluate(originals)
    assert found.get("eval_calls") == expected.get("eval_calls") == (None if name == "losses only" else ANY)
    for (left, is_last), (right, expected_last) in zip(our_calls.given, plain_calls.given, strict=True):
        assert is_last == expected_last
        assert type(left.predictions) is type(right.predictions)
        for part in ("predictions", "label_ids", "inputs"):
            assert plainly(getattr(left, part)) == plainly(getattr(right, part)), part
        assert (left.losses is None) == (right.losses is None)
        if left.losses is not None:
            np.testing.assert_allclose(left.losses, right.losses, rtol=1e-6)
    left, right = ours.predict(data), plain.predict(originals)
    assert plainly(left.predictions) == plainly(right.predictions)
    assert plainly(left.label_ids) == plainly(right.label_ids)
    assert (left.predictions is None) == (name == "losses only")
