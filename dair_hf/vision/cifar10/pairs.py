"""CIFAR-10 as pairs: pictures cropped and mirrored anew each epoch; their partners are made here, or while training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dair_hf.augment.crops import crop, draw_crops
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.cifar10.images import CIFAR10, SIDE
from dair_hf.vision.labelled_images import LabelledImages, file_of, rows_between
from dair_hf.vision.settings import SPLITS, require_choice, require_rows

PARTNERS = ("none", "crop")


@dataclass
class Cifar10Config:
    """Data of an experiment on CIFAR-10.

    Raises:
        DataError: A number out of range, or an unknown choice.

    Example:
        >>> Cifar10Config(crop_padding=0).flip
        True
    """

    cifar10: str = field(
        default="uoft-cs/cifar10",
        metadata={
            "help": "Folder with the parquet files or the original batches of CIFAR-10, the archive of the batches, or "
            "the name of a data set on the Hub."
        },
    )
    train_rows: int = field(
        default=45_000,
        metadata={
            "help": "Training rows, the first of the train file; >= 1. It has 50,000: all leave none to validate."
        },
    )
    validation_rows: int = field(
        default=5_000,
        metadata={"help": "The last rows of the train file, none of them trained on, to choose lambda with; >= 1."},
    )
    test_rows: int = field(
        default=10_000, metadata={"help": "Test rows, the first of the test file; >= 1, at most those that are there."}
    )
    crop_padding: int = field(
        default=4,
        metadata={
            "help": "Black pixels put around a training picture before 32 x 32 are cut out at a random place, drawn "
            "anew each epoch; 0 to 31. 4 is usual, 0 leaves pictures where they are."
        },
    )
    flip: bool = field(
        default=True, metadata={"help": "Mirror a training picture with probability 1/2, drawn anew each epoch."}
    )
    partner: str = field(
        default="none",
        metadata={
            "help": "Partners of the training rows. none: the data hold none; they are made while training, by an "
            "attack on the model. crop: the same picture, cropped and mirrored by draws of its own.",
            "choices": PARTNERS,
        },
    )

    def __post_init__(self) -> None:
        for name in ("train_rows", "validation_rows", "test_rows"):
            require_rows(name, getattr(self, name))
        if not 0 <= self.crop_padding < SIDE:
            raise DataError(
                f"crop_padding={self.crop_padding} must be 0 to {SIDE - 1}, or nothing of a picture may be left"
            )
        require_choice("partner", self.partner, PARTNERS)
        if self.partner == "crop" and not self.crop_padding and not self.flip:
            raise DataError(
                "partner='crop' with crop_padding=0 and flip=False makes partners that are the originals; set one of "
                "them, or partner='none'"
            )


@dataclass(frozen=True, eq=False)
class CroppedView:
    """A view of `TensorPairs`: pictures, cropped and mirrored by draws for each row and epoch.

    Attributes:
        images: `[N, 3, H, W]` uint8, all pictures of the file.
        labels: `[N]` int64, the labels of all of them.
        rows: `[M]` int64, which of them the pairs hold.
        padding: By how many pixels a crop may reach beyond the picture.
        flip: Whether pictures are mirrored.
        stream: What the crops are drawn for; two views of one stream show the same crops.
        seed: Seed of the draws.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    padding: int = 0
    flip: bool = False
    stream: str = ""
    seed: int = 0

    def __call__(self, places: Tensor, epoch: int) -> dict[str, Tensor]:
        """`pixel_values` `[B, 3, H, W]` float32 in 0..1 and `labels` `[B]` int64 of the pairs at `places`."""
        rows = self.rows[places]
        images = self.images.index_select(0, rows)  # an index in brackets takes several times as long
        if self.padding or self.flip:
            images = crop(images, draw_crops(rows, self.padding, self.flip, self.seed, epoch, self.stream))
        return {"pixel_values": images.float().div_(255), "labels": self.labels[rows]}


def train_pairs(cifar10: Mapping[str, LabelledImages], config: Cifar10Config, seed: int) -> TensorPairs:
    """The training pairs: pictures cropped and mirrored, with the partners that the configuration asks for.

    Args:
        cifar10: What `load_cifar10` read, by split; needs "train".
        config: The experiment.
        seed: Seed of the crops.

    Returns:
        `pixel_values` `[3, 32, 32]` in 0..1 and `labels`.

    Raises:
        DataError: The file is missing or has too few rows.
    """
    pictures = file_of(cifar10, "train", "training", CIFAR10)
    rows = rows_between(pictures, 0, config.train_rows, "training")
    original, augmented = (
        CroppedView(*pictures, rows, config.crop_padding, config.flip, f"cifar10/train/{view}", seed)
        for view in ("original", "augmented")
    )
    return TensorPairs(
        original,
        augmented if config.partner == "crop" else None,
        rows=len(rows),
        row_ids=[f"train/{row}" for row in rows.tolist()],
    )


def evaluation_pairs(
    cifar10: Mapping[str, LabelledImages], config: Cifar10Config, split: str = "test", partners: Tensor | None = None
) -> TensorPairs:
    """Pairs for accuracy and CM: pictures as they are, each with the partner that was made of it.

    Args:
        cifar10: What `load_cifar10` read, by split; needs "test", for the validation "train".
        config: The experiment.
        split: "test", or "validation": the last rows of the train file.
        partners: `[M, 3, 32, 32]`, floating, in 0..1, on any device: one for each row, in order, such as the attacked
            pictures; None: no row has one.

    Returns:
        As `train_pairs`.

    Raises:
        DataError: A file is missing or has too few rows, the split does not exist, or the partners do not fit.
    """
    require_choice("split", split, SPLITS)
    file = "test" if split == "test" else "train"
    pictures = file_of(cifar10, file, split, CIFAR10)
    last = len(pictures.labels)
    # Validation rows stand behind the training rows, however many there are.
    start = 0 if split == "test" else max(config.train_rows, last - config.validation_rows)
    stop = min(config.test_rows, last) if split == "test" else start + config.validation_rows
    rows = rows_between(pictures, start, stop, split)
    augmented = None
    if partners is not None:
        shape = [len(rows), *pictures.images.shape[1:]]
        if list(partners.shape) != shape or not partners.is_floating_point():
            raise DataError(
                f"{split}: partners must be floating {shape}, one for each row, found {partners.dtype} "
                f"{list(partners.shape)}"
            )
        augmented = {"pixel_values": partners.detach().to("cpu", torch.float32), "labels": pictures.labels[rows]}
    return TensorPairs(
        CroppedView(*pictures, rows),
        augmented,
        rows=len(rows),
        row_ids=[f"{file}/{row}" for row in rows.tolist()],
    )
