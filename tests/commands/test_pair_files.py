"""Files of pairs with contents that people get wrong: each is read as meant, or refused in one message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import dill
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

from dair_hf import DAIRTrainer
from dair_hf.commands.main import run
from dair_hf.commands.model_pairs import _with_whole_labels
from dair_hf.data.texts.encoder import TextEncoder
from dair_hf.data.texts.files import read_pairs, with_row_ids
from dair_hf.data.texts.forms import form_of
from dair_hf.errors import DataError
from dair_hf.pair_report.report import JSON_FILE, PairReport
from dair_hf.training.sample_loss import derived_sample_loss
from dair_hf.training.texts.needs import max_positions, model_needs
from tests.fixtures import tiny

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
NAMES = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
TEXTS: dict[str, Any] = {"text": "w4 w5", "label": 1, "augmented_text": "w4 w6", "augmented_label": 0}
TARGETS: dict[str, Any] = {"source": "w4 w5", "target": "w6", "augmented_source": "w7", "augmented_target": "w8"}
ALONE: dict[str, Any] = {"augmented_text": None, "augmented_label": None}
IDS: dict[str, Any] = {
    "input_ids": [4, 5], "attention_mask": [1, 1], "labels": 1,
    "augmented_input_ids": [4], "augmented_attention_mask": [1], "augmented_labels": 0,
}  # fmt: skip


def bert(**settings: Any) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=tiny.VOCAB, max_position_embeddings=16, **SIZES, **{**NAMES, **settings})
    return BertForSequenceClassification(config)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models with the tokenizer, and of one without."""
    made: dict[str, Callable[[], Any]] = {
        "bert": bert,
        "bare": bert,
        "gpt2": lambda: tiny.model("gpt2"),
        "bart": lambda: tiny.model("bart"),
        "t5": lambda: tiny.model("t5"),
    }
    folders = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, make in made.items():
        make().save_pretrained(folders[name])
        if name != "bare":
            tiny.tokenizer().save_pretrained(folders[name])
    return folders


def encoded_by(folder: Path, rows: datasets.Dataset, model: Any, length: int | None = None) -> datasets.Dataset:
    trainer = DAIRTrainer(model, tiny.config(folder, max_length=length), processing_class=tiny.tokenizer())
    encoded = trainer.tokenize(_with_whole_labels(rows, trainer))
    assert isinstance(encoded, datasets.Dataset)
    return encoded


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def evaluation(model: Path, pairs: Path, output: Path) -> list[str]:
    """The command that evaluates a model with a report."""
    return ["evaluate", str(model), str(pairs), "--output", str(output), "--no-progress", "--report"]


def without(row: dict[str, Any], *names: str, **others: Any) -> dict[str, Any]:
    return {**{name: value for name, value in row.items() if name not in names}, **others}


@pytest.mark.parametrize(
    ("model", "content", "message"),
    [
        ("bare", lines(TEXTS), "expected tokenizer files"),
        ("bert", lines(TARGETS), "expected text and label"),
        ("gpt2", lines(TEXTS), "for GPT2LMHeadModel"),
        ("t5", lines(TEXTS), "for T5ForConditionalGeneration"),
        ("bert", lines(TEXTS, {**TEXTS, "text": 5}), "row '1', column 'text'"),
        ("bert", lines({**TEXTS, "text": None}), "row '0', column 'text'"),
        ("bert", lines({**TEXTS, "augmented_text": 7}), "row '0', column 'augmented_text'"),
        ("t5", lines(TARGETS, {**TARGETS, "target": 3}), "row '1', column 'target'"),
        ("t5", lines({**TARGETS, "target": None}), "row '0', column 'target'"),
        ("gpt2", lines({**TARGETS, "augmented_target": None}), "row '0', column 'augmented_target'"),
        (
            "bert",
            lines(without(TEXTS, "label", "augmented_label", labels=1, augmented_labels=0)),
            "expected text and label",
        ),
        ("bert", lines(TEXTS, {**TEXTS, "label": 0.5}), "row '1', column 'label'"),
        ("bert", lines({**TEXTS, "augmented_label": True}), "row '0', column 'augmented_label'"),
        ("bert", lines({**TEXTS, "label": [0, 1]}), "row '0', column 'label'"),
        ("bert", lines({**TEXTS, "label": float("nan")}), "row '0', column 'label'"),
        ("bert", lines({**TEXTS, "augmented_label": None}), "row '0', column 'augmented_label'"),
        ("bert", lines({**IDS, "labels": 0.5}), "row '0', column 'labels'"),
        ("bert", lines({**IDS, "augmented_labels": False}), "row '0', column 'augmented_labels'"),
        ("bert", "\n\n", "0 rows"),
        ("bert", lines(TEXTS) + lines(TEXTS)[:30], "line 2"),
    ],
)
def test_mistakes_are_refused_in_one_message(
    tmp_path: Path,
    models: dict[str, Path],
    capfd: pytest.CaptureFixture[str],
    model: str,
    content: str | bytes,
    message: str,
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_bytes(content.encode() if isinstance(content, str) else content)
    assert run(evaluation(models[model], pairs, tmp_path / "out")) == 2
    (shown,) = [line for line in capfd.readouterr().err.splitlines() if "error" in line.lower()]
    place = str(models[model]) if model == "bare" else str(pairs)
    assert shown.startswith(f"error: {place}: ") and message in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"text,augmented_text\n", "0 rows"), (b"text;label;augmented_text\nw4;0;w5\n", "text;label")],
)
def test_csv_files_without_pairs_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "pairs.csv").write_bytes(content)
    with pytest.raises(DataError, match=f"pairs.csv: .*{message}"):
        read_pairs(tmp_path / "pairs.csv")


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
    encoded = encoded_by(tmp_path, with_row_ids(read_pairs(path)), bert())
    assert [encoded["labels"][:], encoded["augmented_labels"][:]] == [[1, 0], [0, None]]
    assert all(type(label) is int for label in encoded["labels"])
    assert run(evaluation(models["bert"], path, tmp_path / "out")) == 0


def test_labels_of_a_regression_stay_floats(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{**TEXTS, "row_id": "a", "label": 2.5}, {**TEXTS, "row_id": "b"}])
    encoded = encoded_by(tmp_path, rows, bert(num_labels=1, id2label=None, label2id=None))
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
    (name,) = {"bert": ["label"], "gpt2": ["target tokens"]}[model]
    report = PairReport.read(tmp_path / "out" / JSON_FILE)
    assert report.losses[-1]["name"] == name and report.summary["pairs"] == 1


@pytest.mark.parametrize("model", ["bert", "gpt2", "bart", "t5"])
def test_long_texts_are_cut_to_the_positions_of_the_model(tmp_path: Path, models: dict[str, Path], model: str) -> None:
    long, path = "w4 " * 700, tmp_path / "pairs.jsonl"
    row = {**TEXTS, "text": long} if model == "bert" else {**TARGETS, "source": long, "augmented_target": long}
    path.write_text(lines(row))
    if model == "bert":  # targets that were cut cannot be answered
        assert run(evaluation(models[model], path, tmp_path / "out")) == 0
        assert PairReport.read(tmp_path / "out" / JSON_FILE).summary["pairs"] == 1
    made = bert() if model == "bert" else tiny.model(model)
    positions = {"bert": 16, "gpt2": 32, "bart": 32, "t5": 512}[model]
    encoded = encoded_by(tmp_path, with_row_ids(read_pairs(path)), made, 512 if model == "t5" else None)
    assert len(encoded["input_ids"][0]) == positions
    if model != "bert":
        assert encoded["augmented_labels"][0][-1] == tiny.EOS and len(encoded["augmented_labels"][0]) == positions


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_the_encoder_does_not_hold_the_model(model: str) -> None:
    """`Dataset.map` pickles it for a hash, which would copy all weights."""
    made = bert() if model == "bert" else tiny.model(model)
    columns = ["text", "label"] if model == "bert" else ["source", "target"]
    needs = model_needs(made, tiny.tokenizer(), derived_sample_loss(made))
    encoder = TextEncoder(form_of(columns, model != "bert", model), tiny.tokenizer(), needs, columns)

    def refuse(self: Any, protocol: int) -> Any:
        raise AssertionError("pickled")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "__reduce_ex__", refuse)
        dill.dumps(encoder)
        with pytest.raises(AssertionError, match="pickled"):
            dill.dumps(made)


def test_positions_of_padding_are_not_those_of_tokens() -> None:
    config = RobertaConfig(vocab_size=tiny.VOCAB, max_position_embeddings=18, pad_token_id=1, **SIZES)
    model = RobertaForSequenceClassification(config)
    assert max_positions(model) == 16
    model(input_ids=torch.full((1, 16), 4))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, 17), 4))
    assert max_positions(tiny.model("t5")) is None
