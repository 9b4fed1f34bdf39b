"""Plots of sweeps over lambda: their curves and points, and values that are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dair_hf import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments import plots, sweeps
from dair_hf.experiments.comparison import ComparisonConfig, Run, runs_of
from dair_hf.experiments.selection import Point, pareto_front
from dair_hf.experiments.sweeps import plot_sweep, sweep_series

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
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Arguments of each plot function call, by file name."""
    calls: dict[str, tuple[Any, ...]] = {}

    def recording(function: Any) -> Any:
        def draw(path: Path, *args: Any, **options: Any) -> None:
            calls[path.name] = (*args, options)
            function(path, *args, **options)

        return draw

    monkeypatch.setattr(sweeps, "plot_curves", recording(plots.plot_curves))
    monkeypatch.setattr(sweeps, "plot_front", recording(plots.plot_front))
    return calls


def test_curves_are_means_over_the_seeds_and_erm_is_constant(tmp_path: Path) -> None:
    series = sweep_series(tmp_path, write_records(tmp_path), "accuracy")
    assert list(series) == ["kl", "dair", "erm"]
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
    assert list(series) == ["kl", "dair"]
    assert series["dair"] == ([0.1, 10.0], [0.5, pytest.approx(0.85)], [0.0, pytest.approx(0.1 / 2**0.5)])
    assert sweep_series(tmp_path, runs, "accuracy")["dair"][0] == [0.1, 1.0, 10.0]


def test_plots_of_a_sweep(tmp_path: Path, drawn: dict[str, tuple[Any, ...]]) -> None:
    files = plot_sweep(tmp_path, write_records(tmp_path), "Scenes", LABELS)
    names = ["lambda_accuracy.png", "lambda_cm.png", "kl_front.png", "dair_front.png"]
    assert files == [tmp_path / name for name in names]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    title, xlabel, ylabel, series, options = drawn["lambda_accuracy.png"]
    assert (title, xlabel, ylabel, options) == ("Scenes", "lambda", "accuracy, %", {"log_x": True})
    assert series == sweep_series(tmp_path, write_records(tmp_path), "accuracy")
    title, xlabel, ylabel, points, options = drawn["dair_front.png"]
    assert (title, xlabel, ylabel) == ("Scenes: dair by lambda", "accuracy, %", "CM")
    assert {point.dair_lambda: (point.accuracy, point.consistency) for point in points} == {
        0.1: (pytest.approx(0.62), pytest.approx(0.5)),
        1.0: (pytest.approx(0.75), pytest.approx(0.65)),
        10.0: (pytest.approx(0.63), pytest.approx(0.85)),
    }
    # 0.1 is worse than the two others in both metrics. For KL it is better than the others in both.
    assert [point.dair_lambda for point in pareto_front(points)] == [1.0, 10.0]
    assert [point.dair_lambda for point in pareto_front(drawn["kl_front.png"][3])] == [0.1]


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


def test_fronts_contain_points_with_both_metrics(tmp_path: Path, drawn: dict[str, tuple[Any, ...]]) -> None:
    values = {**VALUES, "dair_lambda1": ((0.70, 0.80), (None, 1.0)), "kl_lambda1": ((0.4, 0.4), (None, None))}
    plot_sweep(tmp_path, write_records(tmp_path, values), "Scenes", LABELS)
    points: list[Point] = drawn["dair_front.png"][3]
    assert [point.dair_lambda for point in points] == [0.1, 10.0]
    assert [point.dair_lambda for point in pareto_front(points)] == [10.0]
    values = {name: (accuracies, (None, None)) for name, (accuracies, _) in VALUES.items()}
    drawn.clear()
    files = plot_sweep(tmp_path / "none", write_records(tmp_path / "none", values), "Scenes", LABELS)
    assert [file.name for file in files] == list(drawn) == ["lambda_accuracy.png"]


def test_axis_that_starts_at_zero_is_linear(tmp_path: Path, drawn: dict[str, tuple[Any, ...]]) -> None:
    values = {f"dair_lambda{value}": ((0.5, 0.5), (0.5, 0.5)) for value in (0, 1)}
    plot_sweep(tmp_path, write_records(tmp_path, values, ["dair"], [0.0, 1.0]), "Scenes", LABELS)
    assert drawn["lambda_cm.png"][-1] == {"log_x": False}


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


def test_missing_record_is_named(tmp_path: Path) -> None:
    runs = write_records(tmp_path)
    (tmp_path / "dair_lambda1_seed1.json").unlink()
    with pytest.raises(DataError, match=r"dair_lambda1_seed1\.json: no such file"):
        plot_sweep(tmp_path, runs, "Scenes", LABELS)
