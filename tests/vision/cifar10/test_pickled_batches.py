"""Pickles of Python 2 parsed without being run: what Python itself reads from them, and what is refused."""

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
from dair_hf.vision.cifar10.pickled_batches import parse_batch
from tests.fixtures.cifar import number, pickled, pickled_array, short

VALUES = np.random.default_rng(0).integers(0, 256, (5, 3072), dtype=np.uint8)
LABELS = [6, 9, 0, 300, 70_000]
CONTENT = pickled(pickled_array(VALUES), LABELS)


def by_python(content: bytes) -> dict[str, Any]:
    """What `pickle` itself makes of a file that is known to be harmless."""
    return pickle.loads(content, encoding="latin-1")


@pytest.mark.parametrize("by_columns", [False, True])
def test_the_dictionary_is_what_python_unpickles(by_columns: bool) -> None:
    content = pickled(pickled_array(VALUES, by_columns=by_columns), LABELS, none=b"N", yes=b"\x88", no=b"\x89")
    found, expected = parse_batch(content, "file"), by_python(content)
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
        (b"]q\x50(h\x50e", None),  # a list that holds itself
        (b"}" + short("a") + b"K\x01s", {"a": 1}),
        (b"}(" + short("a") + b"K\x01" + short("b") + b"K\x02u", {"a": 1, "b": 2}),
        (b"\x8a\x02\x10\x27", 10_000),  # a long, as some versions wrote the sizes
        (number(-5), -5),
        (b"j\x2c\x01\x00\x00", "some_cat_s_000000.png"),
    ],
)
def test_the_other_values_that_such_files_hold(value: bytes, expected: Any) -> None:
    # `filenames` stands before it: its names were noted as numbers 300 and on.
    content = pickled(pickled_array(VALUES[:1]), [1], value=value)
    found = parse_batch(content, "file")["value"]
    if expected is None:
        assert found[0] is found
    else:
        assert found == expected == by_python(content)["value"]


class Touch:
    """What an attacker would pickle: it makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"data": Touch(tmp_path / "made")}, protocol=protocol)
    with pytest.raises(DataError, match="file: .*; this is not one of CIFAR's original files"):
        parse_batch(content, "file")
    assert not (tmp_path / "made").exists()
    pickle.loads(content)
    assert (tmp_path / "made").exists()  # the pickle does what it is said to


def calling(name: str, arguments: bytes = b")") -> bytes:
    return b"\x80\x02}" + short("data") + b"c" + name.replace(" ", "\n").encode() + b"\n" + arguments + b"Rs."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (calling("os system", short("id") + b"\x85"), r"names os.system, which could run anything when loaded"),
        (calling("__builtin__ eval"), "names __builtin__.eval"),
        (calling("numpy load"), "names numpy.load"),
        (calling("numpy.core.multiarray scalar"), "names numpy.core.multiarray.scalar"),
        (b"\x80\x02}" + short("a") + b"\x82\x01s.", "holds the instruction EXT1 at byte 6, which none of them needs"),
        (b"\x80\x02}(i" + b"os\ngetcwd\n.", "holds the instruction INST"),
        (b"\x80\x02}Qs.", "holds the instruction BINPERSID"),
        (b"(dp1\nS'data'\np2\nI1\ns.", "holds the instruction DICT at byte 1"),
        (pickle.dumps({"data": 1}, protocol=4), "is a pickle of protocol 4, and theirs is 2"),
        (b"\x80\x02].", "holds a list and no dictionary"),
        (b"\x80\x02K\x01.", "holds a int and no dictionary"),
        (pickled(pickled_array(VALUES.view("<u2"), "u2"), []), r"holds an array of another type than bytes \(u1\)"),
        (calling("numpy dtype", short("u1") + b"\x85"), "holds a type where an array was expected"),
    ],
)
def test_what_such_files_never_hold(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"data_batch_1: {message}.*; this is not one of CIFAR's original files"):
        parse_batch(content, "data_batch_1")


MADE = b"cnumpy.core.multiarray\n_reconstruct\n)R"


def state(shape: bytes = b"K\x01K\x02\x86", values: bytes = short("xy")) -> bytes:
    """The state of an array of one row and two columns."""
    return b"(K\x01" + shape + b"cnumpy\ndtype\n" + short("u1") + b"\x85R\x89" + values + b"tb"


def held(value: bytes) -> bytes:
    return b"\x80\x02}" + short("data") + value + b"s."


def test_the_damaged_arrays_below_are_sound_but_for_the_damage() -> None:
    assert parse_batch(held(MADE + state()), "file")["data"].tolist() == [[ord("x"), ord("y")]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text, no pickle",
        CONTENT[:-1],
        CONTENT[: len(CONTENT) // 2],
        CONTENT[:40] + CONTENT[45:],
        b"\x80\x02.",  # nothing to return
        b"\x80\x02u.",  # an end without a beginning
        b"\x80\x02}h\x01s.",  # what was never noted
        b"\x80\x02K\x01K\x02a.",  # a number is no list
        b"\x80\x02}K\x01b.",  # a dictionary has no state
        b"\x80\x02}K\x01)Rs.",  # a number is no function
        b"\x80\x02}" + short("a") + b"s.",
        b"\x80\x02}(" + short("a") + b"u.",
        held(MADE),  # no state
        held(MADE + b")b"),
        held(MADE + state(shape=b"K\x01K\x03\x86")),  # three bytes announced, two there
        held(MADE + state(shape=number(-1) + number(-2) + b"\x86")),
        held(MADE + state(shape=b"K\x02N\x86")),
        held(MADE + state(shape=b"K\x02\x85")),  # one dimension
        held(MADE + state(shape=b"K\x02")),
        held(MADE + state(values=b"K\x01")),
    ],
)
def test_damaged_files(content: bytes) -> None:
    with pytest.raises(DataError, match=r"file: not a pickle, or a damaged one \(.*\); fetch it again"):
        parse_batch(content, "file")


def test_every_file_with_one_byte_changed_is_read_or_refused() -> None:
    """Whatever is changed in a file: it raises nothing but a `DataError`."""
    content = pickled(pickled_array(VALUES[:1, :4]), [1, 2])
    refused = 0
    for place in range(len(content)):
        for value in (0, ord("."), ord("("), ord("R"), ord("b"), ord("s"), 0x85, 255):
            try:
                parse_batch(content[:place] + bytes([value]) + content[place + 1 :], "file")
            except DataError:
                refused += 1
    assert refused > len(content)


def test_deep_nesting_does_not_end_the_process() -> None:
    """The hash of a tuple goes down into it without a limit, and ends the process where the stack ends."""
    deep = b")" + b"\x85" * 300_000
    code = (
        "import sys; from dair_hf.vision.cifar10.pickled_batches import parse_batch; "
        "parse_batch(sys.stdin.buffer.read(), 'file')"
    )
    for content, message in (
        (b"\x80\x02}" + short("data") + deep + b"s.", b""),
        (b"\x80\x02}" + deep + b"K\x01s.", b"file: not a pickle, or a damaged one (a key that is no string)"),
    ):
        done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, timeout=120)
        assert done.returncode == bool(message) and message in done.stderr


def test_announced_sizes_take_no_memory() -> None:
    content = b"\x80\x02}" + short("data") + b"T" + (2**31 - 1).to_bytes(4, "little") + b"x"
    tracemalloc.start()
    with pytest.raises(DataError, match="damaged"):
        parse_batch(content, "file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
