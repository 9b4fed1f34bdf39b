"""Pairs of CIFAR-10 images, cropped and flipped anew each epoch; partners are crops, or attacks made in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from dair_hf.augment.crops import crop, draw_crops
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.settings import Count, Range, Settings
from dair_hf.vision.image_pairs import ImageView, evaluation_rows, file_pairs, rows_between
from dair_hf.vision.labeled_images import LabeledImages


@dataclass
class Cifar10Config(Settings):
    """Data of an experiment on CIFAR-10."""

    cifar10: str = field(
        default="uoft-cs/cifar10",
        metadata={
            "help": "CIFAR-10: folder with parquet files or the original batches, archive of the batches, or name on "
            "the Hub."
        },
    )
    train_rows: Count = field(
        default=45_000, metadata={"help": "Training rows, from the start of the train file (50,000 rows)."}
    )
    validation_rows: Count = field(
        default=5_000, metadata={"help": "Last rows of the train file, not trained on, to choose lambda with."}
    )
    test_rows: Count = field(
        default=10_000, metadata={"help": "Test rows, from the start of the test file; at most the whole file."}
    )
    crop_padding: Annotated[int, Range(low=0, high=31)] = field(
        default=4,
        metadata={
            "help": "Black padding of a training image before a random crop to its size, redrawn each epoch; 0 to 31 "
            "pixels. 4 is usual; 0 disables crops."
        },
    )
    flip: bool = field(
        default=True, metadata={"help": "Flip training images horizontally with probability 1/2, redrawn each epoch."}
    )
    partner: Literal["none", "crop"] = field(
        default="none",
        metadata={
            "help": "Partners of the training rows. none: none in the data (an attack on the model makes them in "
            "training); crop: the same image with another crop and flip."
        },
    )

    def check(self) -> None:
        """Refuse partners that equal their originals."""
        if self.partner == "crop" and not self.crop_padding and not self.flip:
            raise DataError("partner=crop: expected crop_padding or flip, got neither")


@dataclass(frozen=True, eq=False)
class _CroppedView(ImageView):
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


def cifar10_train_pairs(cifar10: Mapping[str, LabeledImages], config: Cifar10Config, seed: int) -> TensorPairs:
    """Return the training pairs: cropped and flipped images, with the configured partners."""
    images = cifar10["train"]
    rows = rows_between(images, 0, config.train_rows, "training")
    original, augmented = (
        _CroppedView(*images, rows, config.crop_padding, config.flip, f"cifar10/train/{view}", seed) for view in VIEWS
    )
    return file_pairs("train", original, augmented if config.partner == "crop" else None)


def cifar10_evaluation_pairs(
    cifar10: Mapping[str, LabeledImages], config: Cifar10Config, split: str = "test", partners: Tensor | None = None
) -> TensorPairs:
    """Return evaluation pairs: unchanged images with the given partners."""
    file, images, rows = evaluation_rows(cifar10, split, config.train_rows, config.validation_rows, config.test_rows)
    augmented = None
    if partners is not None:
        augmented = {"pixel_values": partners.detach().to("cpu", torch.float32), "labels": images.labels[rows]}
    return file_pairs(file, ImageView(*images, rows), augmented)
