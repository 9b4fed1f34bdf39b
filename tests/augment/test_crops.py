"""Random crops and flips against padding and slicing in numpy."""

from __future__ import annotations

from typing import Any

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


# --- crop -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 3, 32, 32), (40, 1, 7, 12), (40, 12, 7), (40, 2, 3, 8, 8), (40, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bool])
def test_crops_match_padding_and_slicing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, crops = noise(*shape).to(dtype), some_crops(40, padding=5)
    found = crop(images, crops)
    assert (found.shape, found.dtype) == (images.shape, dtype) and found.is_contiguous()
    for image, cut, place in zip(images.numpy(), found.numpy(), zip(*crops, strict=True), strict=True):
        assert np.array_equal(cut, by_hand(image, *(int(value) for value in place)))


def test_a_crop_outside_the_image_is_all_fill() -> None:
    images = noise(4, 3, 8, 8) | 1
    far = Crops(torch.tensor([-8, 8, 0, 100]), torch.tensor([0, 0, -8, -100]), torch.tensor([False, True] * 2))
    assert not crop(images, far).any()
    assert (crop(images, far, fill=9) == 9).all()


def test_fill() -> None:
    images, crops = noise(20, 3, 8, 8), some_crops(20, padding=3)
    found = crop(images, crops, fill=77).numpy()
    for image, cut, place in zip(images.numpy(), found, zip(*crops, strict=True), strict=True):
        assert np.array_equal(cut, by_hand(image, *(int(value) for value in place), fill=77))


def test_identity_crop() -> None:
    images = noise(3, 3, 8, 8).float() / 255
    still = Crops(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), torch.zeros(3).bool())
    assert torch.equal(crop(images, still), images)
    assert torch.equal(crop(images, still._replace(mirrored=torch.ones(3).bool())), images.flip(-1))


def test_both_views_of_a_batch_get_the_same_crop() -> None:
    batch, crops = noise(10, 2, 3, 8, 8), some_crops(10, padding=2)
    found = crop(batch, crops)
    for view in (0, 1):
        assert torch.equal(found[:, view], crop(batch[:, view], crops))


def test_a_crop_does_not_depend_on_batch_or_layout() -> None:
    images, crops = noise(64, 3, 8, 8), some_crops(64, padding=4)
    whole = crop(images, crops)
    assert torch.equal(whole[10:11], crop(images[10:11], Crops(*(values[10:11] for values in crops))))
    assert torch.equal(whole, crop(images.contiguous(memory_format=torch.channels_last), crops))
    assert crop(images[:0], Crops(*(values[:0] for values in crops))).shape == (0, 3, 8, 8)


def test_gradients_reach_the_cropped_pixels() -> None:
    images = noise(2, 1, 3, 3).double().requires_grad_()
    crops = Crops(torch.tensor([1, 0]), torch.tensor([0, -2]), torch.tensor([False, True]))
    crop(images, crops).sum().backward()
    assert images.grad is not None
    assert images.grad[0, 0].tolist() == [[0.0] * 3, [1.0] * 3, [1.0] * 3]
    assert images.grad[1, 0].tolist() == [[1.0, 0.0, 0.0]] * 3


# --- draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crops_are_uniform_and_independent(padding: int) -> None:
    """Chi-square over all combinations; its standard deviation is `sqrt(2 * degrees of freedom)`."""
    top, left, mirrored = draw_crops(MANY, padding, True, seed=0, epoch=0, stream="test")
    assert (top.dtype, left.dtype, mirrored.dtype) == (torch.int64, torch.int64, torch.bool)
    side = 2 * padding + 1
    assert int(top.min()) == int(left.min()) == -padding and int(top.max()) == int(left.max()) == padding
    kind = ((top + padding) * side + left + padding) * 2 + mirrored
    counts = np.bincount(kind.numpy(), minlength=2 * side * side)
    assert len(counts) == 2 * side * side
    expected = 100_000 / len(counts)
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_crops_are_those_of_the_draws() -> None:
    drawn = uniform(torch.arange(20), 3, 7, "name", count=3).numpy()
    found = draw_crops(torch.arange(20), 4, True, seed=3, epoch=7, stream="name")
    assert found.top.tolist() == (np.floor(drawn[:, 0] * 9) - 4).astype(int).tolist()
    assert found.left.tolist() == (np.floor(drawn[:, 1] * 9) - 4).astype(int).tolist()
    assert found.mirrored.tolist() == (drawn[:, 2] < 0.5).tolist()


def test_a_row_gets_the_same_crop_in_any_batch() -> None:
    whole = draw_crops(MANY, 4, True, 0, 0, "test")
    some = torch.tensor([70_000, 5, 5])
    for found, values in zip(draw_crops(some, 4, True, 0, 0, "test"), whole, strict=True):
        assert torch.equal(found, values[some])


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}, {"stream": "other"}])
def test_seeds_epochs_and_streams_are_independent(other: dict[str, Any]) -> None:
    same = {"seed": 0, "epoch": 0, "stream": "test"}
    first, second = (draw_crops(MANY, 4, True, **settings) for settings in (same, {**same, **other}))
    for a, b in zip(first, second, strict=True):
        assert abs(np.corrcoef(a.numpy(), b.numpy())[0, 1]) < 0.013  # four standard deviations


def test_without_flip_and_padding_crops_are_the_identity() -> None:
    assert not draw_crops(MANY, 4, False, 0, 0, "test").mirrored.any()
    still = draw_crops(MANY, 0, False, 0, 0, "test")
    assert not any(bool(values.any()) for values in still)
    # Flipping does not change the position of the crops.
    assert torch.equal(draw_crops(MANY, 4, True, 0, 0, "test").top, draw_crops(MANY, 4, False, 0, 0, "test").top)
