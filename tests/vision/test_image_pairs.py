"""Rows and views of image experiments."""

from __future__ import annotations

import pytest
import torch

from dair_hf.vision.image_pairs import ImageView, evaluation_rows
from dair_hf.vision.labeled_images import LabeledImages

GRAYS = LabeledImages(torch.zeros(20, 4, 4, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64))


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
    file, images, rows = evaluation_rows(files, split, **numbers)
    assert (file, int(rows[0]), int(rows[-1]) + 1) == expected and images is GRAYS


def test_image_view() -> None:
    images = torch.arange(6, dtype=torch.uint8).view(3, 1, 1, 2)
    view = ImageView(images, torch.tensor([7, 8, 9]), torch.tensor([2, 0]))
    batch = view(torch.tensor([1, 0]), epoch=3)
    assert torch.equal(batch["pixel_values"], images[[0, 2]].float() / 255)
    assert batch["labels"].tolist() == [7, 9]
