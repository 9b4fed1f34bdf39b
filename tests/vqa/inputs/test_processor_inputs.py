"""Columns, pictures, and what a processor is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.processor_inputs import pictures, processor_inputs


def test_three_rows_of_pixels_are_no_colours() -> None:
    array = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)
    (found,) = pictures(["a"], {"a": array}.__getitem__)
    assert found.size == (4, 3)
    assert found.mode == "RGB"
    assert found.getpixel((1, 0)) == (3, 4, 5)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((4, 4), dtype=np.uint8), r"image 'a': load_image gave shape \[4, 4\] of uint8"),
        (np.zeros((3, 4, 4), dtype=np.uint8), r"shape \[3, 4, 4\]"),
        (np.zeros((4, 4, 3)), r"of float64; it must give \[H, W, 3\] of uint8"),
    ],
)
def test_other_arrays_are_no_pictures(array: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        pictures(["a"], lambda image: array)


def test_a_processor_is_asked_for_padded_tensors() -> None:
    asked: dict[str, Any] = {}

    def processor(**options: Any) -> dict[str, torch.Tensor]:
        asked.update(options)
        return {"input_ids": torch.tensor([[5]])}

    picture = Image.new("RGB", (2, 2))
    assert processor_inputs(processor, [picture], ("how?",), max_length=4) == {"input_ids": torch.tensor([[5]])}
    assert asked == {
        "images": [picture], "text": ["how?"], "padding": True, "return_tensors": "pt", "max_length": 4,
    }  # fmt: skip


def test_what_a_processor_refuses_is_told() -> None:
    class Strict:
        def __call__(self, **options: Any) -> None:
            raise ValueError("0 tokens for 1 image")

    with pytest.raises(
        DataError, match="Strict refused 2 texts, the first 'how\\?': 0 tokens for 1 image; is the image"
    ):
        processor_inputs(Strict(), [], ["how?", "who?"])
