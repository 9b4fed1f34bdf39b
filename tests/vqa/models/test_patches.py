"""Patches and tiles padded to one row per image; the outputs of the models stay the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.vqa.models.pretrained import one_row_per_image, take_padded_patches
from tests.fixtures import vision_language


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


def test_other_pixels_are_unchanged() -> None:
    batch = {"pixel_values": torch.rand(2, 3, 4, 4)}
    assert one_row_per_image(batch) is batch


def test_model_takes_both_layouts_of_patches() -> None:
    model, processor = vision_language.made(vision_language.qwen2_vl)
    generator = torch.Generator().manual_seed(0)
    grids = torch.tensor([[1, 4, 4], [1, 2, 4]])
    patches = torch.rand(24, 1176, generator=generator)
    image = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    ids = torch.tensor([[image] * 4 + [10, 11], [image] * 2 + [12, 13, 14, 15]])
    inputs = {"input_ids": ids, "image_grid_thw": grids, "mm_token_type_ids": (ids == image).long()}
    padded = one_row_per_image(inputs | {"pixel_values": patches})
    assert padded["pixel_values"].shape == (2, 16, 1176)
    with torch.no_grad():
        expected = model(**inputs, pixel_values=patches).logits
        with pytest.raises(RuntimeError):
            model(**padded)
        take_padded_patches(model)
        assert torch.equal(model(**padded).logits, expected)
        assert torch.equal(model(**inputs, pixel_values=patches).logits, expected)
        assert not torch.equal(model(**inputs, pixel_values=patches.flip(0)).logits, expected)


def test_pixels_passed_by_name() -> None:
    class Tower(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
            return pixel_values

    tower = Tower()
    take_padded_patches(tower)
    found = tower(pixel_values=torch.tensor([[[1.0], [2.0]], [[3.0], [0.0]]]), grid_thw=torch.tensor([[2], [1]]))
    assert found.tolist() == [[1.0], [2.0], [3.0]]


def test_model_takes_both_layouts_of_tiles() -> None:
    model, processor = vision_language.made(vision_language.internvl)
    tiles = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    tiles[2] = 0.0  # a tile of a single color is no padding
    image = processor.image_token_id
    ids = torch.tensor([[image] * 3 + [10], [image, 11, 12, 13]])
    padded = one_row_per_image({"input_ids": ids, "pixel_values": tiles}, image)
    assert padded["pixel_values"].shape == (2, 3, 3, 32, 32)
    with torch.no_grad():
        expected = model(input_ids=ids, pixel_values=tiles).logits
        take_padded_patches(model)
        assert torch.equal(model(**padded).logits, expected)
        assert torch.equal(model(input_ids=ids, pixel_values=tiles).logits, expected)
        assert not torch.equal(model(input_ids=ids, pixel_values=tiles.flip(0)).logits, expected)


@pytest.mark.parametrize("name", ["llava", "llava_onevision"])
def test_other_models_are_unchanged(name: str) -> None:
    model, processor = vision_language.made(vision_language.DECODERS[name])
    images = [[Image.fromarray(np.full((40 + 8 * row, 60, 3), 90, dtype=np.uint8))] for row in range(2)]
    texts = [f"user : {processor.image_token} how many ?"] * 2
    batch = dict(processor(images=images, text=texts, padding=True, return_tensors="pt"))
    assert one_row_per_image(batch, processor.image_token_id) is batch
    with torch.no_grad():
        expected = model(**batch).logits
        take_padded_patches(model)
        assert torch.equal(model(**batch).logits, expected)
