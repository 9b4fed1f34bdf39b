"""Pairs of CIFAR-10 images, cropped and flipped anew each epoch; partners are crops, or attacks made in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dair_hf.augment.crops import crop, draw_crops
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.vision.cifar10.images import CIFAR10, SIDE
from dair_hf.vision.image_pairs import (
    ImageView,
    evaluation_rows,
    file_of,
    file_pairs,
    require_choice,
    require_rows,
    rows_between,
)
from dair_hf.vision.labeled_images import LabeledImages

PARTNERS = ("none", "crop")


@dataclass
class Cifar10Config:
    """Data of an experiment on CIFAR-10."""

    cifar10: str = field(
        default="uoft-cs/cifar10",
        metadata={
            "help": "CIFAR-10: folder with parquet files or the original batches, archive of the batches, or name on "
            "the Hub."
        },
    )
    train_rows: int = field(
        default=45_000,
        metadata={"help": "Training rows, from the start of the train file (50,000 rows); >= 1."},
    )
    validation_rows: int = field(
        default=5_000,
        metadata={"help": "Last rows of the train file, not trained on, to choose lambda with; >= 1."},
    )
    test_rows: int = field(
        default=10_000, metadata={"help": "Test rows, from the start of the test file; >= 1; at most the whole file."}
    )
    crop_padding: int = field(
        default=4,
        metadata={
            "help": "Black padding of a training image before a random crop to its size, redrawn each epoch; 0 to 31 "
            "pixels. 4 is usual; 0 disables crops."
        },
    )
    flip: bool = field(
        default=True, metadata={"help": "Flip training images horizontally with probability 1/2, redrawn each epoch."}
    )
    partner: str = field(
        default="none",
        metadata={
            "help": "Partners of the training rows. none: none in the data (an attack on the model makes them in "
            "training); crop: the same image with another crop and flip.",
            "choices": PARTNERS,
        },
    )

    def __post_init__(self) -> None:
        for name in ("train_rows", "validation_rows", "test_rows"):
            require_rows(name, getattr(self, name))
        if not 0 <= self.crop_padding < SIDE:
            raise DataError(f"crop_padding={self.crop_padding} must be 0 to {SIDE - 1}, less than the side of an image")
        require_choice("partner", self.partner, PARTNERS)
        if self.partner == "crop" and not self.crop_padding and not self.flip:
            raise DataError(
                "partner='crop' with crop_padding=0 and flip=False gives partners equal to the originals; set one of "
                "them, or partner='none'"
            )


@dataclass(frozen=True, eq=False)
class CroppedView(ImageView):
    """View of randomly cropped and flipped images, redrawn for each row and epoch."""

    padding: int = 0
    flip: bool = False
    stream: str = ""
    seed: int = 0

    def transform(self, images: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """Crop and flip images of file rows."""
        if self.padding or self.flip:
            images = crop(images, draw_crops(rows, self.padding, self.flip, self.seed, epoch, self.stream))
        return super().transform(images, rows, epoch)


def train_pairs(cifar10: Mapping[str, LabeledImages], config: Cifar10Config, seed: int) -> TensorPairs:
    """Return the training pairs: cropped and flipped images, with the configured partners.

    Args:
        cifar10: Files from `load_cifar10` by split; needs "train".

    Returns:
        `pixel_values` `[3, 32, 32]` in 0..1 and `labels`.

    Raises:
        DataError: The file is missing or has too few rows.
    """
    images = file_of(cifar10, "train", "training", CIFAR10)
    rows = rows_between(images, 0, config.train_rows, "training")
    original, augmented = (
        CroppedView(*images, rows, config.crop_padding, config.flip, f"cifar10/train/{view}", seed) for view in VIEWS
    )
    return file_pairs("train", original, augmented if config.partner == "crop" else None)


def evaluation_pairs(
    cifar10: Mapping[str, LabeledImages], config: Cifar10Config, split: str = "test", partners: Tensor | None = None
) -> TensorPairs:
    """Return evaluation pairs: unchanged images with the given partners.

    Args:
        cifar10: Files from `load_cifar10` by split; needs "test", or "train" for validation.
        split: "test", or "validation" for the last rows of the train file.
        partners: `[M, 3, 32, 32]`, floating, in 0..1, on any device: one partner per row, such as attacked images.
            None: no partners.

    Returns:
        As `train_pairs`.

    Raises:
        DataError: A file is missing or has too few rows, the split is unknown, or the partners have a wrong shape.
    """
    file, images, rows = evaluation_rows(
        cifar10,
        split,
        CIFAR10,
        train_rows=config.train_rows,
        validation_rows=config.validation_rows,
        test_rows=config.test_rows,
    )
    augmented = None
    if partners is not None:
        shape = [len(rows), *images.images.shape[1:]]
        if list(partners.shape) != shape or not partners.is_floating_point():
            raise DataError(
                f"{split}: partners must be floating {shape}, one per row, found {partners.dtype} "
                f"{list(partners.shape)}"
            )
        augmented = {"pixel_values": partners.detach().to("cpu", torch.float32), "labels": images.labels[rows]}
    return file_pairs(file, ImageView(*images, rows), augmented)
