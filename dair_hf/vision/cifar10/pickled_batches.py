"""The dictionaries in CIFAR's original Python files: pickles of Python 2, parsed and never run.

A pickle is a program, and loading one may run anything. These files need a handful of its instructions: they build
numbers, strings, lists and dictionaries, and describe numpy arrays. So the instructions are read one after the other,
and what they would call is noted down, not called.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dair_hf.errors import DataError

PROTOCOL = 2  # the newest of Python 2
RECONSTRUCT, ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
BYTE_TYPE = "u1"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINSTRING", "BINSTRING"}
_MARK = object()


@dataclass
class _Called:
    """A call that a pickle asks for: what, with which arguments, and the state to set in the result."""

    function: str
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True)
class _Named:
    """Something of a module that a pickle refers to."""

    name: str


class _Refused(Exception):
    """An instruction that these files do not hold."""


def parse_batch(content: bytes, label: str) -> dict[str, Any]:
    r"""The dictionary in a pickle that Python 2 wrote in its protocol 2, without running it.

    Args:
        content: The file. It may hold dictionaries, lists, tuples, integers, strings, None, booleans and numpy arrays
            of bytes (uint8) in two dimensions.
        label: Its name, for messages.

    Returns:
        The dictionary; strings are decoded as Latin-1, arrays among its values are numpy arrays that must not be
        written to.

    Raises:
        DataError: The file is damaged, is no such pickle, or asks for anything else to be made or called.

    Example:
        >>> parse_batch(b"\x80\x02}(U\x06labels](K\x06K\x09eu.", "data_batch_1")
        {'labels': [6, 9]}
    """
    try:
        found = _parsed(content)
        if not isinstance(found, dict):
            raise _Refused(f"holds a {type(found).__name__} and no dictionary")
        return {name: _array(value) if isinstance(value, _Called) else value for name, value in found.items()}
    except _Refused as error:
        raise DataError(f"{label}: {error}; this is not one of CIFAR's original files") from error
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{label}: not a pickle, or a damaged one ({error}); fetch it again") from error


def _parsed(content: bytes) -> Any:
    """The value that the instructions leave on the stack."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for instruction, argument, place in pickletools.genops(content):
        match instruction.name:
            case "PROTO":
                if argument != PROTOCOL:
                    raise _Refused(f"is a pickle of protocol {argument}, and theirs is {PROTOCOL}")
            case name if name in LITERALS:
                stack.append(argument)
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE" as name:
                stack.append({} if name == "EMPTY_DICT" else [] if name == "EMPTY_LIST" else ())
            case "MARK":
                stack.append(_MARK)
            case "TUPLE":
                items = _since_mark(stack)
                stack.append(tuple(items))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                size = int(name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = _since_mark(stack)
                stack[-1].extend(items)
            case "SETITEM":
                items = [stack.pop(-2), stack.pop()]
                stack[-1].update(_pairs(items))
            case "SETITEMS":
                items = _since_mark(stack)
                stack[-1].update(_pairs(items))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_named(argument))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_Called(function.name, arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case "STOP":
                return stack.pop()
            case name:
                raise _Refused(f"holds the instruction {name} at byte {place}, which none of them needs")
    raise AssertionError("genops ends with STOP or raises")


def _since_mark(stack: list[Any]) -> list[Any]:
    """What was put on the stack since the last mark, taken off with the mark."""
    for place in reversed(range(len(stack))):
        if stack[place] is _MARK:
            items = stack[place + 1 :]
            del stack[place:]
            return items
    raise ValueError("an end without a beginning")


def _pairs(items: list[Any]) -> dict[str, Any]:
    # Strings only: the hash of a tuple, nested deeply enough, would end the process.
    if not all(isinstance(key, str) for key in items[::2]):
        raise ValueError("a key that is no string")
    return dict(zip(items[::2], items[1::2], strict=True))


def _named(name: str) -> _Named:
    if name not in (RECONSTRUCT, ARRAY, DTYPE):
        raise _Refused(
            f"names {'.'.join(name.split())}, which could run anything when loaded, and is not to be trusted"
        )
    return _Named(name)


def _array(called: _Called) -> NDArray[np.uint8]:
    """The array that numpy would make: its state is version, shape, type, whether columns come first, and bytes."""
    if called.function != RECONSTRUCT:
        raise _Refused("holds a type where an array was expected")
    _, shape, kind, by_columns, values = called.state
    if kind.function != DTYPE or kind.arguments[0] != BYTE_TYPE:
        raise _Refused("holds an array of another type than bytes (u1)")
    if len(shape) != 2 or not all(isinstance(size, int) for size in shape):
        raise ValueError("an array that is no table")
    content = values.encode("latin-1")
    if math.prod(shape) != len(content) or min(shape) < 0:
        raise ValueError(f"an array of shape {shape} with {len(content)} bytes")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if by_columns else "C")
