"""Recolored, rotated and pasted images against PIL, rot90 and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.augment.images import paste_background, recolor, rotate
from dair_hf.errors import DataError


def noise(*shape: int) -> torch.Tensor:
    """Random images."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def by_pil(images: torch.Tensor, degrees: list[float], fill: int = 0) -> torch.Tensor:
    """Apply `Image.rotate` to each channel."""
    turned = [
        [np.asarray(Image.fromarray(channel).rotate(angle, fillcolor=fill)) for channel in image]
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


def bilinear_oracle(image: np.ndarray, angle: float, fill: float) -> np.ndarray:
    """Interpolate each pixel from its source position; pixels outside are `fill`."""
    height, width = image.shape
    theta = np.deg2rad(angle)

    def at(row: int, column: int) -> float:
        return float(image[row, column]) if 0 <= row < height and 0 <= column < width else fill

    out = np.empty(image.shape)
    for row in range(height):
        for column in range(width):
            right, up = column - (width - 1) / 2, (height - 1) / 2 - row
            x = right * np.cos(theta) + up * np.sin(theta) + (width - 1) / 2
            y = (height - 1) / 2 - (up * np.cos(theta) - right * np.sin(theta))
            left, top = int(np.floor(x)), int(np.floor(y))
            a, b = x - left, y - top
            out[row, column] = (
                (1 - a) * (1 - b) * at(top, left)
                + a * (1 - b) * at(top, left + 1)
                + (1 - a) * b * at(top + 1, left)
                + a * b * at(top + 1, left + 1)
            )
    return out


@pytest.mark.parametrize("size", [(9, 9), (7, 10)])
def test_bilinear_interpolates_the_four_nearest_pixels(size: tuple[int, int]) -> None:
    degrees = [10.0, 45.0, 100.0, 233.3, -17.0]
    images = noise(5, 1, *size).double() / 255
    found = rotate(images, torch.tensor(degrees, dtype=torch.float64), fill=0.25, mode="bilinear")
    for image, angle, turned in zip(images, degrees, found, strict=True):
        assert np.abs(turned[0].numpy() - bilinear_oracle(image[0].numpy(), angle, 0.25)).max() < 1e-10


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
