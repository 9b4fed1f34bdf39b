"""Rows, views and settings of image experiments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vision.image_pairs import (
    ImageView,
    evaluation_rows,
    file_of,
    require_choice,
    require_fraction,
    require_rows,
    rows_between,
)
from dair_hf.vision.labeled_images import LabeledImages
from dair_hf.vision.mnist.digits import MNIST, DigitPairsConfig


@pytest.mark.parametrize("fraction", [0, 0.0, 0.1, 1, 1.0])
def test_fractions(fraction: float) -> None:
    assert DigitPairsConfig(partner_fraction=fraction).partner_fraction == fraction
    require_fraction("label_noise", fraction)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partner_fraction": 1.1}, r"partner_fraction=1.1 must be in \[0, 1\]: 0.25 is every fourth row"),
        ({"partner_fraction": -0.1}, r"partner_fraction=-0.1 must be in"),
        ({"partner_fraction": float("nan")}, r"partner_fraction=nan must be in"),
        ({"partner_fraction": 20}, r"partner_fraction=20 must be in"),
        ({"train_rows": 0}, "train_rows=0 must be at least 1"),
        ({"validation_rows": -1}, "validation_rows=-1 must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DigitPairsConfig(**settings)


def test_rows() -> None:
    require_rows("test_rows", 1)
    with pytest.raises(DataError, match="test_rows=0 must be at least 1"):
        require_rows("test_rows", 0)


def test_choices() -> None:
    require_choice("setup", "a", ("a", "b"))
    with pytest.raises(DataError, match="setup='c' is unknown; use one of a, b"):
        require_choice("setup", "c", {"a": 1, "b": 2})


GRAYS = LabeledImages(torch.zeros(20, 4, 4, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64))


def test_rows_between() -> None:
    assert rows_between(GRAYS, 15, 20, "validation").tolist() == [15, 16, 17, 18, 19]
    for start, stop in ((15, 21), (5, 5), (-1, 3)):
        with pytest.raises(
            DataError, match=rf"validation: needs rows {start} to {stop - 1}, .* the file ends with row 19"
        ):
            rows_between(GRAYS, start, stop, "validation")


def test_file_of() -> None:
    assert file_of({"train": GRAYS}, "train", "training", MNIST) is GRAYS
    with pytest.raises(DataError, match="training: needs the train file of MNIST; pass {'train': load_mnist"):
        file_of({"test": GRAYS}, "train", "training", MNIST)


@pytest.mark.parametrize(
    ("split", "settings", "expected"),
    [
        ("test", {}, ("test", 0, 20)),
        ("test", {"test_rows": 7}, ("test", 0, 7)),
        ("test", {"test_rows": 99}, ("test", 0, 20)),
        ("validation", {}, ("train", 15, 20)),
        ("validation", {"train_rows": 2}, ("train", 15, 20)),
    ],
)
def test_evaluation_rows(split: str, settings: dict[str, int], expected: tuple[str, int, int]) -> None:
    files = {"train": GRAYS, "test": GRAYS}
    numbers = {"train_rows": 15, "validation_rows": 5, **settings}
    file, images, rows = evaluation_rows(files, split, MNIST, **numbers)
    assert (file, int(rows[0]), int(rows[-1]) + 1) == expected and images is GRAYS
    with pytest.raises(DataError, match="validation: needs rows 18 to 22, but the file ends with row 19"):
        evaluation_rows(files, "validation", MNIST, train_rows=18, validation_rows=5)


def test_image_view() -> None:
    images = torch.arange(6, dtype=torch.uint8).view(3, 1, 1, 2)
    view = ImageView(images, torch.tensor([7, 8, 9]), torch.tensor([2, 0]))
    batch = view(torch.tensor([1, 0]), epoch=3)
    assert torch.equal(batch["pixel_values"], images[[0, 2]].float() / 255)
    assert batch["labels"].tolist() == [7, 9]
