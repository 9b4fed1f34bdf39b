"""Models, tokenizers and data in the forms in which users of `Trainer` and TRL give them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import (
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2LMHeadModel,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from dair_hf import DAIRTrainer, DataError
from tests.fixtures import saved_models, tiny
from tests.fixtures.hub_server import HubServer

ROWS: list[dict[str, Any]] = [
    {"text": "w4 w5", "label": 1},
    {"text": "w6", "label": 0, "augmented_text": "w7 w8", "augmented_label": 2},
]
NAMES = ["low", "middle", "high"]
ADAPTERS = LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)


def encoder(folder: Path) -> str:
    torch.manual_seed(0)
    BertModel(saved_models.bert_config()).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def trainer(folder: Path, model: Any, data: Any = None, method: str = "dair", **given: Any) -> DAIRTrainer:
    args = tiny.config(folder / "out", max_steps=1, method=method)
    return DAIRTrainer(model, args, train_dataset=data, **given)


def named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(("label", "augmented_label"), NAMES.__getitem__)
    return [{key: names[key](value) if key in names else value for key, value in row.items()} for row in rows]


def table(rows: list[dict[str, Any]]) -> datasets.Dataset:
    columns = {name: [row.get(name) for row in rows] for name in rows[-1]}
    classes = datasets.ClassLabel(names=NAMES)
    made = datasets.Dataset.from_dict(columns)
    return made.cast_column("label", classes).cast_column("augmented_label", classes)


@pytest.mark.parametrize(
    ("data", "classes", "number"),
    [
        (ROWS, ["LABEL_0", "LABEL_1", "LABEL_2"], 2),
        ([{**row, "label": float(row["label"])} for row in ROWS], ["LABEL_0", "LABEL_1", "LABEL_2"], 2),  # of pandas
        (named(ROWS), ["high", "low", "middle"], 0),
        (table(ROWS), NAMES, 2),
    ],
)
def test_an_encoder_by_name_gets_the_classes_of_the_data(
    tmp_path: Path, data: Any, classes: list[str], number: int
) -> None:
    made = trainer(tmp_path, encoder(tmp_path / "bert"), data)
    assert isinstance(made.model, BertForSequenceClassification)
    assert made.model.config.id2label == dict(enumerate(classes))
    assert made.processing_class.get_vocab() == tiny.tokenizer().get_vocab()
    assert made.train_dataset["input_ids"][:] == [[4, 5], [6]]
    assert made.train_dataset["augmented_input_ids"][:] == [None, [7, 8]]  # although the first row lacks the column
    assert made.train_dataset["augmented_labels"][:] == [None, number]
    made.train()
    assert made.evaluate_pairs(data)["pairs"] == 1


@pytest.mark.parametrize("data", ["pairs.jsonl", []])
def test_what_is_not_rows_is_refused_before_the_model_is_loaded(tmp_path: Path, data: Any) -> None:
    with pytest.raises(DataError, match="^train_dataset"):
        trainer(tmp_path, encoder(tmp_path / "bert"), data)


def test_a_trained_classifier_by_name_is_that_classifier(tmp_path: Path) -> None:
    folder = saved_models.classifier(tmp_path / "yes_no")
    rows = [{"text": "w4", "label": "yes", "augmented_text": "w5", "augmented_label": "no"}]
    made = trainer(tmp_path, folder, rows)
    stored = AutoModelForSequenceClassification.from_pretrained(folder)
    assert tiny.distance(tiny.weights(made.model), tiny.weights(stored)) == 0
    assert made.train_dataset["labels"][:] == [1]


@pytest.mark.parametrize(("kind", "built"), [("t5", T5ForConditionalGeneration), ("gpt2", GPT2LMHeadModel)])
def test_language_models_by_name_are_loaded_in_float32(tmp_path: Path, kind: str, built: type) -> None:
    tiny.model(kind, dtype=torch.bfloat16).save_pretrained(tmp_path / kind)
    made = trainer(tmp_path, tmp_path / kind, tiny.pairs(kind, 4), processing_class=tiny.tokenizer())
    assert type(made.model) is built and made.model.dtype == torch.float32
    # Without a vocabulary in the folder, transformers would build a tokenizer that knows no word.
    assert trainer(tmp_path, made.model, tiny.pairs(kind, 4)).processing_class is None


def test_tokens_keep_the_padding_of_their_model(tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(encoder(tmp_path / "bert"), pad_token_id=7)
    rows = [{"input_ids": [4, 5, 7], "labels": 1, "augmented_input_ids": [5, 4, 7], "augmented_labels": 1}]
    assert trainer(tmp_path, model, ROWS[:1]).processing_class is not None
    made = trainer(tmp_path, model, rows)
    made.train()
    assert made.processing_class is None and model.config.pad_token_id == 7


def test_an_image_classifier_by_name_has_its_processor(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes)).save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    processor = trainer(tmp_path, str(tmp_path)).processing_class
    assert dict(processor.size) == {"height": 8, "width": 8}


def test_splits_of_a_data_set(tmp_path: Path) -> None:
    splits = datasets.DatasetDict(train=table(ROWS), validation=table(ROWS[1:]), test=table(ROWS * 2))
    made = trainer(tmp_path, encoder(tmp_path / "bert"), splits)
    assert (len(made.train_dataset), len(made.eval_dataset)) == (2, 1)
    own = trainer(tmp_path, encoder(tmp_path / "bert"), splits, eval_dataset=splits["test"])
    assert len(own.eval_dataset) == 4


def test_adapters_are_added_and_the_new_output_layer_is_trained_and_saved(tmp_path: Path) -> None:
    base = encoder(tmp_path / "bert")
    made = trainer(tmp_path, base, ROWS, peft_config=ADAPTERS)
    trained = [name for name, weight in made.model.named_parameters() if weight.requires_grad]
    assert all("lora_" in name or ".classifier." in name for name in trained)
    assert {"lora_A" in name for name in trained} == {True, False}
    made.save_model(str(tmp_path / "saved"))
    again = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    loaded = PeftModel.from_pretrained(again, tmp_path / "saved").eval()
    inputs = {"input_ids": torch.tensor([[4, 5]])}
    torch.testing.assert_close(loaded(**inputs).logits, made.model.eval()(**inputs).logits)
    assert ADAPTERS.task_type is None
    # The folder of the adapters is a name as well: they are loaded on their base, and trained on.
    onward = trainer(tmp_path, tmp_path / "saved", ROWS)
    torch.testing.assert_close(onward.model.eval()(**inputs).logits, made.model(**inputs).logits)
    assert [name for name, weight in onward.model.named_parameters() if weight.requires_grad] == trained
    assert onward.processing_class.get_vocab() == tiny.tokenizer().get_vocab()


def test_the_seed_decides_the_first_weights_of_adapters(tmp_path: Path) -> None:
    first: list[torch.Tensor] = []
    for seed in (1, 1, 2):
        base = AutoModelForSequenceClassification.from_pretrained(encoder(tmp_path / "bert"), num_labels=3)
        model = DAIRTrainer(base, tiny.config(tmp_path, seed=seed), train_dataset=ROWS, peft_config=ADAPTERS).model
        first.append(next(weight for name, weight in model.named_parameters() if "lora_A" in name))
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


@pytest.mark.parametrize(
    "columns", [("sentence", "label"), ("sentence", "label", "aug_sentence"), ("prompt", "completion"), ("text",)]
)
@pytest.mark.parametrize("kind", [BertModel, BertForSequenceClassification, BertForMaskedLM])
def test_columns_that_an_encoder_does_not_read_are_named(tmp_path: Path, kind: type, columns: tuple[str, ...]) -> None:
    kind(saved_models.bert_config()).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    rows = [dict.fromkeys(columns, "w4")]
    with pytest.raises(DataError) as refused:
        trainer(tmp_path, tmp_path, rows, method="erm").train()
    assert str(list(columns)) in str(refused.value) and "text and label" in str(refused.value)


def test_columns_without_a_partner_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="augmented_.*'aug_text'"):
        trainer(tmp_path, encoder(tmp_path / "bert"), [{**ROWS[0], "aug_text": "w6"}]).train()


def test_a_name_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        trainer(tmp_path, str(tmp_path / "nowhere"), ROWS)


BY_ID = """
import json, sys
from dair_hf import DAIRConfig, DAIRTrainer
rows = json.loads(sys.argv[2])
trainer = DAIRTrainer(sys.argv[1], DAIRConfig("out", use_cpu=True, report_to="none"), train_dataset=rows)
print(type(trainer.model).__name__, trainer.model.bert.embeddings.word_embeddings.weight[7].tolist())
print(trainer.train_dataset["input_ids"][0])
"""


@pytest.mark.slow
def test_a_model_and_its_tokenizer_of_the_hub(hub_server: HubServer, tmp_path: Path) -> None:
    encoder(tmp_path / "bert")
    hub_server.add_commit(
        "models/tester/bert", {path.name: path.read_bytes() for path in (tmp_path / "bert").iterdir()}
    )
    model, ids = hub_server.run_python("-c", BY_ID, "tester/bert", json.dumps(ROWS)).stdout.splitlines()
    expected = BertModel.from_pretrained(tmp_path / "bert").embeddings.word_embeddings.weight[7].tolist()
    assert model == f"BertForSequenceClassification {expected}"
    assert json.loads(ids) == tiny.tokenizer()("w4 w5")["input_ids"]
