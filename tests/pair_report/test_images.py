"""Images: what counts as one, and the pixels of the PNG files."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.pair_report.images import MAX_SIDE, is_image, png_uris


def pixels(uri: str) -> np.ndarray:
    head, _, content = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(1, 28, 28), True),
        (np.zeros((28, 28, 3)), True),
        (np.zeros((8, 8), np.uint8).tolist(), True),
        (Image.new("RGB", (4, 4)), True),
        (np.zeros((6, 8, 8)), False),
        (np.zeros((1, 1, 9)), False),
        (np.zeros(9), False),
        ([[1], [1, 2]], False),
        ("text", False),
        (None, False),
    ],
)
def test_what_is_an_image(value: Any, expected: bool) -> None:
    assert is_image(value) is expected


def test_shares_of_white_become_bytes() -> None:
    left, right = png_uris(torch.tensor([[[0.0, 0.5], [1.0, 0.2]]]), torch.zeros(1, 2, 2))
    assert pixels(left).tolist() == [[0, 128], [255, 51]]
    assert pixels(right).tolist() == [[0, 0], [0, 0]]


def test_standardized_pixels_are_stretched_over_both_views() -> None:
    left, right = png_uris(np.array([[-1.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 1.0], [0.0, 0.0]]))
    assert pixels(left).tolist() == [[0, 64], [64, 64]]
    assert pixels(right).tolist() == [[255, 128], [64, 64]]


def test_channels_become_colors() -> None:
    red_green = np.zeros((2, 4, 5))
    red_green[0] = 1.0
    assert pixels(png_uris(red_green, red_green)[0])[0, 0].tolist() == [255, 0, 0]
    last = np.zeros((4, 5, 3), np.uint8)
    last[..., 2] = 7
    assert pixels(png_uris(last, last)[0])[0, 0].tolist() == [0, 0, 7]
    image = Image.new("RGB", (5, 4), (1, 2, 3))
    assert pixels(png_uris(image, image)[0])[0, 0].tolist() == [1, 2, 3]


def test_large_images_are_scaled_down_and_nan_is_black() -> None:
    large = np.full((3, 500, 250), np.nan)
    large[0, 0, 0] = 1.0
    assert pixels(png_uris(large, large)[0]).shape == (MAX_SIDE, MAX_SIDE // 2, 3)
