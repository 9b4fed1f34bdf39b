"""Of 5 % planted pairs with a wrong label, the worst 5 % of a report hold at least 80 %."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import set_seed
from transformers.modeling_outputs import SequenceClassifierOutput

from dair_hf import DAIRTrainer, TensorPairs
from dair_hf.pair_report.report import PairReport
from tests.fixtures import tiny

SHARE = 0.05


def planted(rows: int) -> np.ndarray:
    """Numbers of the rows whose partners get a wrong label."""
    return np.random.default_rng(7).permutation(rows)[: round(SHARE * rows)]


def precision(report: PairReport, names: set[str]) -> float:
    """Share of planted pairs among the worst 5 %."""
    worst = report.pairs["row_id"][: round(SHARE * len(report.pairs["row_id"]))]
    return sum(name in names for name in worst) / len(worst)


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


@pytest.mark.usefixtures("plain_page")
@pytest.mark.parametrize(("method", "dair_lambda"), [("da", 0.0), ("dair", 10.0)])
def test_planted_labels_of_images_are_the_worst(tmp_path: Path, method: str, dair_lambda: float) -> None:
    set_seed(0)
    settings = {"method": method, "dair_lambda": dair_lambda, "num_train_epochs": 12, "learning_rate": 3e-3}
    args = tiny.config(tmp_path, per_device_train_batch_size=32, per_device_eval_batch_size=100, **settings)
    trainer = DAIRTrainer(SmallNetwork(), args, train_dataset=patterns(400), sample_loss="classification")
    trainer.train()
    report = trainer.pair_report(folder=tmp_path / "report", worst=1)
    names = {str(row) for row in planted(400)}
    assert precision(report, names) >= 0.8
    assert precision(report, {str(row) for row in range(20)}) < 0.2, "other pairs are not"
    assert [field["kind"] for field in report.worst[0]["fields"]] == ["image", "text"]
