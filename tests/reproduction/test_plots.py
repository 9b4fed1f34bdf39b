"""Plots of the ledger: means and deviations checked by hand, and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from reproduction.claims import Plot, Section
from reproduction.plots import draw_plots, series_of

DRAW: dict[str, Any] = {
    "x": "config.data.fraction",
    "xlabel": "share of rows with a partner",
    "ylabel": "accuracy, %",
    "metric": "accuracy",
    "scale": 100,
    "series": [
        {
            "label": "DAIR",
            "sources": [
                {"experiment": "partial", "where": {"method": "dair"}},
                {"experiment": "whole", "where": {"method": "dair"}},
            ],
        },
        {"label": "DA-ERM", "sources": [{"experiment": "whole", "where": {"method": "da"}}]},
        {"label": "KL", "sources": [{"experiment": "whole", "where": {"method": "kl"}}]},
    ],
}


def put(folder: Path, name: str, method: str, seed: int, fraction: float, accuracy: float | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "method": method, "seed": seed, "metrics": {"accuracy": accuracy}}
    (folder / f"{name}.json").write_text(json.dumps({**record, "config": {"data": {"fraction": fraction}}}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    put(tmp_path / "partial" / "b", "dair_seed0", "dair", 0, 0.3, 0.5)
    put(tmp_path / "partial" / "a", "dair_seed0", "dair", 0, 0.1, 0.4)
    put(tmp_path / "whole", "dair_seed0", "dair", 0, 1.0, 0.6)
    put(tmp_path / "whole", "dair_seed1", "dair", 1, 1.0, 0.8)
    put(tmp_path / "whole", "da_seed0", "da", 0, 1.0, 0.3)
    return tmp_path


def plot(**changes: Any) -> Plot:
    return Plot("plots/partial.png", "Partial", {**DRAW, **changes})


def test_series_by_hand(results: Path) -> None:
    series = series_of(plot(), results)
    assert list(series) == ["DAIR", "DA-ERM"]
    x, means, deviations = series["DAIR"]
    assert (x, series["DA-ERM"][0]) == ([0.1, 0.3, 1.0], [1.0])
    assert means == pytest.approx([40, 50, 70], abs=1e-9)
    # (10^2 + 10^2) / (2 - 1) = 200.
    assert deviations == pytest.approx([0, 0, math.sqrt(200)], abs=1e-9)


def test_plots_with_records_are_drawn(results: Path) -> None:
    by_recipe = Plot("whole/own.png", "Own")
    sections = [Section("A", [], [by_recipe, plot()], []), Section("B", [], [plot(metric="none", series=[])], [])]
    assert draw_plots(sections, results) == [results / "plots" / "partial.png"]
    first = (results / "plots" / "partial.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    draw_plots(sections, results)
    assert (results / "plots" / "partial.png").read_bytes() == first
    assert not (results / "whole" / "own.png").exists()


def test_invalid_plots_are_named(results: Path) -> None:
    twice = [{"label": "all", "sources": [{"experiment": "whole", "where": {}}]}]
    for changes, named in (
        ({"metrics": 1}, "plots/partial.png: .*metrics"),
        ({"metric": "acuracy"}, "acuracy"),
        ({"x": "config.data.share"}, r"config\.data\.share"),
        ({"series": twice}, "seed 0"),
    ):
        with pytest.raises(DataError, match=named):
            series_of(plot(**changes), results)


def test_undefined_values_are_left_out(results: Path) -> None:
    put(results / "whole", "dair_seed1", "dair", 1, 1.0, None)
    x, means, _ = series_of(plot(), results)["DAIR"]  # not 60 at x = 1, the value of the other seed
    assert (x, means) == ([0.1, 0.3], pytest.approx([40, 50], abs=1e-9))
    put(results / "whole", "da_seed0", "da", 0, 1.0, None)
    assert list(series_of(plot(), results)) == ["DAIR"]
