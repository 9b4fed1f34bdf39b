"""Shapes of foreign JSON: one walk over a parsed value, whose errors name the place."""

from __future__ import annotations

import reprlib
from typing import Any

from dair_hf.errors import DataError

# Place inside a value, such as ".turns[3].speaker", and what is wrong there.
Fault = tuple[str, str]


def check_json(value: Any, shape: Any, where: str) -> None:
    """Refuse parsed JSON of another shape.

    A shape is a type (`object`: anything), a set of texts to choose from, a tuple of alternatives, `[shape]` for a
    list, or a dictionary of shapes for an object: a key with "?" may be absent, and "*" stands for all keys that are
    not listed (without it these may hold anything).

    Example:
        >>> check_json({"log": [{"text": 5}]}, {"log": [{"text": str, "spans?": list}]}, "data.json: dialogue 'A'")
        Traceback (most recent call last):
        ...
        dair_hf.errors.DataError: data.json: dialogue 'A', log[0].text: expected str, got 5
    """
    if fault := _fault(value, shape):
        raise DataError(f"{where}{', ' * bool(fault[0])}{fault[0].removeprefix('.')}: {fault[1]}")


def _fault(value: Any, shape: Any) -> Fault | None:
    if isinstance(shape, type):
        if shape is str and isinstance(value, str):
            return (
                None
                if value.isascii() or _is_utf8(value)
                else ("", f"half of a surrogate pair in {reprlib.repr(value)}")
            )
        is_right = isinstance(value, shape) and (shape is object or not isinstance(value, bool))
        return None if is_right else ("", f"expected {shape.__name__}, got {reprlib.repr(value)}")
    if isinstance(shape, tuple):
        faults = [_fault(value, other) for other in shape]
        return None if None in faults else faults[-1]
    if isinstance(shape, frozenset):
        is_right = isinstance(value, str) and value in shape
        return None if is_right else ("", f"expected one of {', '.join(sorted(shape))}, got {reprlib.repr(value)}")
    if isinstance(shape, list):
        if not isinstance(value, list):
            return "", f"expected a list, got {reprlib.repr(value)}"
        for index, item in enumerate(value):
            if fault := _fault(item, shape[0]):
                return f"[{index}]{fault[0]}", fault[1]
        return None
    if not isinstance(value, dict):
        return "", f"expected an object, got {reprlib.repr(value)}"
    listed = {key.removesuffix("?"): inner for key, inner in shape.items()}
    for key in shape:
        if key != "*" and key not in value and not key.endswith("?"):
            return "", f"{key!r} is missing (got {reprlib.repr(value)})"
    others = listed.get("*", object)
    for key, item in value.items():
        inner = listed.get(key, others)
        if inner is not object and (fault := _fault(item, inner)):
            return f".{key}{fault[0]}", fault[1]
    return None


def _is_utf8(text: str) -> bool:
    """Return False for half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    return text.encode(errors="ignore").decode() == text
