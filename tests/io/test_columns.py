"""Plain text in columns."""

from __future__ import annotations

import pytest

from dair_hf.io.columns import align


def test_cells_are_aligned() -> None:
    assert align([["", "train", "v"], ["rows", 20, 1], ["a", "", "1.5 %"]]) == [
        "      train      v",
        "rows     20      1",
        "a            1.5 %",
    ]
    assert align([["alone"], ["a"]]) == ["alone", "a    "]
    with pytest.raises(ValueError, match="zip"):
        align([["a", "b"], ["c"]])
