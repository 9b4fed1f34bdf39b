"""Pairs of images from one file: rows of a split, views, and checks of settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.labeled_images import ImageLayout, LabeledImages

SPLITS = ("test", "validation")


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


def file_of(files: Mapping[str, LabeledImages], file: str, purpose: str, layout: ImageLayout) -> LabeledImages:
    """Return one of the loaded files; raise a `DataError` if it was not loaded.

    `purpose` and `layout` are for the message.
    """
    if file not in files:
        raise DataError(
            f"{purpose}: needs the {file} file of {layout.name}; pass {{'{file}': {layout.loader}(source, '{file}')}}"
        )
    return files[file]


def rows_between(images: LabeledImages, start: int, stop: int, purpose: str) -> Tensor:
    """Return the file rows `start` to `stop - 1`, `[stop - start]` int64; raise a `DataError` if the file has fewer.

    Example:
        >>> rows_between(LabeledImages(torch.zeros(9, 28, 28), torch.zeros(9)), 2, 5, "validation")
        tensor([2, 3, 4])
    """
    if not 0 <= start < stop <= len(images.labels):
        raise DataError(
            f"{purpose}: needs rows {start} to {stop - 1}, but the file ends with row {len(images.labels) - 1}; use "
            "fewer rows or the whole file"
        )
    return torch.arange(start, stop)


def evaluation_rows(
    files: Mapping[str, LabeledImages],
    split: str,
    layout: ImageLayout,
    *,
    train_rows: int,
    validation_rows: int,
    test_rows: int | None = None,
) -> tuple[str, LabeledImages, Tensor]:
    """Return file name, images and file rows of a split.

    Args:
        files: Loaded files by split.
        split: "test", the first `test_rows` of the test file (None: all); or "validation", the last `validation_rows`
            of the train file, after the training rows.
        layout: Layout of the data set, for messages.

    Raises:
        DataError: The split is unknown, or a file is missing or has too few rows.
    """
    require_choice("split", split, SPLITS)
    file = "test" if split == "test" else "train"
    images = file_of(files, file, split, layout)
    length = len(images.labels)
    if split == "test":
        start, stop = 0, length if test_rows is None else min(test_rows, length)
    else:
        start = max(train_rows, length - validation_rows)
        stop = start + validation_rows
    return file, images, rows_between(images, start, stop, split)


def require_rows(name: str, value: int) -> None:
    """Raise a `DataError` for a number of rows below 1."""
    if value < 1:
        raise DataError(f"{name}={value} must be at least 1")


def require_fraction(name: str, value: float) -> None:
    """Raise a `DataError` for a fraction outside [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise DataError(f"{name}={value} must be in [0, 1]: 0.25 is every fourth row")


def require_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise a `DataError` for an unknown choice."""
    if value not in choices:
        raise DataError(f"{name}={value!r} is unknown; use one of {', '.join(choices)}")
