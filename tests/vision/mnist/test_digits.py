"""Reader of MNIST: parquet, IDX, the layout of the Hub, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vision.labeled_images import _from_hub
from dair_hf.vision.mnist.digits import MNIST, Digits, load_mnist
from tests.fixtures.cpu_time import cpu_time
from tests.fixtures.digits import idx, noise_digits, png, write_idx, write_parquet

DIGITS = noise_digits(20)


def same(found: Digits, expected: Digits) -> bool:
    assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
    return torch.equal(found.images, expected.images) and torch.equal(found.labels, expected.labels)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["train.parquet", "mnist/train-00000-of-00001.parquet", "default/train/0000.parquet", "train_0.parquet"]
)
def test_parquet_in_layouts_of_the_hub(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / name, DIGITS)
    write_parquet(tmp_path / name.replace("train", "test"), noise_digits(7, seed=1))
    assert same(load_mnist(tmp_path, "train"), DIGITS)
    assert same(load_mnist(str(tmp_path), "test"), noise_digits(7, seed=1))


def test_parts_of_a_split_are_joined_in_order(tmp_path: Path) -> None:
    for part in range(3):
        write_parquet(tmp_path / f"train-0000{part}-of-00003.parquet", Digits(*(t[part::3] for t in DIGITS)))
    expected = Digits(*(torch.cat([t[part::3] for part in range(3)]) for t in DIGITS))
    assert same(load_mnist(tmp_path, "train"), expected)


def test_other_lossless_formats(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", DIGITS, form="BMP")
    assert same(load_mnist(tmp_path, "train"), DIGITS)


def test_images_may_be_plain_bytes(tmp_path: Path) -> None:
    table = pa.table({"image": [png(DIGITS.images[0].numpy())], "label": pa.array([3], pa.int8())})
    pq.write_table(table, tmp_path / "train.parquet")
    assert same(load_mnist(tmp_path, "train"), Digits(DIGITS.images[:1], torch.tensor([3])))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dot", ["-", "."])
def test_idx(tmp_path: Path, compressed: bool, dot: str) -> None:
    write_idx(tmp_path, "train", DIGITS, compressed=compressed, dot=dot)
    write_idx(tmp_path, "t10k", noise_digits(3, seed=1), compressed=compressed, dot=dot)
    assert same(load_mnist(tmp_path, "train"), DIGITS)
    assert same(load_mnist(tmp_path, "test"), noise_digits(3, seed=1))


def test_tensors_are_writable(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", DIGITS)
    load_mnist(tmp_path, "train").images[0] = 0


def test_loading_through_datasets(tmp_path: Path) -> None:
    """`load_dataset` accepts a folder in the layout of the Hub."""
    for split, digits in (("train", DIGITS), ("test", noise_digits(7, seed=1))):
        write_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", digits)
    assert same(_from_hub(str(tmp_path), "train", MNIST), DIGITS)
    assert same(_from_hub(str(tmp_path), "test", MNIST), noise_digits(7, seed=1))


@pytest.mark.realdata
def test_the_real_digits(real_data: Path) -> None:
    with cpu_time() as spent:
        train, test = (load_mnist(real_data / "mnist", split) for split in ("train", "test"))
    assert spent.seconds < 20
    assert (train.images.shape, test.images.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    # The counts of each digit, as published.
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    # The statistics commonly used for normalization.
    pixels = train.images.double() / 255
    assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (0.1307, 0.3081)


# --- missing files --------------------------------------------------------------------------------------------------


def test_invalid_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'val' is unknown; use one of train, test"):
        load_mnist(tmp_path, "val")
    with pytest.raises(DataError, match="nowhere: no such folder; give one with parquet files or IDX files"):
        load_mnist(tmp_path / "nowhere", "train")
    with pytest.raises(DataError, match=r"train.parquet: is a file; give its folder"):
        load_mnist(write_parquet(tmp_path / "train.parquet", DIGITS), "train")
    with pytest.raises(DataError, match="nobody/nothing: neither a local folder nor a data set with a train split on"):
        load_mnist("nobody/nothing", "train")


def test_missing_splits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train split: neither train\*.parquet nor .* \(found nothing\)"):
        load_mnist(tmp_path, "train")
    write_parquet(tmp_path / "train.parquet", DIGITS)
    with pytest.raises(DataError, match=r"no test split: .* both of t10k-images.* \(found train.parquet\)"):
        load_mnist(tmp_path, "test")
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(DIGITS.images.numpy()))
    with pytest.raises(DataError, match="no test split"):
        load_mnist(tmp_path, "test")
    write_parquet(tmp_path / "trained.parquet", DIGITS)  # another word that begins with the split
    assert len(load_mnist(tmp_path, "train").labels) == 20


def test_two_data_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("digits", "fashion"):
        write_parquet(tmp_path / name / "train.parquet", DIGITS)
    with pytest.raises(DataError, match=r"holds train files in several folders, .*digits, .*fashion; give one"):
        load_mnist(tmp_path, "train")


# --- damaged and foreign parquet ------------------------------------------------------------------------------------

IMAGE = {"bytes": png(DIGITS.images[0].numpy()), "path": None}


def image(content: bytes | None) -> dict[str, Any]:
    return {"bytes": content, "path": None}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [IMAGE], "digit": [1]}, r"lacks column label \(found image, digit\)"),
        ({"pixels": [0], "digit": [1]}, r"lacks column image, label \(found pixels, digit\)"),
        ({"image": [IMAGE][:0], "label": [1][:0]}, "holds no rows; fetch it again"),
        ({"image": [IMAGE], "label": ["1"]}, "column label holds string; it must hold an integer from 0 to 9"),
        ({"image": [IMAGE], "label": [1.0]}, "column label holds double"),
        ({"image": [IMAGE] * 3, "label": [1, None, None]}, "column label holds 2 nulls"),
        (
            {"image": ["a.png"], "label": [1]},
            "column image holds string; it must hold image files as struct<bytes, path>",
        ),
        ({"image": [[0, 1]], "label": [1]}, "column image holds list<"),
        ({"image": [{"path": "a.png"}], "label": [1]}, "column image holds struct<path: string>"),
        ({"image": [IMAGE, image(None)], "label": [1, 2]}, "row 1: column image is null"),
        ({"image": [IMAGE, None], "label": [1, 2]}, "row 1: column image is null"),
        ({"image": [IMAGE] * 2, "label": [9, 10]}, "row 1: label 10 is not a digit; labels must be 0 to 9"),
        ({"image": [IMAGE] * 2, "label": [-1, 0]}, "row 0: label -1 is not a digit"),
        ({"image": [IMAGE, image(b"nothing")], "label": [1, 2]}, "row 1: not a readable image"),
        ({"image": [image(b"")], "label": [1]}, "row 0: not a readable image"),
        ({"image": [IMAGE, image(IMAGE["bytes"][:-400])], "label": [1, 2]}, "row 1: not a readable image"),
        (
            {"image": [image(IMAGE["bytes"][:60] + b"\0\1\2" + IMAGE["bytes"][63:])], "label": [1]},
            "row 0: not a readable",
        ),
        (
            {"image": [IMAGE, image(png(np.zeros((14, 28), np.uint8)))], "label": [1, 2]},
            r"row 1: an image of 28 x 14 pixels in mode L; all must be 28 x 28 in mode L \(8-bit gray\): convert",
        ),
        ({"image": [image(png(np.zeros((28, 28, 3), np.uint8)))], "label": [1]}, "28 x 28 pixels in mode RGB"),
        ({"image": [image(png(np.zeros((28, 28), np.uint16)))], "label": [1]}, "28 x 28 pixels in mode I;16"),
    ],
)
def test_invalid_parquet_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    table = pa.table(columns)
    if not len(table):
        struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table({"image": pa.array([], struct), "label": pa.array([], pa.int64())})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match="train.parquet: .*" + message):
        load_mnist(tmp_path, "train")


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"train.parquet: not a readable parquet file .* fetch it again"):
        load_mnist(tmp_path, "train")
    whole = write_parquet(tmp_path / "train.parquet", DIGITS).read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[:-100])
    with pytest.raises(DataError, match="not a readable parquet file"):
        load_mnist(tmp_path, "train")


# --- damaged IDX ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (
            "images",
            b"",
            "begins with nothing, but an IDX file of bytes in 3 dimensions begins with 00000803;",
        ),
        ("images", idx(DIGITS.labels.numpy()), "begins with 00000801, but an IDX file"),
        ("images", b"\0\0\x0d\3" + idx(DIGITS.images.numpy())[4:], "begins with 00000d03"),
        ("images", idx(DIGITS.images.numpy())[:-1], r"too few or too many for \[20, 28, 28\] entries; fetch it again"),
        ("images", idx(DIGITS.images.numpy()) + b"\0", "too few or too many"),
        ("images", idx(DIGITS.images.numpy())[:10], "too few or too many"),
        ("images", idx(np.zeros((20, 14, 28))), "images of 28 x 14 pixels; all must be 28 x 28"),
        ("labels", idx(np.zeros(19)), r"20 images, but train-labels-idx1-ubyte has 19 labels"),
        ("labels", idx(np.full(20, 11)), "train-labels-idx1-ubyte: row 0: label 11 is not a digit"),
    ],
    ids=["empty", "labels", "type", "short", "long", "header", "size", "count", "range"],
)
def test_invalid_idx_is_refused(tmp_path: Path, kind: str, content: bytes, message: str) -> None:
    write_idx(tmp_path, "train", DIGITS)
    next(tmp_path.glob(f"train-{kind}*")).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_mnist(tmp_path, "train")


def test_idx_without_images(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", Digits(DIGITS.images[:0], DIGITS.labels[:0]))
    with pytest.raises(DataError, match="holds no images"):
        load_mnist(tmp_path, "train")


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", DIGITS, compressed=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    for content in (b"plain", file.read_bytes()[:-20]):
        file.write_bytes(content)
        with pytest.raises(DataError, match="train-images-idx3-ubyte.gz: cannot be read"):
            load_mnist(tmp_path, "train")
