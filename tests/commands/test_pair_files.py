"""Files of pairs with contents that people get wrong: each is read as meant, or refused in one message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from transformers import BertForSequenceClassification

from dair_hf import DAIRTrainer
from dair_hf.commands.main import run
from dair_hf.commands.model_pairs import _with_whole_labels
from dair_hf.data.texts.files import read_pairs, with_row_ids
from dair_hf.pair_report.report import JSON_FILE, PairReport
from tests.fixtures import saved_models, tiny

TEXTS: dict[str, Any] = {"text": "w4 w5", "label": 1, "augmented_text": "w4 w6", "augmented_label": 0}
TARGETS: dict[str, Any] = {"source": "w4 w5", "target": "w6", "augmented_source": "w7", "augmented_target": "w8"}
ALONE: dict[str, Any] = {"augmented_text": None, "augmented_label": None}
IDS: dict[str, Any] = {
    "input_ids": [4, 5], "attention_mask": [1, 1], "labels": 1,
    "augmented_input_ids": [4], "augmented_attention_mask": [1], "augmented_labels": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models with the tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "bert": saved_models.classifier(folder / "bert"),
        "gpt2": saved_models.generator(folder / "gpt2", "gpt2"),
    }


def encoded_by(folder: Path, rows: datasets.Dataset, num_labels: int = 2) -> datasets.Dataset:
    config = saved_models.bert_config()
    config.num_labels = num_labels
    model = BertForSequenceClassification(config)
    trainer = DAIRTrainer(model, tiny.config(folder), processing_class=tiny.tokenizer())
    encoded = trainer.tokenize(_with_whole_labels(rows, trainer))
    assert isinstance(encoded, datasets.Dataset)
    return encoded


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def evaluation(model: Path, pairs: Path, output: Path) -> list[str]:
    """The command that evaluates a model with a report."""
    return ["evaluate", str(model), str(pairs), "--output", str(output), "--no-progress", "--report"]


@pytest.mark.parametrize(("kind", "columns"), [("csv", "text"), ("parquet", "text"), ("parquet", "ids")])
def test_whole_labels_of_columns_with_gaps_are_integers(
    tmp_path: Path, models: dict[str, Path], kind: str, columns: str
) -> None:
    rows = [TEXTS, {**TEXTS, **ALONE, "label": 0}]
    if columns == "ids":
        rows = [IDS, {**IDS, "labels": 0, "augmented_input_ids": None, "augmented_attention_mask": None}]
        rows[1]["augmented_labels"] = None
    frame, path = pd.DataFrame(rows), tmp_path / f"pairs.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    encoded = encoded_by(tmp_path, with_row_ids(read_pairs(path)))
    assert [encoded["labels"][:], encoded["augmented_labels"][:]] == [[1, 0], [0, None]]
    assert all(type(label) is int for label in encoded["labels"])
    assert run(evaluation(models["bert"], path, tmp_path / "out")) == 0


def test_labels_of_a_regression_stay_floats(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{**TEXTS, "row_id": "a", "label": 2.5}, {**TEXTS, "row_id": "b"}])
    encoded = encoded_by(tmp_path, rows, num_labels=1)
    assert encoded["labels"][:] == [2.5, 1.0] and encoded.features["labels"].dtype == "float64"


def test_words_of_a_csv_are_no_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("source,target,augmented_source,augmented_target\nw4,None,w5,NA\nw6,nan,,\n")
    rows = with_row_ids(read_pairs(path))
    assert rows["target"][:] == ["None", "nan"]
    assert rows["augmented_source"][:] == ["w5", None] and rows["augmented_target"][:] == ["NA", None]


@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_files_for_both_kinds_of_model_serve_each(tmp_path: Path, models: dict[str, Path], model: str) -> None:
    path = tmp_path / "pairs.JSONL"
    # A partner in the columns of the other kind.
    half = {"augmented_source": None, "augmented_target": None} if model == "gpt2" else ALONE
    path.write_text(lines({**TEXTS, **TARGETS}, {**TEXTS, **TARGETS, **half}))
    assert run(evaluation(models[model], path, tmp_path / "out")) == 0
    name = {"bert": "label", "gpt2": "target tokens"}[model]
    report = PairReport.read(tmp_path / "out" / JSON_FILE)
    assert report.losses[-1]["name"] == name and report.summary["pairs"] == 1
