"""Composites in eight variants: foregrounds, stripes against their Fourier transform, and donors of backgrounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dair_hf.augment.shapes import SHAPES
from dair_hf.data.counter_rng import uniform
from dair_hf.vision.backgrounds import composites as module
from dair_hf.vision.backgrounds.composites import (
    Composites,
    VariantView,
    _place_foregrounds,
    shape_foregrounds,
    stripes,
)
from dair_hf.vision.backgrounds.variants import MIXED, VARIANTS

ROWS = torch.arange(180)
MANY = torch.arange(90_000)


def composites(**settings: object) -> Composites:
    """Twenty images of each class."""
    defaults = {
        "foregrounds": shape_foregrounds(16), "split": "test", "each": 20, "size": 32, "correlation": 0.8,
    }  # fmt: skip
    return Composites(**{**defaults, **settings})


def waves(images: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Direction (degrees, 0 to 180) and number of stripes in each image, from the peak of its spectrum."""
    padded = 4
    gray = images.double().sum(1).numpy()
    side = gray.shape[-1]
    window = np.hanning(side + 2)[1:-1]
    gray = (gray - gray.mean((1, 2), keepdims=True)) * window[:, None] * window
    spectrum = np.abs(np.fft.fft2(gray, (side * padded, side * padded)))
    frequencies = np.fft.fftfreq(side * padded, 1 / side)
    y, x = np.unravel_index(spectrum.reshape(len(gray), -1).argmax(axis=1), spectrum.shape[1:])
    return np.degrees(np.arctan2(frequencies[y], frequencies[x])) % 180, np.hypot(frequencies[y], frequencies[x])


def test_stripes_have_the_direction_of_their_texture() -> None:
    rows = ROWS[:72]
    images = stripes(rows % 9, rows, 64, "test")
    assert (images.shape, images.dtype) == ((72, 3, 64, 64), torch.float32)
    direction, cycles = waves(images)
    off = (direction - 20 * (rows.numpy() % 9) + 90) % 180 - 90
    assert np.abs(off).max() < 7.0  # 5 degrees plus the resolution of the spectrum
    assert np.abs(off).mean() > 1.5, "directions vary"
    assert 3.8 < cycles.min() < 4.3 and 6.7 < cycles.max() < 7.2


def test_colors_of_stripes_are_uninformative_and_dark() -> None:
    images = stripes(ROWS % 9, ROWS, 64, "test")
    dark, bright = images.amin((2, 3)), images.amax((2, 3))
    assert 0 <= dark.min() < 0.02 and 0.18 < dark.max() < 0.21
    assert 0.19 < bright.min() < 0.23 and 0.58 < bright.max() <= 0.6
    for shade in (dark, bright):
        means = torch.stack([shade[label::9].mean(0) for label in range(9)])
        assert means.std(0).max() < 0.05, "colors are independent of the class"


@pytest.mark.parametrize("correlation", [0.0, 0.8, 1.0])
def test_textures_agree_with_the_class_with_the_given_probability(correlation: float) -> None:
    found = composites(correlation=correlation, each=10_000).textures(MANY)
    shift = ((found - MANY % 9) % 9).bincount(minlength=9).double() / len(MANY)
    sigma = 0.5 / np.sqrt(len(MANY))
    assert float(shift[0]) == pytest.approx(correlation, abs=4 * sigma)
    assert (shift[1:] - (1 - correlation) / 8).abs().max() < 4 * sigma


def test_classes_of_donors() -> None:
    images = composites(each=10_000)
    labels = MANY % 9
    for variant in MIXED:
        donors = images.donors(variant, MANY)
        assert 0 <= int(donors.min()) and int(donors.max()) < len(MANY)
        shift = ((donors - labels) % 9).bincount(minlength=9)
        if variant == "mixed_rand":
            assert (shift.double() / len(MANY) - 1 / 9).abs().max() < 0.005, "any class, including that of the image"
        else:
            assert int(shift[1 if variant == "mixed_next" else 0]) == len(MANY)
        assert len(donors.unique()) > 0.6 * len(MANY), "uniformly drawn: 1 - 1/e of all rows occur"


def test_variants_are_composed_of_foreground_and_background() -> None:
    images = composites()
    shown = {variant: images.render(variant, ROWS).double() for variant in VARIANTS}
    for image in shown.values():
        assert image.shape == (180, 3, 32, 32)
        assert 0 <= float(image.min()) and float(image.max()) <= 1
    background, cut_out = shown["only_bg_t"], shown["no_fg"]
    assert torch.equal(background.float(), images.backgrounds(ROWS))
    # Recover the mask from the image with its foreground cut out.
    mask = (1 - cut_out.sum(1, keepdim=True) / background.sum(1, keepdim=True)).clamp(0, 1)
    assert (cut_out - background * (1 - mask)).abs().max() < 1e-6
    assert (shown["original"] - (shown["only_fg"] + cut_out)).abs().max() < 1e-6
    assert (shown["only_fg"] * (mask == 0)).abs().max() < 1e-6
    assert float((mask > 0.9).flatten(1).double().mean(1).min()) > 0.02, "each image has a foreground"
    for variant in MIXED:
        donors = images.donors(variant, ROWS)
        assert (shown[variant] - (shown["only_fg"] + background[donors] * (1 - mask))).abs().max() < 1e-6
    for row in range(len(ROWS)):
        covered = (cut_out[row] != background[row]).any(0).numpy()
        y, x = covered.nonzero()
        box = np.zeros_like(covered)
        box[y.min() : y.max() + 1, x.min() : x.max() + 1] = True
        expected = background[row].numpy() * ~box
        assert np.abs(shown["only_bg_b"][row].numpy() - expected).max() < 1e-6


def test_row_r_shows_the_foreground_of_class_r_mod_9() -> None:
    shades = torch.arange(9, dtype=torch.uint8).view(9, 1, 1, 1).expand(9, 1, 8, 8) * 28  # as opacity
    images = composites(foregrounds=shades)
    opacity = 1 - images.render("no_fg", ROWS).sum(1) / images.backgrounds(ROWS).sum(1)
    assert torch.equal((opacity.amax((1, 2)) * 255 / 28).round().long(), ROWS % 9)


def test_views_render_rows_in_any_order() -> None:
    images = composites()
    for variant in VARIANTS:
        view = VariantView(images, variant)
        first = view(ROWS, 0)
        assert torch.equal(first["labels"], ROWS % 9) and first["labels"].dtype == torch.int64
        assert first["pixel_values"].dtype == torch.float32
        assert torch.equal(view(ROWS[[5, 1]], 0)["pixel_values"], first["pixel_values"][[5, 1]])


def test_splits_differ() -> None:
    images, other = composites(), composites(split="train")
    for variant in ("only_fg", "only_bg_t"):
        same = (images.render(variant, ROWS) == other.render(variant, ROWS)).flatten(1).all(1)
        assert not same.any()


PLACED = torch.arange(200)
SIZE = 48


def drawn(name: str) -> NDArray[np.float64]:
    return uniform(PLACED, 0, 0, f"{name}/place", count=4).numpy()


def moments(mask: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Area, center (x, y) and angle of the longest axis (degrees, y down) of masks, in pixels."""
    weights = mask[:, 0].double().numpy()
    y, x = np.mgrid[: mask.shape[2], : mask.shape[3]] + 0.5
    area = weights.sum((1, 2))
    center = np.stack([(weights * axis).sum((1, 2)) / area for axis in (x, y)], axis=1)
    dx, dy = x - center[:, 0, None, None], y - center[:, 1, None, None]
    xx, yy, xy = ((weights * product).sum((1, 2)) for product in (dx * dx, dy * dy, dx * dy))
    return area, center, np.degrees(0.5 * np.arctan2(2 * xy, xx - yy))


def test_position_and_size_of_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN", 0.0)  # only an upright square touches the edges
    placed = _place_foregrounds(torch.full((9, 1, 12, 12), 255, dtype=torch.uint8), PLACED % 9, PLACED, SIZE, "test")
    assert placed.colors.shape == (200, 3, SIZE, SIZE)
    assert placed.mask.shape == (200, 1, SIZE, SIZE)
    numbers = drawn("test")
    side = (0.4 + 0.2 * numbers[:, 0]) * SIZE
    area, center, _ = moments(placed.mask)
    assert np.abs(area / side**2 - 1).max() < 0.02, "nothing is cut off"
    expected = SIZE / 2 + (2 * numbers[:, 2:] - 1) * (SIZE - side)[:, None] / 2
    assert np.abs(center - expected).max() < 0.15  # soft edges are cut at the border
    # Some touch each edge.
    edges = placed.mask[:, 0, [0, -1]].amax((0, 2)), placed.mask[:, 0, :, [0, -1]].amax((0, 1))
    assert all(float(edge.min()) > 0.5 for edge in edges)


def test_rotation_of_a_bar() -> None:
    shapes = shape_foregrounds(24)
    bar = torch.full_like(PLACED, list(SHAPES).index("bar"))
    *_, angle = moments(_place_foregrounds(shapes, bar, PLACED, 64, "test").mask)
    expected = (2 * drawn("test")[:, 1] - 1) * 180
    # y points down, hence the sign; a bar is symmetric under 180 degrees.
    off = (angle + expected + 90) % 180 - 90
    inside = np.abs(drawn("test")[:, 2:] - 0.5).max(axis=1) < 0.3  # not cut by the edge
    assert inside.sum() > 50
    assert np.abs(off[inside]).max() < 2.0
