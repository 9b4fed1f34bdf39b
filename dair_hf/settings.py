"""Limits of settings: declared in the types of dataclass fields, checked by one function.

`Annotated[float, Range(low=0)]` holds a finite number of at least 0, `Share`, `Count` and the others below are short
for such types, and `Literal["a", "b"]` holds one of two words. `HfArgumentParser` reads all of them as plain types.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from dair_hf.errors import DataError


@dataclasses.dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`, or strictly `above` and `below` a bound."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below and math.isfinite(value)

    def __str__(self) -> str:
        bounds = ((">=", self.low), (">", self.above), ("<=", self.high), ("<", self.below))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if math.isfinite(bound))


Share = Annotated[float, Range(low=0, high=1)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(low=0)]
Count = Annotated[int, Range(low=1)]


class Settings:
    """Base of dataclasses of settings: checks every field when it is created, then calls `check`."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Raise an error for a combination of values that would train nonsense."""


def check_fields(settings: Any, limits: Mapping[str, Any] = types.MappingProxyType({})) -> None:
    """Raise an error if a field of a dataclass holds a value that its type, or that in `limits`, does not accept."""
    owner: Any = type(settings)
    for name, hint in {**_hints(owner), **limits}.items():
        value = getattr(settings, name)
        if not accepts(hint, value):
            raise DataError(f"{name}={reprlib.repr(value)}: expected {_described(hint)}")


@cache
def _hints(owner: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(owner, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(owner)}


def accepts(hint: Any, value: Any) -> bool:
    """Return whether a type accepts a value; types other than numbers, switches, choices and lists accept all."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return accepts(parts[0], value) and all(value in part for part in parts[1:] if isinstance(part, Range))
    if origin in (typing.Union, types.UnionType):
        return any(accepts(part, value) for part in parts)
    if origin is Literal:
        return value in parts
    if origin in (list, Sequence):
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(accepts(parts[0], item) for item in value)
    if hint is types.NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return True


def _described(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return f"{_described(parts[0])} {' and '.join(str(part) for part in parts[1:])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_described, parts))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (list, Sequence):
        return f"a list of {_described(parts[0])}"
    words = {types.NoneType: "nothing", bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))
