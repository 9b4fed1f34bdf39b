"""From image files to normalised tensors of one size, as a vision model takes them."""

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

# Mean and standard deviation of ImageNet's pixels in 0..1, red, green, blue: what most backbones were trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Pixels:
    """Loads images, resizes them (Pillow, bilinear), and normalises them: `(pixel / 255 - mean) / std`.

    Args:
        load_image: What stands in the rows' image column -> `[H, W, 3]` uint8 RGB; by default it is a path.
        size: Height and width of the result, in pixels; one number for a square. Proportions are not kept, as usual
            where attention shall reach the whole picture.
        mean: Mean of the channels, in 0..1.
        std: Standard deviation of the channels, in 0..1.
        cache_megabytes: Memory for resized images, which then are read and decoded once only; what comes after it is
            full is loaded each time. Each worker process of a data loader has its own.

    Raises:
        DataError: A size below 1, or an image that is no `[H, W, 3]` uint8.

    Example:
        >>> grey = lambda path: np.full((4, 6, 3), 51, dtype=np.uint8)
        >>> pixels = Pixels(grey, size=2, mean=(0.0, 0.1, 0.4), std=(1.0, 1.0, 2.0))(["a.jpg"])
        >>> pixels.shape, pixels[0, :, 0, 0]
        (torch.Size([1, 3, 2, 2]), tensor([ 0.2000,  0.1000, -0.1000]))
    """

    model_input = "pixel_values"

    def __init__(
        self,
        load_image: Callable[[Any], NDArray[np.uint8]] = load_file,
        size: int | tuple[int, int] = 448,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        cache_megabytes: int = 0,
    ) -> None:
        self.load_image = load_image
        self.size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        if min(self.size) < 1:
            raise DataError(f"size={size!r}; height and width must be 1 pixel or more")
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise DataError(f"mean={mean!r}, std={std!r}; three numbers each, and std above 0")
        self._images: dict[Hashable, Tensor] = {}
        self._room = cache_megabytes * 2**20 // (3 * self.size[0] * self.size[1])

    def settings(self) -> dict[str, Any]:
        """All that the result depends on besides the images, as JSON: features computed from it are kept by it."""
        loader = self.load_image if hasattr(self.load_image, "__qualname__") else type(self.load_image)
        return {
            "load_image": f"{loader.__module__}.{loader.__qualname__}",
            "size": list(self.size),
            "resize": "bilinear",
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def __call__(self, images: Sequence[Any]) -> Tensor:
        """Load images.

        Args:
            images: Entries of the image column, N of them.

        Returns:
            `[N, 3, H, W]` float32.
        """
        # (x / 255 - mean) / std as one product and one sum, in place.
        scale = torch.tensor([1 / (255 * std) for std in self.std]).view(3, 1, 1)
        shift = torch.tensor([mean / std for mean, std in zip(self.mean, self.std, strict=True)]).view(3, 1, 1)
        loaded = torch.stack([self._resized(image) for image in images])
        return loaded.to(torch.float32).mul_(scale).sub_(shift)

    def _resized(self, image: Any) -> Tensor:
        if not self._room:
            return self._load(image)
        if (known := self._images.get(image)) is not None:
            return known
        loaded = self._load(image)
        if len(self._images) < self._room:
            self._images[image] = loaded
        return loaded

    def _load(self, image: Any) -> Tensor:
        """`[3, H, W]` uint8."""
        found = self.load_image(image)
        if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] != 3:
            raise DataError(
                f"image {image!r}: load_image gave shape {list(found.shape)} of {found.dtype}; it must give "
                "[H, W, 3] of uint8, red, green, blue"
            )
        height, width = self.size
        if found.shape[:2] != self.size:
            found = np.asarray(Image.fromarray(found).resize((width, height), Image.Resampling.BILINEAR))
        return torch.from_numpy(found.transpose(2, 0, 1).copy())
