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


# --- rotate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(28, 28), (29, 29), (20, 31), (31, 20), (1, 5)])
def test_nearest_matches_pil_exactly(size: tuple[int, int]) -> None:
    drawn = np.random.default_rng(0).uniform(-360, 360, 186).tolist()
    images = noise(200, 2, *size)
    degrees = torch.tensor(ANGLES + drawn, dtype=torch.float64)
    assert torch.equal(rotate(images, degrees), by_pil(images, degrees.tolist()))


def test_fill() -> None:
    images = noise(50, 1, 28, 28)
    degrees = torch.linspace(0, 180, 50, dtype=torch.float64)
    found = rotate(images, degrees, fill=77)
    assert torch.equal(found, by_pil(images, degrees.tolist(), fill=77))
    assert not torch.equal(found, rotate(images, degrees))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3, 4])
def test_right_angles_are_exact(mode: str, quarters: int) -> None:
    images = noise(4, 3, 28, 28).double()
    degrees = torch.full((4,), 90.0 * quarters)
    expected = torch.rot90(images, quarters, dims=(2, 3))
    if mode == "nearest":
        assert torch.equal(rotate(images, degrees), expected)
    else:
        assert (rotate(images, degrees, mode=mode) - expected).abs().max() < 1e-9


def test_positive_angles_rotate_counter_clockwise() -> None:
    """A mark on the right moves to the top."""
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, 2, 4] = 1
    for mode in ("nearest", "bilinear"):
        assert rotate(image, torch.tensor([90.0]), mode=mode)[0, 0, 0, 2] == pytest.approx(1.0, abs=1e-6)


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


def test_a_rotation_does_not_depend_on_the_batch() -> None:
    images, degrees = noise(64, 1, 28, 28).float(), torch.rand(64, generator=torch.Generator().manual_seed(1)) * 360
    whole = rotate(images, degrees)
    assert torch.equal(whole[10:11], rotate(images[10:11], degrees[10:11]))
    assert torch.equal(whole.flip(0), rotate(images.flip(0), degrees.flip(0)))
    assert rotate(images[:0], degrees[:0]).shape == (0, 1, 28, 28)
    assert whole.dtype == torch.float32


# --- recolor and paste ----------------------------------------------------------------------------------------------


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


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "angle"), [(8193, 0.0), (4, float("nan")), (4, float("inf"))])
def test_rotations_that_would_be_wrong_are_refused(side: int, angle: float) -> None:
    with pytest.raises(DataError, match="rotate"):
        rotate(torch.zeros(2, 1, 1, side), torch.tensor([0.0, angle]))
