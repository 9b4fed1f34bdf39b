"""Pairs of images from one file: rows of a split, and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.labeled_images import LabeledImages

FILES = {"test": "test", "validation": "train"}  # split -> file


@dataclass(frozen=True, eq=False)
class ImageView:
    """View of `TensorPairs` that shows images unchanged; subclasses transform them.

    Attributes:
        images: `[N, H, W]` or `[N, C, H, W]` uint8, all images of the file.
        labels: `[N]` int64, all labels of the file.
        rows: `[M]` int64, file row of each pair.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor

    def __call__(self, positions: Tensor, epoch: int) -> dict[str, Tensor]:
        """Return `pixel_values` `[B, C, H, W]` float32 in 0..1 and `labels` `[B]` int64 of the pairs at `positions`."""
        rows = self.rows[positions]
        images = self.images.index_select(0, rows)  # several times as fast as indexing with brackets
        return {"pixel_values": self.transform(images, rows, epoch), "labels": self.labels[rows]}

    def transform(self, images: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """Convert uint8 images of file rows to float32 in 0..1."""
        return images.float().div_(255)


def file_pairs(
    file: str,
    original: ImageView,
    augmented: ImageView | Mapping[str, Tensor] | None,
    has_partner: Tensor | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> TensorPairs:
    """Return pairs of two views, with row ids `<file>/<file row>`.

    Args:
        file: "train" or "test".
        original: The original view.
        augmented: The augmented view of the same rows; None: no partners.
        has_partner: `[M]` bool; None: every row.
        columns: Further columns, not for the model.
    """
    return TensorPairs(
        original,
        augmented,
        rows=len(original.rows),
        has_partner=has_partner,
        row_ids=[f"{file}/{row}" for row in original.rows.tolist()],
        columns=columns,
    )


def rows_between(images: LabeledImages, start: int, stop: int, purpose: str) -> Tensor:
    """Return the file rows `start` to `stop - 1`; raise a `DataError` if the file has fewer.

    Example:
        >>> rows_between(LabeledImages(torch.zeros(9, 28, 28), torch.zeros(9)), 2, 5, "validation")
        tensor([2, 3, 4])
    """
    if stop > len(images.labels):
        raise DataError(f"{purpose}: expected rows {start} to {stop - 1}, but the file has {len(images.labels)} rows")
    return torch.arange(start, stop)


def evaluation_rows(
    files: Mapping[str, LabeledImages], split: str, train_rows: int, validation_rows: int, test_rows: int | None = None
) -> tuple[str, LabeledImages, Tensor]:
    """Return file name, images and file rows of a split.

    "test" is the first `test_rows` of the test file (None: all), "validation" the last `validation_rows` of the train
    file, after the training rows.
    """
    file = FILES[split]
    images = files[file]
    length = len(images.labels)
    if split == "test":
        return file, images, torch.arange(length if test_rows is None else min(test_rows, length))
    start = max(train_rows, length - validation_rows)
    return file, images, rows_between(images, start, start + validation_rows, split)
