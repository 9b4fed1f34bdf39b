"""Pairs in trainers of other libraries: the updates of `DAIRTrainer`, the evaluation of the other trainer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from dair_hf import DAIRConfig, DAIRTrainer, DataError, PairMixin
from tests.fixtures import saved_models, tiny

LAMBDA = 0.7
# 13 rows: two steps of an epoch have six rows, the last has one.
SPLIT = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "adam_epsilon": 1e-6}
WHOLE = {**SPLIT, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1}


class PairTrainer(PairMixin, Trainer):
    """The plain trainer with pairs."""


def rows(kind: str, partners: int) -> datasets.Dataset:
    data = tiny.pairs(kind, 13) if partners == 1 else tiny.two_partners(kind, 13)
    if kind == "t5":
        return data
    # A partner without a target is none.
    labels = [[-100] * len(value) if row == 0 else value for row, value in enumerate(data["augmented_labels"])]
    return data.remove_columns("augmented_labels").add_column("augmented_labels", labels)


def plain(args: DAIRConfig, kind: Any = TrainingArguments, **more: Any) -> Any:
    """Return the fields that the arguments of another trainer have, too."""
    fields = {name: getattr(args, name) for name, field in TrainingArguments.__dataclass_fields__.items() if field.init}
    return kind(**fields, **more)


def trainer(folder: Path, kind: str, data: Any = None, **settings: Any) -> Any:
    given = {name: settings.pop(name) for name in ("eval_dataset", "compute_metrics") if name in settings}
    known = tiny.tokenizer()
    collator = DataCollatorForSeq2Seq(known, model=None)
    return PairTrainer(
        tiny.model(kind), plain(tiny.config(folder, **settings)), collator, data, processing_class=known,
        dair_lambda=LAMBDA, **given,
    )  # fmt: skip


@pytest.mark.parametrize("partners", [1, 2])
@pytest.mark.parametrize("kind", ["t5", "m2m100", "llama", "llama, left"])
def test_updates_are_those_of_dair_trainer(tmp_path: Path, kind: str, partners: int) -> None:
    kind, _, side = kind.partition(", ")
    data = rows(kind, partners)
    if side:  # where all tokens are targets, except for the first
        inputs = {name.replace("input_ids", "labels"): data[name] for name in data.column_names if "input_ids" in name}
        data = datasets.Dataset.from_dict({**data.to_dict(), **inputs})
    expected = tiny.trained(tmp_path, kind, data, dair_lambda=LAMBDA, **WHOLE)
    for cut in (WHOLE, SPLIT):
        made = trainer(tmp_path, kind, data, **cut)
        made.data_collator.base_collator.tokenizer.padding_side = side or "right"
        made.train()
        assert tiny.distance(expected, tiny.weights(made.model)) < (1e-4 if side else 1e-9)  # rotations in float32
    assert tiny.distance(expected, tiny.trained(tmp_path, kind, data, dair_lambda=0.0, **WHOLE)) > 1e-3


def test_scores_of_zero_are_no_target(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({
        "input_ids": [[4, 5], [6, 7]], "labels": [[1.0, 0.0], [0.5, 0.5]],
        "augmented_input_ids": [[4, 6], [7, 8]], "augmented_labels": [[0.0, 0.0], [0.0, 1.0]],
    })  # fmt: skip
    found, args = [], tiny.config(tmp_path, max_steps=2, dair_lambda=LAMBDA)
    for kind, given in ((DAIRTrainer, args), (partial(PairTrainer, dair_lambda=LAMBDA), plain(args))):
        torch.manual_seed(0)
        model = BertForSequenceClassification(saved_models.bert_config()).double()
        kind(model, given, default_data_collator, data, sample_loss="soft_score").train()
        found.append(tiny.weights(model))
    assert tiny.distance(*found) < 1e-9


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_evaluation_is_the_trainers_own(tmp_path: Path, kind: str) -> None:
    data, seen = tiny.pairs(kind, 7), []
    originals = data.select_columns([name for name in data.column_names if not name.startswith("augmented_")])
    made = trainer(
        tmp_path, kind, data, eval_dataset=data, compute_metrics=lambda found: seen.append(found) or {},
        include_for_metrics=["inputs"],
    )  # fmt: skip
    other = Trainer(made.model, made.args, made.data_collator.base_collator, eval_dataset=originals)
    assert made.evaluate()["eval_loss"] == pytest.approx(other.evaluate()["eval_loss"], rel=1e-12)
    assert len(seen[0].label_ids) == 7 and seen[0].inputs.ndim == 2


@pytest.mark.parametrize(
    "named",
    [
        "augmented",
        "hidden",
        "DAIRConfig",
        "dair_lambda",
        "compute_loss_func",
        "label_smoothing",
        "router",
        "max_length",
        "sample_loss",
    ],
)
def test_what_would_train_something_else_is_refused(tmp_path: Path, named: str) -> None:
    model, data, given, smoothing = tiny.model("llama"), rows("llama", 1), dict[str, Any](), 0.0
    if named == "augmented":  # a trainer may tokenize the originals alone
        data = data.rename_columns({name: f"{name}_text" for name in data.column_names if name.startswith("augmented")})
    elif named == "hidden":
        data, named = data.with_format(columns=["input_ids", "labels"]), "partner"
    elif named == "router":
        model.config.output_router_logits, model.config.router_aux_loss_coef = True, 0.1
    elif named == "label_smoothing":
        smoothing = 0.1
    elif named in ("dair_lambda", "compute_loss_func"):
        given = {named: -3.0 if named == "dair_lambda" else len}
    args: Any = TrainingArguments(str(tmp_path), label_smoothing_factor=smoothing, report_to="none", use_cpu=True)
    if named == "max_length":
        args.max_length, args.dataset_kwargs = 5, None  # of TRL, which would cut originals only
    elif named == "sample_loss":
        args.loss_type = "dft"  # another loss of TRL
    elif named == "DAIRConfig":
        args = tiny.config(tmp_path, dair_lambda=3.0)  # which would be ignored
    with pytest.raises(DataError, match=named):
        PairTrainer(model, args, train_dataset=data, **given)


def test_a_subclass_with_a_loss_of_its_own_is_refused(tmp_path: Path) -> None:
    class Own(PairTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model(**inputs).loss

    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(DataError, match="compute_loss"):
        Own(tiny.model("llama"), args, train_dataset=rows("llama", 1))

    class Weighted(Trainer):
        compute_loss = Own.compute_loss

    class Pairs(PairMixin, Weighted):
        pass

    with pytest.raises(DataError, match="sample_loss"):
        Pairs(tiny.model("llama"), args, train_dataset=rows("llama", 1))
    assert Pairs(tiny.model("llama"), args, train_dataset=rows("llama", 1), sample_loss="causal")


@pytest.mark.filterwarnings("ignore")  # of trl
def test_updates_of_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")

    class PairSFTTrainer(PairMixin, trl.SFTTrainer):
        """The trainer of TRL with pairs."""

    data = rows("llama", 2)
    args = plain(tiny.config(tmp_path, **SPLIT), trl.SFTConfig, max_length=None)
    made = PairSFTTrainer(
        tiny.model("llama"), args, train_dataset=data, eval_dataset=data, processing_class=tiny.tokenizer(),
        dair_lambda=LAMBDA,
    )  # fmt: skip
    made.train()
    expected = tiny.trained(tmp_path, "llama", data, dair_lambda=LAMBDA, **WHOLE)
    assert tiny.distance(expected, tiny.weights(made.model)) < 1e-9
    assert made.evaluate()["eval_loss"] > 0
    assert torch.is_grad_enabled()
