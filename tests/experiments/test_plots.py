"""Plots show the values they are given; invalid input is refused before a file is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.legend import Legend

from dair_hf.errors import DataError
from dair_hf.experiments import plots
from dair_hf.experiments.plots import curve_ends, mean_series, plot_curves, plot_ends, plot_front
from dair_hf.experiments.selection import Point


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes of each plot that was saved."""
    saved: list[Axes] = []
    real = plots.save_figure

    def spy(figure: Figure, path: Path) -> None:
        saved.append(figure.axes[0])
        real(figure, path)

    monkeypatch.setattr(plots, "save_figure", spy)
    return saved


def point(dair_lambda: float, accuracy: float, consistency: float | None) -> Point:
    return Point(dair_lambda, (accuracy,), (consistency,))


def legend_of(axes: Axes) -> Legend:
    (legend,) = axes.figure.legends
    return legend


def test_curves_show_means_and_bands(tmp_path: Path, drawn: list[Axes]) -> None:
    path = tmp_path / "new" / "curves.png"
    plot_curves(
        path,
        "Title",
        "lambda",
        "accuracy, %",
        {"DAIR": ([1, 10, 100], [70.0, 72.0, 71.0], [1.0, 0.5, 2.0]), "ERM": ([1, 100], [33.0, 33.0], None)},
        log_x=True,
    )
    (axes,) = drawn
    dair, erm = axes.get_lines()
    np.testing.assert_array_equal(dair.get_xydata(), [[1, 70], [10, 72], [100, 71]])
    np.testing.assert_array_equal(erm.get_xydata(), [[1, 33], [100, 33]])
    (band,) = axes.collections
    corners = {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(1, 69), (1, 71), (10, 71.5), (10, 72.5), (100, 69), (100, 73)}
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in legend_of(axes).get_texts()] == ["DAIR", "ERM"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Title", "lambda", "accuracy, %")
    image = imread(path)
    assert image.shape[0] > 200
    assert image.std() > 0.05
    assert [entry.name for entry in path.parent.iterdir()] == ["curves.png"]


def test_long_curves_have_no_markers(tmp_path: Path, drawn: list[Axes]) -> None:
    steps = list(range(41))
    plot_curves(tmp_path / "a.png", "", "", "", {"long": (steps, steps, None), "short": (steps[:40], steps[:40], None)})
    assert [line.get_marker() for line in drawn[0].get_lines()] == ["", "o"]
    assert drawn[0].get_xscale() == "linear"


@pytest.mark.parametrize("count", [2, 17, 40])
def test_legend_covers_no_curve_and_distinguishes_all(tmp_path: Path, drawn: list[Axes], count: int) -> None:
    series = {f"dair_l1_lambda{index}": ([0, 30, 60], [1.0, 0.5 + index / 100, 0.0], None) for index in range(count)}
    plot_curves(tmp_path / "a.png", "T", "x", "y", series)
    legend, page = legend_of(drawn[0]).get_window_extent(), drawn[0].figure.bbox
    assert legend.x0 >= drawn[0].get_window_extent().x1
    assert page.x0 <= legend.x0 and legend.x1 <= page.x1 and page.y0 <= legend.y0 and legend.y1 <= page.y1
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn[0].get_lines()}) == count


def test_the_same_data_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        plot_curves(tmp_path / name, "T", "x", "y", {"s": ([1, 2], [3, 4], [0.1, 0.1])})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("series", "log_x", "message"),
    [
        ({}, False, "no series to plot"),
        ({"a": ([], [], None)}, False, r"series 'a' has parts of length \[0, 0\]"),
        ({"a": ([1, 2], [1], None)}, False, r"series 'a' has parts of length \[2, 1\]; they must be equal"),
        ({"a": ([1, 2], [1, 2], [0.1])}, False, r"parts of length \[2, 2, 1\]"),
        ({"a": ([0, 2], [1, 2], None)}, True, "series 'a' has a point at 0; a logarithmic axis starts above 0"),
    ],
)
def test_invalid_curves_are_refused(tmp_path: Path, series: Any, log_x: bool, message: str) -> None:
    with pytest.raises(DataError, match=message):
        plot_curves(tmp_path / "a.png", "T", "x", "y", series, log_x)
    assert list(tmp_path.iterdir()) == []


def test_front_joins_its_points_in_order(tmp_path: Path, drawn: list[Axes]) -> None:
    points = [point(1, 0.8, 0.7), point(10, 0.6, 0.9), point(0.1, 0.5, 0.5), point(3, 0.7, 0.8), point(5, 0.9, None)]
    plot_front(tmp_path / "front.png", "T", "accuracy", "CM", points, chosen=3)
    (axes,) = drawn
    lines = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()}
    assert lines["front"] == [[0.6, 0.9], [0.7, 0.8], [0.8, 0.7]]
    assert lines["chosen"] == [[0.7, 0.8]]
    positions = {"1": (0.8, 0.7), "10": (0.6, 0.9), "0.1": (0.5, 0.5), "3": (0.7, 0.8)}
    assert {text.get_text(): text.xy for text in axes.texts} == positions
    assert len(axes.get_lines()) == 2 + len(positions)


def test_front_of_an_error_without_a_chosen_point(tmp_path: Path, drawn: list[Axes]) -> None:
    points = [point(1, 0.8, 0.7), point(2, 0.6, 0.9)]
    plot_front(tmp_path / "front.png", "T", "error", "CM", points, chosen=5, lower_is_better=True)
    assert [text.get_text() for text in legend_of(drawn[0]).get_texts()] == ["front"]
    assert drawn[0].get_lines()[0].get_xydata().tolist() == [[0.6, 0.9]]
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("points", [[], [point(1, 0.5, None)]])
def test_front_without_points_is_refused(tmp_path: Path, points: list[Point]) -> None:
    with pytest.raises(DataError, match="no points to plot"):
        plot_front(tmp_path / "a.png", "T", "x", "y", points)
    assert list(tmp_path.iterdir()) == []


def test_mean_series_leaves_out_undefined_values() -> None:
    values: dict[float, list[float | None]] = {10: [1.0, 3.0], 1: [5.0], 2: [4.0, None], 3: []}
    assert mean_series(values) == ([1, 10], [5.0, 2.0], [0.0, pytest.approx(2**0.5)])


def test_first_and_last_iterations(tmp_path: Path, drawn: list[Axes]) -> None:
    falling = [1.0 / (i + 1) for i in range(200)]
    series = {"a": [curve_ends(falling), curve_ends([3 * value for value in falling])], "b": [curve_ends([2.0] * 12)]}
    plot_ends(tmp_path / "ends.png", "R", "nats", series)
    assert (tmp_path / "ends.png").read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].figure.axes
    means = 2 * np.array(falling)  # over the two seeds
    for axes, steps in ((left, range(10)), (right, range(60, 200))):
        x, y = axes.get_lines()[0].get_xydata().T
        assert list(x) == list(steps)
        np.testing.assert_allclose(y, means[steps.start : steps.stop])
    # A curve shorter than a panel.
    assert list(right.get_lines()[1].get_xdata()) == list(range(12))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({}, "no series"),
        ({"a": [curve_ends([])]}, "'a' has curves of"),
        ({"a": [curve_ends([1.0] * 3), curve_ends([1.0] * 4)]}, r"'a' has curves of \[3, 4\] iterations"),
    ],
)
def test_unequal_and_empty_curves_are_refused(tmp_path: Path, series: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        plot_ends(tmp_path / "ends.png", "R", "nats", series)
    assert not list(tmp_path.iterdir())
