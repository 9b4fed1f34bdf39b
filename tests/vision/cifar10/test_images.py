"""Reader of CIFAR-10: each published format, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vision.cifar10.images import CIFAR10, CLASSES, MEAN, STD, load_cifar10
from dair_hf.vision.labeled_images import LabeledImages, _from_hub
from tests.fixtures.cifar import (
    binary,
    noise_images,
    part,
    pickle_of,
    pickled,
    pickled_array,
    write_archive,
    write_batches,
    write_parquet,
)
from tests.fixtures.cpu_time import cpu_time

TRAIN, TEST = noise_images(17), noise_images(4, seed=1)
FOLDERS = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}
VERSIONS = pytest.mark.parametrize("version", list(FOLDERS))


def same(found: LabeledImages, expected: LabeledImages) -> bool:
    assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
    assert found.images.is_contiguous()
    return torch.equal(found.images, expected.images) and torch.equal(found.labels, expected.labels)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["img", "image"])
@pytest.mark.parametrize("name", ["train.parquet", "plain_text/train-00000-of-00001.parquet"])
def test_parquet(tmp_path: Path, name: str, column: str) -> None:
    write_parquet(tmp_path / name, TRAIN, column=column)
    write_parquet(tmp_path / name.replace("train", "test"), TEST, column=column)
    assert same(load_cifar10(tmp_path, "train"), TRAIN)
    assert same(load_cifar10(str(tmp_path), "test"), TEST)


def test_jpeg(tmp_path: Path) -> None:
    """Compression hardly changes a smooth image, and its channels stay in order."""
    ramp = np.linspace(0, 255, 32)
    channels = [np.tile(ramp, (32, 1)), np.tile(ramp[:, None], (1, 32)), np.full((32, 32), 90.0)]
    original = LabeledImages(torch.from_numpy(np.stack(channels).round().astype(np.uint8))[None], torch.tensor([3]))
    write_parquet(tmp_path / "train.parquet", original, form="JPEG")
    found = load_cifar10(tmp_path, "train").images.int()
    assert 0 < (found - original.images.int()).abs().max() < 24


@VERSIONS
@pytest.mark.parametrize("above", ["", "data"])
def test_the_original_batches(tmp_path: Path, version: str, above: str) -> None:
    folder = write_batches(tmp_path / above / FOLDERS[version], TRAIN, TEST, version)
    for source in (tmp_path, folder):
        assert same(load_cifar10(source, "train"), TRAIN)
        assert same(load_cifar10(source, "test"), TEST)


@VERSIONS
def test_the_published_archive(tmp_path: Path, version: str) -> None:
    folder = write_batches(tmp_path / "made" / FOLDERS[version], TRAIN, TEST, version)
    archive = write_archive(tmp_path / f"cifar-10-{version}.tar.gz", folder)
    assert same(load_cifar10(archive, "train"), TRAIN)
    assert same(load_cifar10(str(archive), "test"), TEST)


def test_a_batch_in_fortran_order(tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle_of(TEST, fortran_order=True))
    assert same(load_cifar10(tmp_path, "test"), TEST)


def test_the_python_version_has_priority(tmp_path: Path) -> None:
    write_batches(tmp_path / FOLDERS["python"], TRAIN, TEST, "python")
    write_batches(tmp_path / FOLDERS["binary"], TRAIN, noise_images(4, seed=2), "binary")
    assert same(load_cifar10(tmp_path, "test"), TEST)
    assert same(load_cifar10(tmp_path / FOLDERS["binary"], "test"), noise_images(4, seed=2))


def test_tensors_are_writable(tmp_path: Path) -> None:
    for version in FOLDERS:
        found = load_cifar10(write_batches(tmp_path / version, TRAIN, TEST, version), "test")
        found.images[0], found.labels[0] = 0, 0


def test_loading_through_datasets(tmp_path: Path) -> None:
    """`load_dataset` accepts a folder in the layout of the Hub."""
    for split, images in (("train", TRAIN), ("test", TEST)):
        write_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", images)
    assert same(_from_hub(str(tmp_path), "train", CIFAR10), TRAIN)
    assert same(_from_hub(str(tmp_path), "test", CIFAR10), TEST)


@pytest.mark.realdata
def test_the_real_images(real_data: Path) -> None:
    """The local copies are compressed, so check statistics over all pixels."""
    with cpu_time() as spent:
        train, test = (load_cifar10(real_data / "cifar10", split) for split in ("train", "test"))
    assert spent.seconds < 30
    assert (train.images.shape, test.images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert train.labels.bincount().tolist() == [5_000] * 10
    assert test.labels.bincount().tolist() == [1_000] * 10
    # The copies are in another order than the original files. Airplanes are on blue sky, frogs are not.
    blue = [
        test.images[test.labels == CLASSES.index(name)].double().mean(dim=(0, 2, 3)) for name in ("airplane", "frog")
    ]
    assert blue[0][2] - blue[0][0] > 10 > 0 > blue[1][2] - blue[1][0]
    pixels = train.images.flatten(2).double() / 255
    assert (pixels.mean(dim=(0, 2)) - torch.tensor(MEAN)).abs().max() < 0.002
    assert (pixels.transpose(0, 1).flatten(1).std(dim=1) - torch.tensor(STD)).abs().max() < 0.002


# --- missing files --------------------------------------------------------------------------------------------------


def test_invalid_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'val' is unknown; use one of train, test"):
        load_cifar10(tmp_path, "val")
    with pytest.raises(DataError, match="nowhere: no such folder; give one with parquet files or the original batches"):
        load_cifar10(tmp_path / "nowhere", "train")
    with pytest.raises(DataError, match="nobody/nothing: neither a local folder nor a data set with a train split on"):
        load_cifar10("nobody/nothing", "train")
    (tmp_path / "notes.txt").write_text("no images")
    with pytest.raises(DataError, match=r"notes.txt: no test split: neither test\*.parquet .* \(found notes.txt\)"):
        load_cifar10(tmp_path / "notes.txt", "test")


def test_missing_splits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"no train split: neither train\*.parquet nor data_batch_1 to data_batch_5 nor the same with .bin "
        r"\(found nothing\)",
    ):
        load_cifar10(tmp_path, "train")
    (tmp_path / "test_batch").write_bytes(pickle_of(TEST))
    with pytest.raises(DataError, match=r"no train split: .* \(found test_batch\)"):
        load_cifar10(tmp_path, "train")
    assert len(load_cifar10(tmp_path / "test_batch", "test").labels) == 4


@VERSIONS
def test_missing_and_duplicate_batches_are_refused(tmp_path: Path, version: str) -> None:
    folder = write_batches(tmp_path / "one", TRAIN, TEST, version)
    write_batches(tmp_path / "two", TRAIN, TEST, version)
    with pytest.raises(DataError, match=r"holds several copies, one/data_batch_1.* and two/data_batch_1.*; give the f"):
        load_cifar10(tmp_path, "train")
    for number in (2, 5):
        next(folder.glob(f"data_batch_{number}*")).unlink()
    end = ".bin" if version == "binary" else ""
    with pytest.raises(DataError, match=f"one: lacks data_batch_2{end}, data_batch_5{end} of the train split; fetch"):
        load_cifar10(folder, "train")


# --- damaged and foreign batches ------------------------------------------------------------------------------------

ROWS = TEST.images.numpy().reshape(4, -1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickled(pickled_array(ROWS), [1, 2, 3, 10]), "row 3: label 10 is not a class; labels must be 0 to 9"),
        (pickled(pickled_array(ROWS), [1, 2, -1, 3]), "row 2: label -1 is not a class"),
        (pickled(pickled_array(ROWS), [1, 2, 3]), "4 images, but 3 labels; fetch it again"),
        (pickled(pickled_array(ROWS[:0]), []), "holds no images; fetch it again"),
        (pickled(pickled_array(ROWS[:, :784]), [1] * 4), r"data is \[4, 784\], but must be bytes \[N, 3072\]"),
        (pickled(b"]", [1] * 4), r"data is list, but must be bytes \[N, 3072\]; give the files of CIFAR-10"),
        (
            pickled(pickled_array(ROWS), [1] * 4).replace(b"labels", b"fine_l"),
            r"lacks labels \(found batch_label, data, f",
        ),
        (b"\x80\x02}.", r"lacks data, labels \(found nothing\)"),
        (pickled(pickled_array(ROWS), [1] * 4, labels=b"N"), "labels are not a list of 64-bit integers"),
        (pickled(pickled_array(ROWS), [1] * 4, labels=b"](NNNNe"), "labels are not a list of 64-bit integers"),
        (pickled(pickled_array(ROWS), [1] * 4, labels=b"]\x8a\x09" + b"\x01" * 9 + b"a"), "labels are not a list"),
        (pickle_of(TEST)[:-1], "not a pickle, or a damaged one"),
        (b"", "not a pickle, or a damaged one"),
    ],
)
def test_invalid_pickles_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="test_batch: " + message):
        load_cifar10(tmp_path, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (binary(TEST)[:-1], r"12291 bytes are not a multiple of the record size 3073 \(label and pixels\)"),
        (binary(TEST) + b"\0", "12293 bytes are not a multiple of the record size"),
        (b"", "holds no images; fetch it again"),
        (binary(part(TEST, 0, 1)) + b"\x0a" + bytes(3072), "row 1: label 10 is not a class"),
    ],
)
def test_invalid_binary_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match="test_batch.bin: " + message):
        load_cifar10(tmp_path, "test")


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    folder = write_batches(tmp_path / "made", TRAIN, TEST, "python")
    archive = write_archive(tmp_path / "cifar-10-python.tar.gz", folder)
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(DataError, match="cifar-10-python.tar.gz: not a readable tar archive"):
        load_cifar10(archive, "test")


@pytest.mark.parametrize("wrong", [{"labels": torch.tensor([1, 2, 3, 10])}, {"images": TEST.images[:, :, :16]}])
def test_parquet_of_another_data_set_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_parquet(tmp_path / "test.parquet", TEST._replace(**wrong))
    with pytest.raises(
        DataError, match=r"test.parquet: row (3: label 10 is not a class|0: an image of 32 x 16 pixels)"
    ):
        load_cifar10(tmp_path, "test")
