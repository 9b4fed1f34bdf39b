"""Limits of settings: what each type accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from dair_hf.errors import DataError
from dair_hf.settings import Count, NonNegative, Positive, Range, Settings, Share


@dataclass
class Example(Settings):
    share: Share = field(default=0.5, metadata={"help": "A share."})
    count: Count | None = field(default=None, metadata={"help": "A count."})
    rate: Positive = field(default=1.0, metadata={"help": "A rate."})
    weight: NonNegative | Literal["auto"] = 0.0
    split: Annotated[float, Range(low=0, below=1)] = 0.0
    kind: Literal["first", "second"] = field(default="first", metadata={"help": "A kind."})
    drops: list[Positive] | None = field(default=None, metadata={"help": "Numbers."})
    flag: bool = field(default=False, metadata={"help": "A switch."})
    name: str | None = None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", 0), ("share", 1.0), ("count", None), ("count", 1), ("rate", 1e-300), ("weight", "auto"),
        ("weight", 0), ("split", 0.999), ("kind", "second"), ("drops", None), ("drops", []), ("drops", (1, 2.5)),
        ("flag", True), ("name", "x"),
    ],
)  # fmt: skip
def test_accepted_values(name: str, value: Any) -> None:
    assert getattr(Example(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", -0.1), ("share", 1.1), ("share", math.nan), ("share", "0.5"), ("share", True), ("share", None),
        ("count", 0), ("count", 1.5), ("count", True), ("rate", 0), ("rate", math.inf), ("weight", "automatic"),
        ("weight", -1), ("split", 1), ("kind", "third"), ("drops", [0.0]), ("drops", "12"), ("drops", 1.0),
        ("flag", "false"), ("flag", 2),
    ],
)  # fmt: skip
def test_refused_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"^{name}="):
        Example(**{name: value})


def test_check_sees_combinations() -> None:
    @dataclass
    class Pair(Settings):
        low: float = 0.0
        high: float = 1.0

        def check(self) -> None:
            if self.low > self.high:
                raise DataError("low is above high")

    assert Pair(0.0, 2.0).high == 2.0
    with pytest.raises(DataError, match="low"):
        Pair(3.0, 2.0)
