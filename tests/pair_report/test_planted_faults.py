"""Of 5 % planted pairs with a wrong label, the worst 5 % of a report hold at least 80 %."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, set_seed
from transformers.modeling_outputs import SequenceClassifierOutput

from dair_hf import DAIRTrainer, PairCollator, TensorPairs
from dair_hf.dialog.tokenizer import build_tokenizer
from dair_hf.pair_report.report import PairReport
from dair_hf.vision.mnist.digits import load_mnist
from dair_hf.vision.mnist.rotated import RotatedConfig, rotated_train_pairs
from dair_hf.vision.networks import DigitCNN, DigitCNNConfig
from tests.fixtures import tiny

SHARE = 0.05
METHODS = [("da", 0.0), ("dair", 10.0)]


def planted(rows: int) -> np.ndarray:
    """Numbers of the rows whose partners get a wrong label."""
    return np.random.default_rng(7).permutation(rows)[: round(SHARE * rows)]


def precision(report: PairReport, names: set[str]) -> float:
    """Share of planted pairs among the worst 5 %."""
    worst = report.pairs["row_id"][: round(SHARE * len(report.pairs["row_id"]))]
    return sum(name in names for name in worst) / len(worst)


def sentences(rows: int) -> datasets.Dataset:
    """Sentences of eight words and one that says whether they are good; in the partner the opposite one.

    A planted partner has the word of the other class, and the label of its original.
    """
    words = [["bad", "awful", "poor", "dull", "cold"], ["good", "great", "fine", "superb", "warm"]]
    draw, faults = random.Random(0), set(planted(rows).tolist())
    table = []
    for row in range(rows):
        label, text = draw.randrange(2), [f"w{draw.randrange(60)}" for _ in range(8)]
        at = draw.randrange(9)
        original, partner = (
            " ".join([*text[:at], draw.choice(words[side]), *text[at:]]) for side in (label, 1 - label)
        )
        wrong = label if row in faults else 1 - label
        table.append(
            {
                "row_id": f"t{row}",
                "text": original,
                "augmented_text": partner,
                "labels": label,
                "augmented_labels": wrong,
            }
        )
    return datasets.Dataset.from_list(table)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dair_lambda"), METHODS)
def test_planted_labels_of_texts_are_the_worst(tmp_path: Path, method: str, dair_lambda: float) -> None:
    rows = sentences(600)
    tokenizer = build_tokenizer([text for name in ("text", "augmented_text") for text in rows[name]], min_count=1)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        ids = {prefix: tokenizer(row[prefix + "text"]).input_ids for prefix in ("", "augmented_")}
        return {
            f"{p}{name}": v for p, i in ids.items() for name, v in (("input_ids", i), ("attention_mask", [1] * len(i)))
        }

    pairs = rows.map(encode)
    set_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    settings = {"method": method, "dair_lambda": dair_lambda, "num_train_epochs": 8, "learning_rate": 3e-3}
    args = tiny.config(tmp_path, per_device_train_batch_size=32, per_device_eval_batch_size=100, **settings)
    trainer = DAIRTrainer(
        model, args, PairCollator(DataCollatorWithPadding(tokenizer)), pairs, processing_class=tokenizer
    )
    trainer.train()
    report = trainer.pair_report(folder=tmp_path / "report")
    assert precision(report, {f"t{row}" for row in planted(600)}) >= 0.8
    shown = report.worst[0]["fields"]
    assert [field["name"] for field in shown] == ["input", "label"]
    assert shown[1]["original"] == shown[1]["augmented"], "the first pair shows its fault: another word, the same label"


class SmallNetwork(nn.Module):
    """Two layers on images `[1, 8, 8]`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=self.layers(pixel_values))


def patterns(rows: int) -> TensorPairs:
    """Noisy images of five patterns; the partner is the negative, which keeps its class but for the planted ones."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(5, 1, 8, 8, generator=generator)
    labels = torch.randint(5, (rows,), generator=generator)
    noise = 0.3 * torch.randn(2, rows, 1, 8, 8, generator=generator)
    wrong = labels.clone()
    faults = torch.from_numpy(planted(rows))
    wrong[faults] = (labels[faults] + torch.randint(1, 5, (len(faults),), generator=generator)) % 5
    return TensorPairs(
        {"pixel_values": drawn[labels] + noise[0], "labels": labels},
        {"pixel_values": 1 - drawn[labels] + noise[1], "labels": wrong},
    )


@pytest.mark.parametrize(("method", "dair_lambda"), METHODS)
def test_planted_labels_of_images_are_the_worst(tmp_path: Path, method: str, dair_lambda: float) -> None:
    set_seed(0)
    settings = {"method": method, "dair_lambda": dair_lambda, "num_train_epochs": 12, "learning_rate": 3e-3}
    args = tiny.config(tmp_path, per_device_train_batch_size=32, per_device_eval_batch_size=100, **settings)
    trainer = DAIRTrainer(SmallNetwork(), args, train_dataset=patterns(800), sample_loss="classification")
    trainer.train()
    report = trainer.pair_report(folder=tmp_path / "report")
    names = {str(row) for row in planted(800)}
    assert precision(report, names) >= 0.8
    assert precision(report, {str(row) for row in range(40)}) < 0.2, "other pairs are not"
    assert [field["kind"] for field in report.worst[0]["fields"]] == ["image", "text"]


@pytest.mark.slow
@pytest.mark.realdata
def test_planted_labels_of_rotated_digits_are_the_worst(tmp_path: Path, real_data: Path) -> None:
    rows = 6000
    clean = rotated_train_pairs(
        {"train": load_mnist(str(real_data / "mnist"), "train")}, RotatedConfig(setup="strong", train_rows=rows), 0
    )
    is_planted = torch.zeros(rows, dtype=torch.bool)
    is_planted[torch.from_numpy(planted(rows))] = True
    shift = torch.randint(1, 10, (rows,), generator=torch.Generator().manual_seed(0))
    original, augmented = clean.views
    assert callable(augmented)

    def spoiled(numbers: Tensor, epoch: int) -> dict[str, Tensor]:
        view = dict(augmented(numbers, epoch))
        wrong = (view["labels"] + shift[numbers]) % 10
        return {**view, "labels": torch.where(is_planted[numbers], wrong, view["labels"])}

    pairs = TensorPairs(original, spoiled, rows=rows, row_ids=clean.row_ids.tolist())
    set_seed(0)
    settings = {"method": "dair", "dair_lambda": 10.0, "num_train_epochs": 8, "learning_rate": 1e-3}
    args = tiny.config(tmp_path, per_device_train_batch_size=64, per_device_eval_batch_size=250, **settings)
    network = DigitCNN(DigitCNNConfig(num_channels=1, num_labels=10))
    trainer = DAIRTrainer(network, args, train_dataset=pairs, sample_loss="classification")
    trainer.train()
    names = {clean.row_ids[row] for row in planted(rows)}
    assert precision(trainer.pair_report(folder=tmp_path / "report"), names) >= 0.8
