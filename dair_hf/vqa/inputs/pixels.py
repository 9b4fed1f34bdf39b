"""Image loading, and pixel tensors of one size, normalized as vision models expect them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dair_hf.errors import DataError
from dair_hf.vqa.readers.images import load_image as load_file

# Mean and standard deviation of the RGB channels of ImageNet, in 0..1; most backbones were trained with these.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

LoadImage = Callable[[Any], NDArray[np.uint8]]


def open_image(image: Any, load_image: LoadImage) -> Image.Image:
    """Load an entry of the image column with `load_image` as a Pillow image.

    Processors get Pillow images because the channels of an array with three rows could be its first or last axis.
    """
    pixels = load_image(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DataError(
            f"image {image!r}: load_image returned shape {list(pixels.shape)} of {pixels.dtype}; it must return "
            "[H, W, 3] of uint8, in the order red, green, blue"
        )
    return Image.fromarray(pixels)


class Pixels:
    """Loads images, resizes them (Pillow, bilinear) and normalizes them: `(pixel / 255 - mean) / std`.

    Args:
        load_image: Function from an entry of the image column to `[H, W, 3]` uint8 RGB; by default the entry is a path.
        size: Height and width of the result in pixels; one number for a square. The aspect ratio is not kept, as usual
            if attention has to cover the whole image.
        mean: Mean of each channel, in 0..1.
        std: Standard deviation of each channel, in 0..1.
        cache_megabytes: Memory for resized images, which are then loaded only once; images beyond it are loaded each
            time. Each worker process of a data loader has its own cache.

    Raises:
        DataError: A setting is out of range, or `load_image` does not return `[H, W, 3]` uint8.

    Example:
        >>> gray = lambda path: np.full((4, 6, 3), 51, dtype=np.uint8)
        >>> pixels = Pixels(gray, size=2, mean=(0.0, 0.1, 0.4), std=(1.0, 1.0, 2.0))(["a.jpg"])
        >>> pixels.shape, pixels[0, :, 0, 0]
        (torch.Size([1, 3, 2, 2]), tensor([ 0.2000,  0.1000, -0.1000]))
    """

    model_input = "pixel_values"

    def __init__(
        self,
        load_image: LoadImage = load_file,
        size: int | tuple[int, int] = 448,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        cache_megabytes: int = 0,
    ) -> None:
        self.load_image = load_image
        self.size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        if min(self.size) < 1:
            raise DataError(f"size={size!r}; height and width must be at least 1 pixel")
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise DataError(f"mean={mean!r}, std={std!r}; both must be three numbers, and std above 0")
        self._cache: dict[Hashable, Tensor] = {}
        self._cache_size = cache_megabytes * 2**20 // (3 * self.size[0] * self.size[1])

    def settings(self) -> dict[str, Any]:
        """Return all settings that affect the result, as JSON values."""
        loader = self.load_image if hasattr(self.load_image, "__qualname__") else type(self.load_image)
        return {
            "load_image": f"{loader.__module__}.{loader.__qualname__}",
            "size": list(self.size),
            "resize": "bilinear",
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def __call__(self, images: Sequence[Any]) -> Tensor:
        """Load N entries of the image column as `[N, 3, H, W]` float32."""
        # (x / 255 - mean) / std as one multiplication and one subtraction, in place.
        scale = torch.tensor([1 / (255 * std) for std in self.std]).view(3, 1, 1)
        shift = torch.tensor([mean / std for mean, std in zip(self.mean, self.std, strict=True)]).view(3, 1, 1)
        loaded = torch.stack([self._resized(image) for image in images])
        return loaded.to(torch.float32).mul_(scale).sub_(shift)

    def _resized(self, image: Any) -> Tensor:
        if not self._cache_size:
            return self._load(image)
        if (cached := self._cache.get(image)) is not None:
            return cached
        loaded = self._load(image)
        if len(self._cache) < self._cache_size:
            self._cache[image] = loaded
        return loaded

    def _load(self, image: Any) -> Tensor:
        """Return `[3, H, W]` uint8."""
        opened = open_image(image, self.load_image)
        height, width = self.size
        if opened.size != (width, height):
            opened = opened.resize((width, height), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(opened).transpose(2, 0, 1).copy())
