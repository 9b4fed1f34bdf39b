"""Rotated 6 and 9: rows, labels and angles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.vision.mnist.six_nine import SixNineConfig, six_nine_evaluation_pairs, six_nine_train_pairs
from tests.fixtures.digits import noise_digits

MNIST = {"train": noise_digits(500), "test": noise_digits(200, seed=1)}
CONFIG = SixNineConfig(train_rows=60, validation_rows=20)


def chosen(file: str) -> list[int]:
    return [row for row, label in enumerate(MNIST[file].labels.tolist()) if label in (6, 9)]


def test_training_partners_are_rotated_by_180_degrees_with_the_other_label() -> None:
    pairs = six_nine_train_pairs(MNIST, CONFIG, seed=0)
    rows = chosen("train")[:60]
    batch = pairs.__getitems__(range(60))
    images = MNIST["train"].images[rows].float() / 255
    assert torch.equal(batch["pixel_values"][:, 0, 0], images)
    assert torch.equal(batch["pixel_values"][:, 1, 0], images.flip(1, 2))
    nine = [int(MNIST["train"].labels[row] == 9) for row in rows]
    assert batch["labels"].tolist() == [[label, 1 - label] for label in nine]
    assert batch["labels"].dtype == torch.int64
    assert pairs.row_ids.tolist() == [f"train/{row}" for row in rows]
    assert set(pairs.columns["digit"]) == {6, 9}
    assert 20 < sum(nine) < 40


@pytest.mark.parametrize("theta", [0.0, 37.5, 60.0, 90.0])
@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluation_pairs_at_an_angle(theta: float, split: str) -> None:
    pairs = six_nine_evaluation_pairs(MNIST, CONFIG, theta, split)
    file = "test" if split == "test" else "train"
    rows = chosen(file) if split == "test" else chosen(file)[-20:]
    assert pairs.row_ids.tolist() == [f"{file}/{row}" for row in rows]
    batch = pairs.__getitems__(range(len(pairs)))
    for view, angle in ((0, theta), (1, theta + 180)):
        rotated = [np.asarray(Image.fromarray(MNIST[file].images[row].numpy()).rotate(angle)) / 255 for row in rows]
        assert np.abs(batch["pixel_values"][:, view, 0].numpy() - np.stack(rotated)).max() < 1e-6
    nine = [int(MNIST[file].labels[row] == 9) for row in rows]
    assert batch["labels"].tolist() == [[label, 1 - label] for label in nine]


def test_training_and_validation_rows_are_disjoint() -> None:
    train, validation = (
        six_nine_train_pairs(MNIST, CONFIG, 0),
        six_nine_evaluation_pairs(MNIST, CONFIG, 0.0, "validation"),
    )
    assert not set(train.row_ids) & set(validation.row_ids)
    every = SixNineConfig(train_rows=len(chosen("train")) - 20, validation_rows=20)
    assert len(six_nine_train_pairs(MNIST, every, 0)) == len(chosen("train")) - 20
    assert not set(six_nine_train_pairs(MNIST, every, 0).row_ids) & set(validation.row_ids)
