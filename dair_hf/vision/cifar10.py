"""CIFAR-10: its files, training images and pairs of an image and its adversarial example."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dair_hf.augment.images import crop, draw_crops
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.settings import Count, Range, Settings
from dair_hf.vision.image_pairs import ImageView, evaluation_rows, file_pairs, rows_between
from dair_hf.vision.labeled_images import ImageLayout, LabeledImages, checked, joined, load_images

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
SHAPE = (3, 32, 32)  # of an image, stored as planes: red, green, blue
CIFAR10 = ImageLayout(columns=("img", "image"), mode="RGB", side=32, classes=len(CLASSES))


def load_cifar10(source: str | os.PathLike[str], split: str) -> LabeledImages:
    """Read one split of CIFAR-10.

    Args:
        source: One of

            - a folder with parquet files: columns `img` or `image` (structs with the bytes of a PNG or JPEG) and
              `label`; the name of a file or of its folder begins with the split;
            - a folder with the files of the binary version, `data_batch_1.bin` to `data_batch_5.bin` and
              `test_batch.bin`, or their published archive, `cifar-10-binary.tar.gz`;
            - a name on the Hub, such as `uoft-cs/cifar10`.

            Files may be in subfolders. The Python version is not read: its files are pickles, which may run any code.
        split: "train" or "test".

    Returns:
        Images `[N, 3, 32, 32]` uint8 and labels, indices into `CLASSES`, in the order of the files.

    Raises:
        DataError: The source does not exist, a file of the split is missing, or it holds anything but color images of
            32 x 32 pixels and labels from 0 to 9.

    Example:
        >>> load_cifar10("cifar-10-binary.tar.gz", "train").images.shape  # doctest: +SKIP
        torch.Size([50000, 3, 32, 32])
    """
    if Path(source).is_file():
        return _from_batches(Path(source), split)
    return load_images(source, split, CIFAR10, _from_batches)


def _from_batches(path: Path, split: str) -> LabeledImages:
    files, expected = Source(path), BATCHES[split]
    found = sorted((PurePosixPath(name).name, name) for name in files.names if PurePosixPath(name).name in expected)
    if [batch for batch, _ in found] != expected:
        names = ", ".join(name for _, name in found) or ", ".join(files.names[:8])
        raise DataError(f"{path}: expected {split}*.parquet, or each of {', '.join(expected)} once; found {names}")
    return joined([_read_batch(files.read(name), f"{path}, {name}") for _, name in found])


def _read_batch(content: bytes, label: str) -> LabeledImages:
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + np.prod(SHAPE))
    return checked(records[:, 1:].reshape(-1, *SHAPE), records[:, 0], CIFAR10, label)


@dataclass
class Cifar10Config(Settings):
    """Data of an experiment on CIFAR-10."""

    cifar10: str = field(
        default="uoft-cs/cifar10",
        metadata={
            "help": "CIFAR-10: folder with parquet files or binary batches, archive of the batches, or name on the Hub."
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
    """Return the training rows, cropped and flipped images without partners, which an attack makes in training."""
    images = cifar10["train"]
    rows = rows_between(images, 0, config.train_rows, "training")
    crops = _CroppedView(*images, rows, config.crop_padding, config.flip, "cifar10/train/original", seed)
    return file_pairs("train", crops, None)


def cifar10_evaluation_pairs(
    cifar10: Mapping[str, LabeledImages], config: Cifar10Config, split: str = "test", partners: Tensor | None = None
) -> TensorPairs:
    """Return evaluation pairs: unchanged images with the given partners."""
    file, images, rows = evaluation_rows(cifar10, split, config.train_rows, config.validation_rows, config.test_rows)
    augmented = None
    if partners is not None:
        augmented = {"pixel_values": partners.detach().to("cpu", torch.float32), "labels": images.labels[rows]}
    return file_pairs(file, ImageView(*images, rows), augmented)
