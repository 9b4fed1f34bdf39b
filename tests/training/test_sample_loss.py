"""Sample losses: derivation from a model, and comparison with its own loss before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    DataCollatorForSeq2Seq,
    EncoderDecoderModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
    XLNetLMHeadModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from dair_hf import DAIRTrainer, DataError, NonFiniteLossError, TensorPairs
from dair_hf.losses.per_sample import seq2seq_nll, squared_error
from dair_hf.training.sample_loss import decoder_inputs_of, derived_sample_loss
from tests.fixtures import points, tiny, vision_language
from tests.training.test_invariants import trained

BERT = {
    "vocab_size": tiny.VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "initializer_range": 0.3,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def bert(kind: Any, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(1)
    return kind(BertConfig(**BERT, **settings)).double()


class Renamed(BertForSequenceClassification):
    """Subclass whose loss follows from the name of its parent."""


def lora() -> Any:
    settings = LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(tiny.model("gpt2"), settings)


def on_meta(kind: Any, config: Any) -> PreTrainedModel:
    with torch.device("meta"):
        return kind(config)


MODELS: dict[str, tuple[Any, str | None]] = {
    "GPT-2": (lambda: tiny.model("gpt2"), "causal"),
    "GPT-2 with LoRA": (lora, "causal"),
    "BERT decoder": (lambda: bert(BertLMHeadModel, is_decoder=True), "causal"),
    "Llava": (lambda: vision_language.llava()[0], "causal"),
    "T5": (lambda: tiny.model("t5"), "seq2seq"),
    "BART": (lambda: tiny.model("bart"), "seq2seq"),
    "Marian": (lambda: on_meta(MarianMTModel, MarianConfig(vocab_size=9, pad_token_id=0, d_model=16)), "seq2seq"),
    "Florence-2": (lambda: vision_language.florence2()[0], "seq2seq"),
    "T5Gemma 2": (lambda: vision_language.t5gemma2()[0], "seq2seq"),
    "two BERTs": (
        lambda: EncoderDecoderModel(
            encoder=bert(BertForMaskedLM).bert, decoder=bert(BertLMHeadModel, is_decoder=True, add_cross_attention=True)
        ),
        "seq2seq",
    ),
    "classifier": (lambda: bert(BertForSequenceClassification, num_labels=3), "classification"),
    "classifier of another name": (lambda: bert(Renamed, num_labels=3), "classification"),
    "encoder-decoder classifier": (
        lambda: on_meta(BartForSequenceClassification, BartConfig(vocab_size=8, d_model=16, num_labels=3)),
        "classification",
    ),
    "several labels": (
        lambda: bert(BertForSequenceClassification, num_labels=3, problem_type="multi_label_classification"),
        "multi_label",
    ),
    "regression by one output": (lambda: bert(BertForSequenceClassification, num_labels=1), "squared"),
    "regression by its problem type": (
        lambda: bert(BertForSequenceClassification, num_labels=2, problem_type="regression"),
        "squared",
    ),
    "images": (lambda: on_meta(ViTForImageClassification, ViTConfig(num_labels=10)), "classification"),
    "tokens": (lambda: bert(BertForTokenClassification), "token_classification"),
    "masked tokens": (lambda: bert(BertForMaskedLM), "token_classification"),
    "spans": (lambda: bert(BertForQuestionAnswering), None),
    "own": (points.model, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_sample_loss_of_a_model(name: str) -> None:
    build, expected = MODELS[name]
    assert derived_sample_loss(build()) == expected


def test_classes_are_not_shifted_into_decoder_inputs() -> None:
    shift = decoder_inputs_of(tiny.model("m2m100"))
    assert shift is not None and shift(labels=torch.tensor([[5, 6, -100]])).tolist() == [[tiny.EOS, 5, 6]]
    assert decoder_inputs_of(MODELS["encoder-decoder classifier"][0]()) is None


def rows(labels: list[Any], label: str = "labels") -> datasets.Dataset:
    """Return token lists of two lengths with labels and partners."""
    inputs = [[4 + row, 6, 7 + row][: 2 + row % 2] for row in range(len(labels))]
    table = {"input_ids": inputs, "attention_mask": [[1] * len(ids) for ids in inputs], label: labels}
    partners = {f"augmented_{name}": values for name, values in table.items()}
    return datasets.Dataset.from_dict({**table, **partners, "augmented_input_ids": [[9, *ids[1:]] for ids in inputs]})


LABELS: dict[str, list[Any]] = {
    "classifier": [0, 2, 1, 1, 2],
    "several labels": [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "regression by one output": [0.5, -1.0, 2.0, 0.0, 3.0],
    "regression by its problem type": [[0.5, 1.0], [-1.0, 0.0], [2.0, 2.0], [0.0, 1.5], [3.0, 0.25]],
    "tokens": [[0, 1], [1, 0, 1], [1, -100], [0, 0, 1], [1, 1]],
}


@pytest.mark.parametrize("name", LABELS)
def test_erm_without_a_sample_loss_has_the_loss_of_the_model(tmp_path: Path, name: str) -> None:
    model, data = MODELS[name][0](), rows(LABELS[name])
    args = tiny.config(tmp_path, method="erm", normalization="token", max_steps=1, num_train_epochs=1)
    trainer = DAIRTrainer(model, args, None, data, data, tiny.tokenizer())  # the tokenizer pads
    found = trainer.evaluate()["eval_loss"]
    with torch.no_grad():
        views = [
            {name: torch.tensor([row[name]]) for name in ("input_ids", "attention_mask", "labels")} for row in data
        ]
        counts = [int((view["labels"] != -100).sum()) if name == "tokens" else 1 for view in views]
        losses = [model(**view).loss.item() for view in views]
    assert found == pytest.approx(np.average(losses, weights=counts), rel=1e-6)
    trainer.train()  # the losses are compared and agree


def test_a_decoder_only_model_learns_the_next_token_by_default(tmp_path: Path) -> None:
    derived, named, chosen = (  # a function is not compared
        tiny.trained(tmp_path, "gpt2", tiny.pairs("gpt2", 4), sample_loss=loss, max_steps=1)
        for loss in (None, "causal", seq2seq_nll)
    )
    assert tiny.distance(derived, named) == 0.0
    assert tiny.distance(derived, chosen) > 1e-3


@pytest.mark.parametrize(
    ("build", "labels", "name", "message"),
    [
        (lambda: tiny.model("gpt2"), None, "seq2seq", "^sample_loss='seq2seq': .*per_sample.seq2seq_nll"),
        (lambda: tiny.model("bart"), None, "causal", "^sample_loss='causal'"),
        (MODELS["regression by one output"][0], [0] * 5, "classification", "^sample_loss='classification'"),
        (MODELS["tokens"][0], LABELS["tokens"], "causal", "^sample_loss='causal'"),
    ],
)
def test_a_loss_other_than_the_models_own_is_refused_before_the_first_step(
    tmp_path: Path, build: Any, labels: Any, name: str | None, message: str
) -> None:
    model = build()
    data = tiny.pairs(model.config.model_type, 6) if labels is None else rows(labels)
    trainer = DAIRTrainer(model, tiny.config(tmp_path), None, data, None, tiny.tokenizer(), sample_loss=name)
    before = tiny.weights(model)
    with pytest.raises(DataError, match=message):
        trainer.train()
    assert tiny.distance(before, tiny.weights(model)) == 0.0


def test_a_misleading_model_class_is_detected_by_its_loss(tmp_path: Path) -> None:
    """XLNet generates, but the loss it computes from labels is not shifted."""
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=tiny.VOCAB, d_model=16, n_layer=1, n_head=2, d_inner=32, dropout=0.0)
    model, data = XLNetLMHeadModel(config).double(), tiny.pairs("gpt2", 6)
    trainer = DAIRTrainer(model, tiny.config(tmp_path), None, data, None, tiny.tokenizer())
    assert trainer.sample_loss_name == "causal"
    with pytest.raises(DataError, match="sample_loss='causal': .* XLNetLMHeadModel"):
        trainer.train()


def test_a_model_without_a_known_loss_needs_a_sample_loss(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sample_loss=None of PointsModel"):
        DAIRTrainer(points.model(), tiny.config(tmp_path))
    model = tiny.NormedClassifier(tiny.NormedConfig())  # takes labels, but computes no loss
    data = tiny.classified_pairs(4)
    DAIRTrainer(model, tiny.config(tmp_path), train_dataset=data, sample_loss="classification").train()


def test_labels_that_are_no_probabilities_are_refused(tmp_path: Path) -> None:
    """Rows are refused when they are collated; tensors have no rows, so their losses are NaN."""
    x, partners, labels = points.points(6)
    columns = {"x": x.tolist(), "labels": (labels + 1).tolist()}
    data = datasets.Dataset.from_dict({"row_id": list("abcdef"), **columns, "augmented_x": partners.tolist()})
    rows = DAIRTrainer(points.model(), tiny.config(tmp_path), points.stack, data, sample_loss="binary")
    with pytest.raises(DataError, match=r"row .[a-f].: expected labels"):
        rows.train()
    tensors = TensorPairs({"x": x, "labels": labels + 1}, {"x": partners, "labels": labels + 1})
    made = points.trainer(tmp_path, tensors, method="da")
    with pytest.raises(NonFiniteLossError, match="not finite"):
        made.train()
    # A loss of one's own may take any labels.
    DAIRTrainer(points.model(), tiny.config(tmp_path), points.stack, data, sample_loss=squared_error).train()


class PlainForImageClassification(nn.Module):
    """Plain module with the name of a model of transformers, whose forward takes no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, features: torch.Tensor) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=self.linear(features))


def test_a_plain_module_trains_and_is_evaluated_with_a_named_loss(tmp_path: Path) -> None:
    data = tiny.classified_pairs(6)
    settings: dict[str, Any] = {"train_dataset": data, "eval_dataset": data, "sample_loss": "classification"}
    made = DAIRTrainer(PlainForImageClassification(), tiny.config(tmp_path), **settings)
    before = tiny.weights(made.model)
    made.train()
    assert tiny.distance(before, tiny.weights(made.model)) > 1e-3
    assert made.evaluate()["eval_pairs"] == 6


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_chunked_loss_compares_few_tokens(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dair_hf.training.sample_loss.TOKENS_COMPARED", 4)
    data = tiny.pairs(kind, 4, target_lengths=(9, 14))
    made = tiny.trainer(tmp_path, kind, data, chunked_loss=True, max_steps=1)
    seen: list[int] = []

    def look(head: nn.Module, args: Any, logits: torch.Tensor) -> None:
        if not head.training:  # in training it gets one chunk at a time
            seen.append(logits[..., 0].numel())

    made.model.lm_head.register_forward_hook(look)
    made.train()
    assert seen and max(seen) == 2 * 4
    other = {"gpt2": "seq2seq", "bart": "causal"}[kind]
    wrong = tiny.trainer(tmp_path, kind, data, chunked_loss=True, max_steps=1, sample_loss=other)
    with pytest.raises(DataError, match=f"sample_loss='{other}'"):
        wrong.train()


@pytest.mark.parametrize(("dtype", "refused"), [(torch.bfloat16, False), (torch.float32, True)])
def test_losses_are_compared_at_the_precision_of_the_model(tmp_path: Path, dtype: torch.dtype, refused: bool) -> None:
    """Logits are converted before the loss, so that the type of the loss is always float32."""
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 4), built=tiny.model("gpt2", dtype=dtype), max_steps=1)
    own = made.model.loss_function
    made.model.loss_function = lambda *args, **kwargs: 1.005 * own(*args, **kwargs).float()
    if refused:
        with pytest.raises(DataError, match="sample_loss='causal'"):
            made.train()
    else:
        made.train()


def test_rows_padded_on_the_left_train_alike_however_they_are_cut(tmp_path: Path) -> None:
    rows = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7], [8, 4]]
    mask = [[1] * len(row) for row in rows]
    data = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows, "attention_mask": mask})
    known = tiny.tokenizer()
    known.padding_side = "left"
    settings = {"method": "erm", "normalization": "token", "data_collator": DataCollatorForSeq2Seq(known, model=None)}
    whole, parts = (trained(tmp_path, "llama", data, cut, **settings) for cut in ((3, 1), (1, 3)))
    assert tiny.distance(whole, parts) < 1e-6


def test_xlnet_reads_the_last_position_and_is_padded_on_the_left(tmp_path: Path) -> None:
    known = tiny.tokenizer()
    known.padding_side = "left"
    model = XLNetForSequenceClassification(XLNetConfig(vocab_size=tiny.VOCAB, d_model=8, n_layer=1, n_head=1))
    made: Any = DAIRTrainer(model, tiny.config(tmp_path), processing_class=known)
    assert made.data_collator.base_collator.tokenizer.padding_side == "left"
