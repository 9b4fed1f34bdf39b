"""Random crops and flips against padding and slicing in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dair_hf.augment.images import Crops, crop, draw_crops
from dair_hf.data.counter_rng import uniform

MANY = torch.arange(100_000)


def noise(*shape: int) -> torch.Tensor:
    """Random images."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def by_hand(image: np.ndarray, top: int, left: int, mirrored: bool, fill: int = 0) -> np.ndarray:
    """Pad, slice and flip one image `[..., H, W]`."""
    wide = 50
    height, width = image.shape[-2:]
    padded = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(wide, wide)] * 2, constant_values=fill)
    cut = padded[..., wide + top : wide + top + height, wide + left : wide + left + width]
    return cut[..., ::-1] if mirrored else cut


def some_crops(count: int, padding: int) -> Crops:
    generator = torch.Generator().manual_seed(1)
    top, left = (torch.randint(-padding, padding + 1, (count,), generator=generator) for _ in range(2))
    return Crops(top, left, torch.rand(count, generator=generator) < 0.5)


@pytest.mark.parametrize("shape", [(40, 3, 32, 32), (40, 1, 7, 12), (40, 12, 7), (40, 2, 3, 8, 8), (40, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bool])
def test_crops_match_padding_and_slicing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, crops = noise(*shape).to(dtype), some_crops(40, padding=5)
    found = crop(images, crops)
    assert (found.shape, found.dtype) == (images.shape, dtype) and found.is_contiguous()
    for image, cut, place in zip(images.numpy(), found.numpy(), zip(*crops, strict=True), strict=True):
        assert np.array_equal(cut, by_hand(image, *(int(value) for value in place)))


def test_fill() -> None:
    images, crops = noise(20, 3, 8, 8), some_crops(20, padding=3)
    found = crop(images, crops, fill=77).numpy()
    for image, cut, place in zip(images.numpy(), found, zip(*crops, strict=True), strict=True):
        assert np.array_equal(cut, by_hand(image, *(int(value) for value in place), fill=77))


def test_crops_are_those_of_the_draws() -> None:
    drawn = uniform(torch.arange(20), 3, 7, "name", count=3).numpy()
    found = draw_crops(torch.arange(20), 4, True, seed=3, epoch=7, stream="name")
    assert found.top.tolist() == (np.floor(drawn[:, 0] * 9) - 4).astype(int).tolist()
    assert found.left.tolist() == (np.floor(drawn[:, 1] * 9) - 4).astype(int).tolist()
    assert found.mirrored.tolist() == (drawn[:, 2] < 0.5).tolist()


def test_without_flip_and_padding_crops_are_the_identity() -> None:
    assert not draw_crops(MANY, 4, False, 0, 0, "test").mirrored.any()
    still = draw_crops(MANY, 0, False, 0, 0, "test")
    assert not any(bool(values.any()) for values in still)
    # Flipping does not change the position of the crops.
    assert torch.equal(draw_crops(MANY, 4, True, 0, 0, "test").top, draw_crops(MANY, 4, False, 0, 0, "test").top)
