"""Collator of images, which the image processor of the model encodes."""

from __future__ import annotations

from typing import Any

from transformers import default_data_collator

IMAGE_COLUMNS = ("image", "img")


class ImageCollator:
    """Collates views with an image in the column `image` or `img`; other columns are stacked.

    Args:
        processor: Image processor of the model: list of images -> `pixel_values`.
        channels: Number of channels of the model; for 3, images of PIL are converted to RGB.

    Attributes:
        columns: Columns that are read besides those of the model.

    Example:
        >>> trainer = DAIRTrainer(vit, args, train_dataset=images, processing_class=processor)  # doctest: +SKIP
    """

    columns = IMAGE_COLUMNS

    def __init__(self, processor: Any, channels: int = 3) -> None:
        self.processor = processor
        self.channels = channels

    def __call__(self, views: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch of views."""
        others = [{name: value for name, value in view.items() if name not in self.columns} for view in views]
        batch: dict[str, Any] = dict(default_data_collator(others)) if others[0] else {}
        images = [view[name] for view in views for name in self.columns if name in view]
        if images:
            if self.channels == 3:
                images = [image.convert("RGB") if hasattr(image, "convert") else image for image in images]
            batch |= self.processor(images, return_tensors="pt")
        return batch
