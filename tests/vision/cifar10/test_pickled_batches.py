"""Safe unpickling of CIFAR batches: malicious and damaged files."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.vision.cifar10 import load_cifar10
from tests.fixtures.cifar import short


def read(folder: Path, content: bytes) -> None:
    (folder / "test_batch").write_bytes(content)
    load_cifar10(folder, "test")


class Calls:
    """Object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
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
