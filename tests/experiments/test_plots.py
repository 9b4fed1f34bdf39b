"""Plots show the values they are given, those of sweeps over lambda the values of the records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dair_hf import DAIRConfig
from dair_hf.experiments import plots
from dair_hf.experiments.comparison import ComparisonConfig, Run, runs_of
from dair_hf.experiments.plots import Sample, plot_curves, plot_sweep, sweep_series


def test_sample_by_hand() -> None:
    assert Sample.of([0.5]) == Sample(0.5, 0.0, 1)
    # Deviations -0.2, -0.1, 0.3: (0.04 + 0.01 + 0.09) / 2 = 0.07.
    assert Sample.of([0.1, 0.2, 0.6]) == (pytest.approx(0.3), pytest.approx(0.07**0.5), 3)
    assert Sample.of([]) is None and Sample.of([1.0, None]) is None


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
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["DAIR", "ERM"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Title", "lambda", "accuracy, %")
    assert [entry.name for entry in path.parent.iterdir()] == ["curves.png"]


# Accuracy and CM by method and seed.
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


def write_records(folder: Path, values: Mapping[str, Any] = VALUES) -> list[Run]:
    """Write the records of a comparison and return its runs, not in the order of lambda."""
    config = ComparisonConfig(["erm", "dair", "kl"], seeds=[0, 1], lambda_sweep=[10.0, 0.1, 1.0])
    runs = list(runs_of(config, DAIRConfig(str(folder / "out"), use_cpu=True, report_to="none")))
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        accuracies, consistencies = values[run.method]
        metrics = {"accuracy": accuracies[run.seed], "cm": consistencies[run.seed]}
        (folder / f"{run.name}.json").write_text(json.dumps({"metrics": metrics}))
    return runs


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


def test_plots_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, tuple[Any, ...]] = {}
    monkeypatch.setattr(
        plots, "plot_curves", lambda path, *given, **options: calls.update({path.name: (*given, options)})
    )
    plot_sweep(tmp_path, write_records(tmp_path), "Scenes", LABELS)
    assert list(calls) == ["lambda_accuracy.png", "lambda_cm.png"]
    title, xlabel, ylabel, series, options = calls["lambda_accuracy.png"]
    assert (title, xlabel, ylabel, options) == ("Scenes", "lambda", "accuracy, %", {"log_x": True})
    assert series == sweep_series(tmp_path, write_records(tmp_path), "accuracy")
    calls.clear()
    values = {name: (accuracies, (None, None)) for name, (accuracies, _) in VALUES.items()}
    plot_sweep(tmp_path / "none", write_records(tmp_path / "none", values), "Scenes", LABELS)
    assert list(calls) == ["lambda_accuracy.png"]
