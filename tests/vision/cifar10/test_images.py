"""Reader of CIFAR-10: each published format, and malicious and damaged pickles."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vision.cifar10 import load_cifar10
from dair_hf.vision.labeled_images import LabeledImages
from tests.fixtures.cifar import noise_images, short, write_archive, write_batches, write_parquet
from tests.fixtures.cpu_time import cpu_time

TRAIN, TEST = noise_images(17), noise_images(4, seed=1)
FOLDERS = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}
VERSIONS = pytest.mark.parametrize("version", list(FOLDERS))


def same(found: LabeledImages, expected: LabeledImages) -> bool:
    assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
    assert found.images.is_contiguous()
    return torch.equal(found.images, expected.images) and torch.equal(found.labels, expected.labels)


@pytest.mark.parametrize("column", ["img", "image"])
@pytest.mark.parametrize("name", ["train.parquet", "plain_text/train-00000-of-00001.parquet"])
def test_parquet(tmp_path: Path, name: str, column: str) -> None:
    write_parquet(tmp_path / name, TRAIN, column=column)
    write_parquet(tmp_path / name.replace("train", "test"), TEST, column=column)
    assert same(load_cifar10(tmp_path, "train"), TRAIN)
    assert same(load_cifar10(str(tmp_path), "test"), TEST)


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


@pytest.mark.realdata
def test_the_real_images(real_data: Path) -> None:
    """The local copies are compressed, so check statistics over all pixels."""
    with cpu_time() as spent:
        train, test = (load_cifar10(real_data / "cifar10", split) for split in ("train", "test"))
    assert spent.seconds < 30
    assert (train.images.shape, test.images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert train.labels.bincount().tolist() == [5_000] * 10
    assert test.labels.bincount().tolist() == [1_000] * 10
    pixels = train.images.flatten(2).double() / 255
    assert (pixels.mean(dim=(0, 2)) - torch.tensor([0.4914, 0.4822, 0.4465])).abs().max() < 0.002
    assert (pixels.transpose(0, 1).flatten(1).std(dim=1) - torch.tensor([0.2470, 0.2435, 0.2616])).abs().max() < 0.002


def read(folder: Path, content: bytes) -> None:
    (folder / "test_batch").write_bytes(content)
    load_cifar10(folder, "test")


class Calls:
    """Object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("attack", ["mkdir", "system", "eval", "nested"])
def test_malicious_pickles_are_never_run(tmp_path: Path, protocol: int, attack: str) -> None:
    made = tmp_path / "made"
    calls = {
        "mkdir": Calls(os.mkdir, str(made)),
        "system": Calls(os.system, f"mkdir {made}"),
        "eval": Calls(eval, f"__import__('os').mkdir({str(made)!r})"),
        "nested": Calls(Path.mkdir, made),  # `Path.mkdir`, a nested name from protocol 4 on
    }
    content = pickle.dumps({"data": calls[attack]}, protocol=protocol)
    with pytest.raises(DataError, match="not executed"):
        read(tmp_path, content)
    assert not made.exists()
    pickle.loads(content)
    assert made.exists()  # the pickle does run when it is loaded normally


def calling(name: str) -> bytes:
    return b"\x80\x02}" + short("data") + b"c" + name.replace(" ", "\n").encode() + b"\n)Rs."


@pytest.mark.parametrize(
    "content",
    [
        calling("os getcwd"),
        calling("__builtin__ eval"),
        calling("numpy load"),
        calling("numpy core.multiarray._reconstruct.__globals__"),
        calling("numpy.core.multiarray scalar"),
        b"\x80\x02}(i" + b"os\ngetcwd\n.",
    ],
)
def test_other_names_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="not executed"):
        read(tmp_path, content)


@pytest.mark.parametrize("damage", [b"T" + (2**31 - 1).to_bytes(4, "little") + b"x", short("x") + b"r\xff\xff\xff\xff"])
def test_damaged_sizes_and_indices_allocate_no_memory(tmp_path: Path, damage: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(Exception):  # noqa: B017
        read(tmp_path, b"\x80\x02}" + short("data") + damage)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
