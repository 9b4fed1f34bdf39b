"""Images of pairs as PNG files inside a page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

MAX_SIDE = 224  # pixels; larger images are scaled down
CHANNELS = (1, 2, 3, 4)


def is_image(value: Any) -> bool:
    """Return whether a value is an image: of PIL, or an array `[H, W]`, `[C, H, W]` or `[H, W, C]` of numbers."""
    if hasattr(value, "convert") and hasattr(value, "size"):
        return True
    if isinstance(value, (str, bytes, dict)) or value is None:
        return False
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return False
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
        return False
    return _channels_last(array) is not None


def png_uris(original: Any, augmented: Any) -> tuple[str, str]:
    """Return both images of a pair as `data:image/png` addresses, on one scale of brightness.

    Integers are taken for 0 to 255, numbers in [0, 1] for shares of white. Others, such as pixels that were
    standardized, are stretched from the lowest to the highest value of both images. With two channels, the first is red
    and the second green.
    """
    arrays = [_pixels(value) for value in (original, augmented)]
    if any(array.dtype.kind == "f" for array in arrays):
        low = min(float(np.nanmin(array)) for array in arrays)
        high = max(float(np.nanmax(array)) for array in arrays)
        if low < -1e-6 or high > 1 + 1e-6:
            arrays = [(array - low) / max(high - low, 1e-12) for array in arrays]
        arrays = [np.nan_to_num(array * 255).clip(0, 255).round() for array in arrays]
    first, second = (_uri(array.astype(np.uint8)) for array in arrays)
    return first, second


def _pixels(value: Any) -> np.ndarray:
    """Return an image as `[H, W, C]` with 1 or 3 channels."""
    if hasattr(value, "convert"):
        value = np.asarray(value.convert("L" if value.mode in ("1", "L") else "RGB"))
    array = _channels_last(np.asarray(value))
    assert array is not None
    if array.dtype.kind in "biu":
        array = array.astype(np.uint8) * (255 if array.dtype.kind == "b" else 1)
    else:
        array = array.astype(np.float64)
    if array.shape[2] == 2:
        return np.concatenate([array, np.zeros_like(array[..., :1])], axis=2)
    return array[..., :3]


def _channels_last(array: np.ndarray) -> np.ndarray | None:
    """Return `[H, W, C]`, or None if the array is not an image."""
    if array.ndim == 2:
        array = array[..., None]
    elif array.shape[0] in CHANNELS and (array.shape[2] not in CHANNELS or array.shape[1] == array.shape[2]):
        array = np.moveaxis(array, 0, 2)
    return array if array.shape[2] in CHANNELS and min(array.shape[:2]) > 1 else None


def _uri(pixels: np.ndarray) -> str:
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if max(image.size) > MAX_SIDE:
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
