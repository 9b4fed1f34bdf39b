"""Plots that are not drawn, for tests of what else is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout and rendering of a plot take longer than a run of a test."""

    def print_png(canvas: Any, path: Path) -> None:
        path.write_bytes(b"\x89PNG")

    monkeypatch.setattr(FigureCanvasAgg, "print_png", print_png)
