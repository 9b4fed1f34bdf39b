"""Patches and tiles padded to one row per image; the outputs of the models stay the same."""

from __future__ import annotations

import torch

from dair_hf.vqa.models.pretrained import one_row_per_image, take_padded_patches


def test_rows_of_images_of_different_size() -> None:
    listed = torch.arange(14.0).reshape(7, 2)
    batch = {"pixel_values": listed, "image_grid_thw": torch.tensor([[1, 2, 2], [1, 1, 3]]), "input_ids": torch.ones(2)}
    found = one_row_per_image(batch)
    assert found["pixel_values"].tolist() == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11], [12, 13], [0, 0]],
    ]
    assert found["input_ids"] is batch["input_ids"]
    assert batch["pixel_values"] is listed


def test_pixels_passed_by_name() -> None:
    class Tower(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
            return pixel_values

    tower = Tower()
    take_padded_patches(tower)
    found = tower(pixel_values=torch.tensor([[[1.0], [2.0]], [[3.0], [0.0]]]), grid_thw=torch.tensor([[2], [1]]))
    assert found.tolist() == [[1.0], [2.0], [3.0]]
