"""Reader of CIFAR-10: parquet files, the Hub, or the original files, whose pickles are never executed."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.vision.cifar10.pickled_batches import unpickle_batch
from dair_hf.vision.labeled_images import (
    COLOR,
    ImageLayout,
    LabeledImages,
    checked,
    joined,
    load_images,
    require_split,
)

SIDE = 32  # pixels
CHANNELS = 3
PIXELS = CHANNELS * SIDE * SIDE  # per image, stored as planes: red, green, blue
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Channel statistics of the train file, in 0..1, as commonly used to normalize.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
BINARY = ".bin"
CIFAR10 = ImageLayout(
    name="CIFAR-10",
    hub_name="uoft-cs/cifar10",
    loader="load_cifar10",
    own_files="the original batches",
    columns=("img", "image"),
    mode=COLOR,
    side=SIDE,
    classes=len(CLASSES),
)


def load_cifar10(source: str | os.PathLike[str], split: str) -> LabeledImages:
    """Read one split of CIFAR-10.

    Args:
        source: One of

            - a folder with parquet files: columns `img` or `image` (structs with the bytes of a PNG or JPEG) and
              `label`; the name of a file or of its folder begins with the split;
            - a folder with the original files, `data_batch_1` to `data_batch_5` and `test_batch` of the Python version,
              or the same with `.bin` of the binary version;
            - a published archive of either, such as `cifar-10-python.tar.gz`;
            - a name on the Hub, such as `uoft-cs/cifar10`.

            Files may be in subfolders. The pickles of the Python version are never executed.
        split: "train" or "test".

    Returns:
        Images `[N, 3, 32, 32]` uint8 and labels, indices into `CLASSES`, in the order of the files.

    Raises:
        DataError: The source does not exist, or a file is missing, empty, damaged, lacks a column or holds anything but
            color images of 32 x 32 pixels and labels from 0 to 9. The message names file and row.

    Example:
        >>> load_cifar10("cifar-10-python.tar.gz", "train").images.shape  # doctest: +SKIP
        torch.Size([50000, 3, 32, 32])
    """
    require_split(split)
    if Path(source).is_file():
        return _from_batches(Path(source), split)
    return load_images(source, split, CIFAR10, _from_batches)


def _from_batches(path: Path, split: str) -> LabeledImages:
    files = Source(path)
    for suffix, read in (("", _read_pickled), (BINARY, _read_binary)):
        batches = [name + suffix for name in BATCHES[split]]
        found = [[name for name in files.names if PurePosixPath(name).name == batch] for batch in batches]
        if not any(found):
            continue
        if missing := [batch for batch, names in zip(batches, found, strict=True) if not names]:
            raise DataError(f"{path}: lacks {', '.join(missing)} of the {split} split; fetch CIFAR-10 again")
        if copies := next((names for names in found if len(names) > 1), None):
            raise DataError(f"{path}: holds several copies, {' and '.join(copies)}; give the folder of one of them")
        wanted = {name for [name] in found}
        in_archive_order = (name for name in files.names if name in wanted)
        parts = {name: read(files.read(name), files.label(name)) for name in in_archive_order}
        return joined([parts[name] for [name] in found])
    shown = ", ".join(files.names[:8]) or "nothing"
    first, last = BATCHES[split][0], BATCHES[split][-1]
    expected = first if first == last else f"{first} to {last}"
    raise DataError(
        f"{path}: no {split} split: neither {split}*.parquet nor {expected} nor the same with {BINARY} (found {shown})"
    )


def _read_pickled(content: bytes, label: str) -> LabeledImages:
    batch = unpickle_batch(content, label)
    if missing := {"data", "labels"} - set(batch):
        raise DataError(
            f"{label}: lacks {', '.join(sorted(missing))} (found {', '.join(sorted(batch)) or 'nothing'}); give the "
            "files of CIFAR-10"
        )
    pixels, labels = batch["data"], batch["labels"]
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        found = list(pixels.shape) if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{label}: data is {found}, but must be bytes [N, {PIXELS}]; give the files of CIFAR-10")
    if not isinstance(labels, list) or not all(isinstance(value, int) and abs(value) < 1 << 63 for value in labels):
        raise DataError(f"{label}: labels are not a list of 64-bit integers; give the files of CIFAR-10")
    if len(labels) != len(pixels):
        raise DataError(f"{label}: {len(pixels)} images, but {len(labels)} labels; fetch it again")
    return _images(pixels, np.array(labels, dtype=np.int64), label)


def _read_binary(content: bytes, label: str) -> LabeledImages:
    size = 1 + PIXELS
    if len(content) % size:
        raise DataError(
            f"{label}: {len(content)} bytes are not a multiple of the record size {size} (label and pixels): "
            "truncated, or another data set; fetch it again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    return _images(records[:, 1:], records[:, 0], label)


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.generic], label: str) -> LabeledImages:
    if not len(pixels):
        raise DataError(f"{label}: holds no images; fetch it again")
    return checked(pixels.reshape(-1, CHANNELS, SIDE, SIDE), labels, CIFAR10, label)
