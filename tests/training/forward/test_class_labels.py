"""Labels of a wrong type, shape or range are refused with their row before torch fails on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dair_hf import DAIRTrainer, DataError, TensorPairs
from tests.fixtures import points


def train(folder: Path, labels: Tensor, partners: Tensor | None = None) -> DAIRTrainer:
    x = points.points(8)[0]
    partners = labels if partners is None else partners
    data: Any = TensorPairs(
        {"x": x, "labels": labels}, {"x": x + 1, "labels": partners}, row_ids=[f"r/{row}" for row in range(8)]
    )
    made = points.trainer(folder, data, outputs=2, train_sampling_strategy="sequential", max_steps=2)
    made.train()
    return made


def classes(*changes: tuple[int, int]) -> Tensor:
    labels = torch.tensor([0, 1] * 4)
    for row, value in changes:
        labels[row] = value
    return labels


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (classes().double(), "row 'r/0': labels is of type float64, but this sample loss takes the number of a class"),
        (classes().int(), r"row 'r/0': labels is of type int32, .* a class as int64; convert .* labels.long\(\)"),
        (classes().bool(), r"row 'r/0': labels is of type bool, .*; convert the labels, such as labels.long\(\)"),
        (classes()[:, None], r"row 'r/0': labels has the shape \[1\], but the logits \[2\], .* labels.squeeze\(-1\)"),
        (classes((6, 5)), "row 'r/6': labels holds 5, but the model has 2 classes: labels are 0 to 1, and -100 for no"),
        (classes((3, -1), (2, 2)), "row 'r/2': labels holds 2, but the model has 2 classes"),
        (classes((3, -1)), "row 'r/3': labels holds -1, but the model has 2 classes"),
    ],
)
def test_wrong_labels_are_refused_with_their_row(tmp_path: Path, labels: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}"):
        train(tmp_path, labels)


def test_a_wrong_label_of_a_partner_is_named_with_its_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^row 'r/1': augmented_labels holds 2, but the model has 2 classes"):
        train(tmp_path, classes(), classes((1, 2)))


def test_labels_without_a_target_and_probabilities_pass(tmp_path: Path) -> None:
    assert train(tmp_path, classes((0, -100), (5, -100)), classes((7, -100))).state.global_step == 2
    shares = torch.rand(8, 1, dtype=torch.float64)
    assert train(tmp_path, torch.cat([shares, 1 - shares], dim=1)).state.global_step == 2
