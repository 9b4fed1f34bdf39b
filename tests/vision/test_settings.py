"""The settings that the experiments on digits share."""

from __future__ import annotations

from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.vision.settings import DigitPairsConfig, require_choice, require_fraction, require_rows


@pytest.mark.parametrize("fraction", [0, 0.0, 0.1, 1, 1.0])
def test_fractions(fraction: float) -> None:
    assert DigitPairsConfig(partner_fraction=fraction).partner_fraction == fraction
    require_fraction("label_noise", fraction)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partner_fraction": 1.1}, r"partner_fraction=1.1 must lie in \[0, 1\]: 0.25 is every fourth row"),
        ({"partner_fraction": -0.1}, r"partner_fraction=-0.1 must lie in"),
        ({"partner_fraction": float("nan")}, r"partner_fraction=nan must lie in"),
        ({"partner_fraction": 20}, r"partner_fraction=20 must lie in"),
        ({"train_rows": 0}, "train_rows=0 must be at least 1"),
        ({"validation_rows": -1}, "validation_rows=-1 must be at least 1"),
    ],
)
def test_what_is_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DigitPairsConfig(**settings)


def test_rows() -> None:
    require_rows("test_rows", 1)
    with pytest.raises(DataError, match="test_rows=0 must be at least 1"):
        require_rows("test_rows", 0)


def test_choices() -> None:
    require_choice("setup", "a", ("a", "b"))
    with pytest.raises(DataError, match="setup: 'c' does not exist; use one of a, b"):
        require_choice("setup", "c", {"a": 1, "b": 2})
