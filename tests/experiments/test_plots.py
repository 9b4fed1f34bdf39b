"""Plots show the values they are given, those of sweeps over lambda the values of the records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.legend import Legend

from dair_hf import DAIRConfig
from dair_hf.experiments import plots
from dair_hf.experiments.comparison import ComparisonConfig, Run, runs_of
from dair_hf.experiments.plots import (
    curve_ends,
    mean_series,
    plot_curves,
    plot_ends,
    plot_front,
    plot_sweep,
    sweep_series,
)
from dair_hf.experiments.selection import Point, pareto_front


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


# Accuracy and CM by method and seed. For dair, lambda 1 beats 0.1 in both, and 10 trades accuracy for CM.
VALUES: dict[str, tuple[tuple[float, float], tuple[float | None, float | None]]] = {
    "erm": ((0.50, 0.60), (0.30, 0.40)),
    "dair_lambda0.1": ((0.60, 0.64), (0.50, 0.50)),
    "dair_lambda1": ((0.70, 0.80), (0.60, 0.70)),
    "dair_lambda10": ((0.60, 0.66), (0.90, 0.80)),
    "kl_lambda0.1": ((0.51, 0.51), (0.20, 0.20)),
    "kl_lambda1": ((0.41, 0.41), (0.10, 0.10)),
    "kl_lambda10": ((0.31, 0.31), (0.05, 0.05)),
}
LABELS = {"accuracy": "accuracy, %", "cm": "CM"}


def write_records(
    folder: Path,
    values: Mapping[str, Sequence[Any]] = VALUES,
    methods: Sequence[str] = ("erm", "dair", "kl"),
    lambdas: Sequence[float] | None = (10.0, 0.1, 1.0),
    seeds: Sequence[int] = (0, 1),
) -> list[Run]:
    """Write the records of a comparison and return its runs, not in the order of lambda."""
    config = ComparisonConfig(list(methods), seeds=list(seeds), lambda_sweep=None if lambdas is None else list(lambdas))
    runs = list(runs_of(config, DAIRConfig(str(folder / "out"), use_cpu=True, report_to="none")))
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        accuracies, consistencies = values[run.method]
        metrics = {"accuracy": accuracies[run.seed], "cm": consistencies[run.seed]}
        (folder / f"{run.name}.json").write_text(json.dumps({"metrics": metrics}))
    return runs


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Arguments of each plot function call, by file name."""
    calls: dict[str, tuple[Any, ...]] = {}

    def recording(function: Any) -> Any:
        def draw(path: Path, *args: Any, **options: Any) -> None:
            calls[path.name] = (*args, options)
            function(path, *args, **options)

        return draw

    monkeypatch.setattr(plots, "plot_curves", recording(plots.plot_curves))
    monkeypatch.setattr(plots, "plot_front", recording(plots.plot_front))
    return calls


def test_curves_are_means_over_the_seeds_and_erm_is_constant(tmp_path: Path) -> None:
    series = sweep_series(tmp_path, write_records(tmp_path), "accuracy")
    assert list(series) == ["dair", "kl", "erm"]
    lambdas, means, deviations = series["dair"]
    assert lambdas == [0.1, 1.0, 10.0]
    accuracies = np.array([VALUES[f"dair_lambda{value:g}"][0] for value in (0.1, 1, 10)])
    np.testing.assert_allclose(means, accuracies.mean(1), atol=1e-12)
    np.testing.assert_allclose(deviations or [], accuracies.std(1, ddof=1), atol=1e-12)
    assert series["erm"][0] == [0.1, 1.0, 10.0]
    assert series["erm"][1] == pytest.approx([0.55] * 3)
    assert series["erm"][2] == pytest.approx([0.1 / 2**0.5] * 3)
    assert series["kl"][1] == pytest.approx([0.51, 0.41, 0.31])


def test_deviation_of_one_seed_is_zero(tmp_path: Path) -> None:
    series = sweep_series(tmp_path, write_records(tmp_path, methods=["dair"], seeds=[1]), "cm")
    assert series == {"dair": ([0.1, 1.0, 10.0], [0.5, 0.7, 0.8], [0.0, 0.0, 0.0])}


def test_methods_with_a_common_prefix_are_separate(tmp_path: Path) -> None:
    values = {
        f"{name}_lambda{value:g}": ((x, x), (x, x)) for name, x in (("dair", 0.9), ("dair_l1", 0.2)) for value in (1, 2)
    }
    series = sweep_series(tmp_path, write_records(tmp_path, values, ["dair", "dair_l1"], [1.0, 2.0]), "accuracy")
    assert {name: curve[1] for name, curve in series.items()} == {"dair": [0.9, 0.9], "dair_l1": [0.2, 0.2]}


def test_lambdas_with_an_undefined_metric_are_left_out(tmp_path: Path) -> None:
    # CM of lambda 1 is undefined for one seed, and that of ERM for both.
    values = {**VALUES, "dair_lambda1": ((0.70, 0.80), (None, 1.0)), "erm": ((0.5, 0.6), (None, None))}
    runs = write_records(tmp_path, values)
    series = sweep_series(tmp_path, runs, "cm")
    assert list(series) == ["dair", "kl"]
    assert series["dair"] == ([0.1, 10.0], [0.5, pytest.approx(0.85)], [0.0, pytest.approx(0.1 / 2**0.5)])
    assert sweep_series(tmp_path, runs, "accuracy")["dair"][0] == [0.1, 1.0, 10.0]


def test_plots_of_a_sweep(tmp_path: Path, calls: dict[str, tuple[Any, ...]]) -> None:
    files = plot_sweep(tmp_path, write_records(tmp_path), "Scenes", LABELS)
    names = ["lambda_accuracy.png", "lambda_cm.png", "dair_front.png", "kl_front.png"]
    assert files == [tmp_path / name for name in names]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    title, xlabel, ylabel, series, options = calls["lambda_accuracy.png"]
    assert (title, xlabel, ylabel, options) == ("Scenes", "lambda", "accuracy, %", {"log_x": True})
    assert series == sweep_series(tmp_path, write_records(tmp_path), "accuracy")
    title, xlabel, ylabel, points, options = calls["dair_front.png"]
    assert (title, xlabel, ylabel) == ("Scenes: dair by lambda", "accuracy, %", "CM")
    assert {point.dair_lambda: (point.accuracy, point.consistency) for point in points} == {
        0.1: (pytest.approx(0.62), pytest.approx(0.5)),
        1.0: (pytest.approx(0.75), pytest.approx(0.65)),
        10.0: (pytest.approx(0.63), pytest.approx(0.85)),
    }
    # 0.1 is worse than the two others in both metrics. For KL it is better than the others in both.
    assert [point.dair_lambda for point in pareto_front(points)] == [1.0, 10.0]
    assert [point.dair_lambda for point in pareto_front(calls["kl_front.png"][3])] == [0.1]


def test_fronts_of_one_sweep_share_their_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {}

    def keep(figure: Any, path: Path) -> None:
        (axes,) = figure.axes
        limits[path.name] = (axes.get_xlim(), axes.get_ylim())

    monkeypatch.setattr(plots, "save_figure", keep)
    plot_sweep(tmp_path, write_records(tmp_path), "Scenes", LABELS)
    assert limits["kl_front.png"] == limits["dair_front.png"]
    (left, right), (low, high) = limits["dair_front.png"]
    # KL reaches from 0.31 and 0.05, DAIR to 0.75 and 0.85.
    assert left < 0.31 and right > 0.75 and low < 0.05 and high > 0.85


def test_fronts_contain_points_with_both_metrics(tmp_path: Path, calls: dict[str, tuple[Any, ...]]) -> None:
    values = {**VALUES, "dair_lambda1": ((0.70, 0.80), (None, 1.0)), "kl_lambda1": ((0.4, 0.4), (None, None))}
    plot_sweep(tmp_path, write_records(tmp_path, values), "Scenes", LABELS)
    points: list[Point] = calls["dair_front.png"][3]
    assert [point.dair_lambda for point in points] == [0.1, 10.0]
    assert [point.dair_lambda for point in pareto_front(points)] == [10.0]
    values = {name: (accuracies, (None, None)) for name, (accuracies, _) in VALUES.items()}
    calls.clear()
    files = plot_sweep(tmp_path / "none", write_records(tmp_path / "none", values), "Scenes", LABELS)
    assert [file.name for file in files] == list(calls) == ["lambda_accuracy.png"]


def test_axis_that_starts_at_zero_is_linear(tmp_path: Path, calls: dict[str, tuple[Any, ...]]) -> None:
    values = {f"dair_lambda{value}": ((0.5, 0.5), (0.5, 0.5)) for value in (0, 1)}
    plot_sweep(tmp_path, write_records(tmp_path, values, ["dair"], [0.0, 1.0]), "Scenes", LABELS)
    assert calls["lambda_cm.png"][-1] == {"log_x": False}


@pytest.mark.parametrize(
    ("methods", "lambdas", "names"),
    [
        # No method was swept.
        (["erm", "dair"], None, []),
        (["erm"], None, []),
        # A single lambda gives no front.
        (["erm", "dair"], [1.0], ["lambda_accuracy.png", "lambda_cm.png"]),
    ],
)
def test_plots_that_are_not_drawn(
    tmp_path: Path, methods: list[str], lambdas: list[float] | None, names: list[str]
) -> None:
    runs = write_records(tmp_path, {**VALUES, "dair": VALUES["dair_lambda1"]}, methods, lambdas)
    assert [file.name for file in plot_sweep(tmp_path, runs, "Scenes", LABELS)] == names
    assert {path.name for path in tmp_path.glob("*.png")} == set(names)
