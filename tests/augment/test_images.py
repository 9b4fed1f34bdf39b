"""Recolored, rotated, pasted and cropped images against PIL, rot90 and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.augment.images import Crops, crop, draw_crops, paste_background, recolor, rotate
from dair_hf.data.counter_rng import uniform
from dair_hf.errors import DataError


def noise(*shape: int) -> torch.Tensor:
    """Random images."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def by_pil(images: torch.Tensor, degrees: list[float]) -> torch.Tensor:
    """Apply `Image.rotate` to each channel."""
    turned = [
        [np.asarray(Image.fromarray(channel).rotate(angle)) for channel in image]
        for image, angle in zip(images.numpy(), degrees, strict=True)
    ]
    return torch.from_numpy(np.array(turned))


ANGLES = [0.0, 90.0, 180.0, 270.0, 360.0, -90.0, 450.0, 30.0, 45.0, 60.0, 22.5, 67.5, 0.01, 359.99]


@pytest.mark.parametrize("size", [(28, 28), (29, 29), (20, 31), (31, 20), (1, 5)])
def test_nearest_matches_pil_exactly(size: tuple[int, int]) -> None:
    drawn = np.random.default_rng(0).uniform(-360, 360, 186).tolist()
    images = noise(200, 2, *size)
    degrees = torch.tensor(ANGLES + drawn, dtype=torch.float64)
    assert torch.equal(rotate(images, degrees), by_pil(images, degrees.tolist()))


def test_recolor_scales_each_channel() -> None:
    images, colors = torch.rand(6, 5, 4), torch.rand(6, 3)
    found = recolor(images, colors)
    expected = np.einsum("bhw,bc->bchw", images.double().numpy(), colors.double().numpy())
    assert found.shape == (6, 3, 5, 4)
    assert np.abs(found.numpy() - expected).max() < 1e-6
    assert torch.equal(found, recolor(images[:, None], colors))
    red = recolor(images, torch.tensor([[1.0, 0.0, 0.0]]).expand(6, 3))
    assert torch.equal(red[:, 0], images)
    assert not red[:, 1:].any()


def test_bool_masks_select_and_soft_masks_blend() -> None:
    images, backgrounds = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    hard = torch.rand(2, 1, 4, 5) < 0.5
    soft = torch.rand(2, 1, 4, 5)
    assert np.array_equal(paste_background(images, hard, backgrounds), np.where(hard, images, backgrounds))
    expected = soft.double() * images.double() + (1 - soft.double()) * backgrounds.double()
    assert (paste_background(images, soft, backgrounds) - expected).abs().max() < 1e-6
    assert torch.equal(paste_background(images, hard.float(), backgrounds), paste_background(images, hard, backgrounds))


@pytest.mark.parametrize(("side", "angle"), [(8193, 0.0), (4, float("nan")), (4, float("inf"))])
def test_rotations_that_would_be_wrong_are_refused(side: int, angle: float) -> None:
    with pytest.raises(DataError, match="rotate"):
        rotate(torch.zeros(2, 1, 1, side), torch.tensor([0.0, angle]))


# ---- crops ----

MANY = torch.arange(100_000)


def by_hand(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    """Pad, slice and flip one image `[..., H, W]`."""
    wide = 50
    height, width = image.shape[-2:]
    padded = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(wide, wide)] * 2)
    cut = padded[..., wide + top : wide + top + height, wide + left : wide + left + width]
    return cut[..., ::-1] if mirrored else cut


@pytest.mark.parametrize("shape", [(40, 3, 32, 32), (40, 1, 7, 12), (40, 12, 7), (40, 2, 3, 8, 8), (40, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bool])
def test_crops_match_padding_and_slicing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    top, left = (torch.randint(-5, 6, (40,), generator=generator) for _ in range(2))
    images, crops = noise(*shape).to(dtype), Crops(top, left, torch.rand(40, generator=generator) < 0.5)
    found = crop(images, crops)
    assert (found.shape, found.dtype) == (images.shape, dtype) and found.is_contiguous()
    for image, cut, place in zip(images.numpy(), found.numpy(), zip(*crops, strict=True), strict=True):
        assert np.array_equal(cut, by_hand(image, *(int(value) for value in place)))


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
