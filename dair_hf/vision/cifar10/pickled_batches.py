"""Safe unpickling of CIFAR's original Python files.

Loading a pickle can run any code. These files name three functions of numpy only. The unpickler refuses all other names
and replaces these three by a recorder of their arguments, so nothing that a file names is ever called.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError

RECONSTRUCT, ARRAY, DTYPE = "numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"
BYTE_TYPE = b"u1"


def unpickle_batch(content: bytes, label: str) -> dict[str, Any]:
    r"""Load the dictionary in a file that Python 2 pickled."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise _Refused(f"holds a {type(batch).__name__}, not a dictionary")
        return {_name(key): _array(value) if isinstance(value, _Recorded) else value for key, value in batch.items()}
    except _Refused as error:
        raise DataError(f"{label}: {error}; this is not an original file of CIFAR") from error
    except Exception as error:  # damaged pickles raise nearly every exception
        raise DataError(f"{label}: not a pickle, or a damaged one ({error}); fetch it again") from error


class _Refused(Exception):
    """Content that CIFAR's files never have."""


class _Recorded:
    """Recorder of a call: its arguments, and the state that the result would get."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _RecordedArray(_Recorded):
    pass


class _RecordedType(_Recorded):
    pass


_STAND_INS = {RECONSTRUCT: _RecordedArray, ARRAY: _Recorded, DTYPE: _RecordedType}


# The Python implementation keeps its memo in a dict. The C implementation uses an array, so a damaged index in a file
# could allocate gigabytes.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (full_name := f"{module}.{name}") not in _STAND_INS:
            raise _Refused(f"names {full_name}, which is not to be trusted")
        return _STAND_INS[full_name]


def _name(key: Any) -> str:
    if not isinstance(key, bytes | str):
        raise ValueError(f"a key of type {type(key).__name__}")
    return key.decode("latin-1") if isinstance(key, bytes) else key


def _array(recorded: _Recorded) -> NDArray[np.uint8]:
    """Create the array from its pickled state: version, shape, dtype, Fortran order, content."""
    if not isinstance(recorded, _RecordedArray):
        raise _Refused("holds a type instead of an array")
    _, shape, dtype, fortran_order, content = recorded.state
    if not isinstance(dtype, _RecordedType) or dtype.args[0] != BYTE_TYPE:
        raise _Refused("holds an array that is not of bytes (u1)")
    if len(shape) != 2 or not all(isinstance(size, int) for size in shape):
        raise ValueError("an array without two dimensions")
    if math.prod(shape) != len(content) or min(shape) < 0:
        raise ValueError(f"an array of shape {shape} with {len(content)} bytes")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if fortran_order else "C")
