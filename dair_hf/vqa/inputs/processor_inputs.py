"""What a model's own processor makes of images and texts, with its refusals in the user's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dair_hf.errors import DataError

LoadImage = Callable[[Any], NDArray[np.uint8]]


def pictures(images: Sequence[Any], load_image: LoadImage) -> list[Image.Image]:
    """Images as every processor takes them.

    Args:
        images: Entries of the image column.
        load_image: Loads one of them: `[H, W, 3]` uint8 RGB.

    Returns:
        Pictures of Pillow: an array with three rows could have its colours first or last.

    Raises:
        DataError: `load_image` gave something else.

    Example:
        >>> pictures(["a.png"], lambda path: np.zeros((4, 6, 3), dtype=np.uint8))[0].size
        (6, 4)
    """
    loaded = [load_image(image) for image in images]
    for image, found in zip(images, loaded, strict=True):
        if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] != 3:
            raise DataError(
                f"image {image!r}: load_image gave shape {list(found.shape)} of {found.dtype}; it must give "
                "[H, W, 3] of uint8, red, green, blue"
            )
    return [Image.fromarray(found) for found in loaded]


def processor_inputs(processor: Any, images: Sequence[Any], texts: Sequence[str], **options: Any) -> dict[str, Tensor]:
    """The model's inputs for one image a text.

    Args:
        processor: The model's own.
        images: Pictures, or a list of one picture for each text where the processor could take a plain list for the
            images of a single text.
        texts: N texts.
        **options: More arguments of the processor.

    Returns:
        Tensors, tokens padded to the longest text.

    Raises:
        DataError: The processor refuses them.

    Example:
        >>> processor_inputs(processor, pictures(["a.jpg"], load_image), ["how many?"])  # doctest: +SKIP
    """
    try:
        return dict(processor(images=images, text=list(texts), padding=True, return_tensors="pt", **options))
    except ValueError as error:
        raise DataError(
            f"{type(processor).__name__} refused {len(texts)} texts, the first {texts[0]!r}: {error}; is the image "
            "token in it as often as the model wants it?"
        ) from error
