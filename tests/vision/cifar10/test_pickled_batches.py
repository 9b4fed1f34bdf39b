"""Safe unpickling of CIFAR batches: values against `pickle`, malicious and damaged files."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf.errors import DataError
from dair_hf.vision.cifar10.pickled_batches import unpickle_batch
from tests.fixtures.cifar import number, pickled, pickled_array, short

VALUES = np.random.default_rng(0).integers(0, 256, (5, 3072), dtype=np.uint8)
LABELS = [6, 9, 0, 300, 70_000]
CONTENT = pickled(pickled_array(VALUES), LABELS)


def by_python(content: bytes) -> dict[str, Any]:
    """Load a harmless file with `pickle` itself."""
    return {key.decode(): value for key, value in pickle.loads(content, encoding="bytes").items()}


@pytest.mark.parametrize("fortran_order", [False, True])
def test_the_dictionary_matches_pickle(fortran_order: bool) -> None:
    content = pickled(pickled_array(VALUES, fortran_order=fortran_order), LABELS, none=b"N", yes=b"\x88", no=b"\x89")
    found, expected = unpickle_batch(content, "file"), by_python(content)
    assert list(found) == list(expected) == ["batch_label", "labels", "data", "filenames", "none", "yes", "no"]
    for name, values in expected.items():
        if name != "data":
            assert found[name] == values and type(found[name]) is type(values)
    for data in (found["data"], expected["data"], VALUES):
        assert data.dtype == np.uint8 and np.array_equal(data, VALUES)
    assert found["labels"] == LABELS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b")", ()),
        (b"N\x85", (None,)),
        (b"(K\x01K\x02K\x03K\x04t", (1, 2, 3, 4)),
        (b"]K\x07a", [7]),
        (b"]q\x50(h\x50e", None),  # a list that contains itself
        (b"}" + short("a") + b"K\x01s", {b"a": 1}),
        (b"}(" + short("a") + b"K\x01" + short("b") + b"K\x02u", {b"a": 1, b"b": 2}),
        (b"\x8a\x02\x10\x27", 10_000),  # a long, as some versions wrote the sizes
        (number(-5), -5),
        (b"j\x2c\x01\x00\x00", b"some_cat_s_000000.png"),
    ],
)
def test_other_values(value: bytes, expected: Any) -> None:
    # `filenames` precedes the value, with memo numbers from 300 on.
    content = pickled(pickled_array(VALUES[:1]), [1], value=value)
    found = unpickle_batch(content, "file")["value"]
    if expected is None:
        assert found[0] is found
    else:
        assert found == expected == by_python(content)["value"]


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
    with pytest.raises(DataError, match=r"^file: names [\w.]+, which is not to be trusted; this is not an original"):
        unpickle_batch(content, "file")
    assert not made.exists()
    pickle.loads(content)
    assert made.exists()  # the pickle does run when it is loaded normally


def calling(name: str, arguments: bytes = b")") -> bytes:
    return b"\x80\x02}" + short("data") + b"c" + name.replace(" ", "\n").encode() + b"\n" + arguments + b"Rs."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (calling("os system", short("id") + b"\x85"), "names os.system, which is not to be trusted"),
        (calling("__builtin__ eval"), "names __builtin__.eval"),
        (calling("numpy load"), "names numpy.load"),
        (
            calling("numpy core.multiarray._reconstruct.__globals__"),
            "names numpy.core.multiarray._reconstruct.__globals__",
        ),
        (calling("numpy.core.multiarray scalar"), "names numpy.core.multiarray.scalar"),
        (b"\x80\x02}(i" + b"os\ngetcwd\n.", "names os.getcwd"),
        (pickle.dumps(["data"], protocol=4), "holds a list, not a dictionary"),
        (b"\x80\x02].", "holds a list, not a dictionary"),
        (b"\x80\x02K\x01.", "holds a int, not a dictionary"),
        (pickled(pickled_array(VALUES.view("<u2"), "u2"), []), r"holds an array that is not of bytes \(u1\)"),
        (calling("numpy dtype", short("u1") + b"\x85"), "holds a type instead of an array"),
        (calling("numpy ndarray", short("u1") + b"\x85"), "holds a type instead of an array"),
    ],
)
def test_foreign_content_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"data_batch_1: {message}.*; this is not an original file of CIFAR") as raised:
        unpickle_batch(content, "data_batch_1")
    assert "\n" not in str(raised.value)


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n)R"


def state(shape: bytes = b"K\x01K\x02\x86", values: bytes = short("xy")) -> bytes:
    """State of an array with one row and two columns."""
    return b"(K\x01" + shape + b"cnumpy\ndtype\n" + short("u1") + b"\x85R\x89" + values + b"tb"


def batch(value: bytes) -> bytes:
    return b"\x80\x02}" + short("data") + value + b"s."


def test_the_undamaged_array_is_read() -> None:
    assert unpickle_batch(batch(RECONSTRUCT + state()), "file")["data"].tolist() == [[ord("x"), ord("y")]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text, no pickle",
        CONTENT[:-1],
        CONTENT[: len(CONTENT) // 2],
        CONTENT[:40] + CONTENT[45:],
        b"\x80\x02}" + short("a") + b"\x82\x01s.",  # an extension code
        b"\x80\x02}Qs.",  # a persistent id
        b"\x80\x02.",  # an empty stack
        b"\x80\x02u.",  # no mark
        b"\x80\x02}h\x01s.",  # an unknown memo number
        b"\x80\x02K\x01K\x02a.",  # append to a number
        b"\x80\x02}K\x01b.",  # state of a dictionary
        b"\x80\x02}K\x01)Rs.",  # call of a number
        b"\x80\x02}K\x01K\x02s.",  # a key that is not a string
        b"\x80\x02}" + short("a") + b"s.",
        b"\x80\x02}(" + short("a") + b"u.",
        batch(RECONSTRUCT),  # no state
        batch(RECONSTRUCT + b")b"),
        batch(RECONSTRUCT + state(shape=b"K\x01K\x03\x86")),  # two bytes for a shape of three
        batch(RECONSTRUCT + state(shape=number(-1) + number(-2) + b"\x86")),
        batch(RECONSTRUCT + state(shape=b"K\x02N\x86")),
        batch(RECONSTRUCT + state(shape=b"K\x02\x85")),  # one dimension
        batch(RECONSTRUCT + state(shape=b"K\x02")),
        batch(RECONSTRUCT + state(values=b"K\x01")),
    ],
)
def test_damaged_files(content: bytes) -> None:
    with pytest.raises(DataError, match=r"file: not a pickle, or a damaged one \(.*\); fetch it again") as raised:
        unpickle_batch(content, "file")
    assert "\n" not in str(raised.value)


def test_every_file_with_one_changed_byte_is_read_or_refused() -> None:
    """No exception but `DataError`."""
    content = pickled(pickled_array(VALUES[:1, :4]), [1, 2])
    refused = 0
    for position in range(len(content)):
        for value in (0, ord("."), ord("("), ord("R"), ord("b"), ord("s"), 0x85, 255):
            try:
                unpickle_batch(content[:position] + bytes([value]) + content[position + 1 :], "file")
            except DataError:
                refused += 1
    assert refused > len(content)


def test_deep_nesting_does_not_crash() -> None:
    deep = b")" + b"\x85" * 300_000
    code = (
        "import sys; from dair_hf.vision.cifar10.pickled_batches import unpickle_batch; "
        "unpickle_batch(sys.stdin.buffer.read(), 'file')"
    )
    content = b"\x80\x02}" + short("data") + deep + b"s."
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("damage", [b"T" + (2**31 - 1).to_bytes(4, "little") + b"x", short("x") + b"r\xff\xff\xff\xff"])
def test_damaged_sizes_and_indices_allocate_no_memory(damage: bytes) -> None:
    content = b"\x80\x02}" + short("data") + damage
    tracemalloc.start()
    with pytest.raises(DataError, match="damaged"):
        unpickle_batch(content, "file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
