"""Sweeps over lambda: what is drawn where, of which runs, and what is left out."""

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
from dair_hf.experiments.sweeps import plot_sweep, sweep_series

# Accuracy and CM by method and seed: of the swept ones 1 is best in both and 10 trades accuracy for CM.
FOUND: dict[str, tuple[tuple[float, float], tuple[float | None, float | None]]] = {
    "erm": ((0.50, 0.60), (0.30, 0.40)),
    "dair_lambda0.1": ((0.60, 0.64), (0.50, 0.50)),
    "dair_lambda1": ((0.70, 0.80), (0.60, 0.70)),
    "dair_lambda10": ((0.60, 0.66), (0.90, 0.80)),
    "kl_lambda0.1": ((0.51, 0.51), (0.20, 0.20)),
    "kl_lambda1": ((0.41, 0.41), (0.10, 0.10)),
    "kl_lambda10": ((0.31, 0.31), (0.05, 0.05)),
}
METRICS = {"accuracy": "accuracy, %", "cm": "CM"}


def written(
    folder: Path,
    found: Mapping[str, Sequence[Any]] = FOUND,
    methods: Sequence[str] = ("erm", "dair", "kl"),
    lambdas: Sequence[float] | None = (10.0, 0.1, 1.0),
    seeds: Sequence[int] = (0, 1),
) -> list[Run]:
    """The runs of a comparison, in no order of lambda, and their records."""
    config = ComparisonConfig(list(methods), seeds=list(seeds), lambda_sweep=None if lambdas is None else list(lambdas))
    runs = list(runs_of(config, DAIRConfig(str(folder / "out"), use_cpu=True, report_to="none")))
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        accuracies, consistencies = found[run.method]
        metrics = {"accuracy": accuracies[run.seed], "cm": consistencies[run.seed]}
        (folder / f"{run.name}.json").write_text(json.dumps({"metrics": metrics}))
    return runs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """What was passed on to be drawn, by the file's name."""
    calls: dict[str, tuple[Any, ...]] = {}

    def noting(function: Any) -> Any:
        def draw(path: Path, *args: Any, **options: Any) -> None:
            calls[path.name] = (*args, options)
            function(path, *args, **options)

        return draw

    monkeypatch.setattr(sweeps, "plot_curves", noting(plots.plot_curves))
    monkeypatch.setattr(sweeps, "plot_front", noting(plots.plot_front))
    return calls


def test_curves_are_means_over_the_seeds_and_erm_is_level(tmp_path: Path) -> None:
    series = sweep_series(tmp_path, written(tmp_path), "accuracy")
    assert list(series) == ["kl", "dair", "erm"]
    lambdas, means, deviations = series["dair"]
    assert lambdas == [0.1, 1.0, 10.0]
    values = np.array([FOUND[f"dair_lambda{value:g}"][0] for value in (0.1, 1, 10)])
    np.testing.assert_allclose(means, values.mean(1), atol=1e-12)
    np.testing.assert_allclose(deviations or [], values.std(1, ddof=1), atol=1e-12)
    assert series["erm"][0] == [0.1, 1.0, 10.0]
    assert series["erm"][1] == pytest.approx([0.55] * 3)
    assert series["erm"][2] == pytest.approx([0.1 / 2**0.5] * 3)
    assert series["kl"][1] == pytest.approx([0.51, 0.41, 0.31])


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    series = sweep_series(tmp_path, written(tmp_path, methods=["dair"], seeds=[1]), "cm")
    assert series == {"dair": ([0.1, 1.0, 10.0], [0.5, 0.7, 0.8], [0.0, 0.0, 0.0])}


def test_names_that_begin_alike_are_kept_apart(tmp_path: Path) -> None:
    found = {
        f"{name}_lambda{value:g}": ((x, x), (x, x)) for name, x in (("dair", 0.9), ("dair_l1", 0.2)) for value in (1, 2)
    }
    series = sweep_series(tmp_path, written(tmp_path, found, ["dair", "dair_l1"], [1.0, 2.0]), "accuracy")
    assert {name: curve[1] for name, curve in series.items()} == {"dair": [0.9, 0.9], "dair_l1": [0.2, 0.2]}


def test_an_undefined_metric_leaves_its_lambda_out(tmp_path: Path) -> None:
    # The other seed of lambda 1 alone would flatter; ERM has no CM at all.
    found = {**FOUND, "dair_lambda1": ((0.70, 0.80), (None, 1.0)), "erm": ((0.5, 0.6), (None, None))}
    runs = written(tmp_path, found)
    series = sweep_series(tmp_path, runs, "cm")
    assert list(series) == ["kl", "dair"]
    assert series["dair"] == ([0.1, 10.0], [0.5, pytest.approx(0.85)], [0.0, pytest.approx(0.1 / 2**0.5)])
    assert sweep_series(tmp_path, runs, "accuracy")["dair"][0] == [0.1, 1.0, 10.0]


def test_plots_of_a_sweep(tmp_path: Path, drawn: dict[str, tuple[Any, ...]]) -> None:
    files = plot_sweep(tmp_path, written(tmp_path), "Scenes", METRICS)
    names = ["lambda_accuracy.png", "lambda_cm.png", "kl_front.png", "dair_front.png"]
    assert files == [tmp_path / name for name in names]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    title, xlabel, ylabel, series, options = drawn["lambda_accuracy.png"]
    assert (title, xlabel, ylabel, options) == ("Scenes", "lambda", "accuracy, %", {"log_x": True})
    assert series == sweep_series(tmp_path, written(tmp_path), "accuracy")
    title, xlabel, ylabel, points, best, _ = drawn["dair_front.png"]
    assert (title, xlabel, ylabel) == ("Scenes: dair by lambda", "accuracy, %", "CM")
    assert points == {
        "0.1": (pytest.approx(0.62), pytest.approx(0.5)),
        "1": (pytest.approx(0.75), pytest.approx(0.65)),
        "10": (pytest.approx(0.63), pytest.approx(0.85)),
    }
    # 0.1 is beaten on both counts by the two others; of KL the first beats all.
    assert best == ["1", "10"]
    assert drawn["kl_front.png"][4] == ["0.1"]


def test_fronts_of_one_sweep_share_their_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {}

    def keep(figure: Any, path: Path) -> None:
        (axes,) = figure.axes
        limits[path.name] = (axes.get_xlim(), axes.get_ylim())

    monkeypatch.setattr(plots, "_save", keep)
    plot_sweep(tmp_path, written(tmp_path), "Scenes", METRICS)
    assert limits["kl_front.png"] == limits["dair_front.png"]
    (left, right), (low, high) = limits["dair_front.png"]
    # KL reaches from 0.31 and 0.05, DAIR to 0.75 and 0.85.
    assert left < 0.31 and right > 0.75 and low < 0.05 and high > 0.85


def test_a_front_holds_what_is_defined_on_both_axes(tmp_path: Path, drawn: dict[str, tuple[Any, ...]]) -> None:
    found = {**FOUND, "dair_lambda1": ((0.70, 0.80), (None, 1.0)), "kl_lambda1": ((0.4, 0.4), (None, None))}
    plot_sweep(tmp_path, written(tmp_path, found), "Scenes", METRICS)
    assert list(drawn["dair_front.png"][3]) == ["0.1", "10"]
    assert drawn["dair_front.png"][4] == ["10"]
    found = {name: (accuracies, (None, None)) for name, (accuracies, _) in FOUND.items()}
    drawn.clear()
    files = plot_sweep(tmp_path / "none", written(tmp_path / "none", found), "Scenes", METRICS)
    assert [file.name for file in files] == list(drawn) == ["lambda_accuracy.png"]


def test_an_axis_that_begins_at_zero_is_not_logarithmic(tmp_path: Path, drawn: dict[str, tuple[Any, ...]]) -> None:
    found = {f"dair_lambda{value}": ((0.5, 0.5), (0.5, 0.5)) for value in (0, 1)}
    plot_sweep(tmp_path, written(tmp_path, found, ["dair"], [0.0, 1.0]), "Scenes", METRICS)
    assert drawn["lambda_cm.png"][-1] == {"log_x": False}


@pytest.mark.parametrize(
    ("methods", "lambdas", "names"),
    [
        # Nothing was swept: neither curves nor fronts.
        (["erm", "dair"], None, []),
        (["erm"], [0.1, 1.0], []),
        # One lambda is no front.
        (["erm", "dair"], [1.0], ["lambda_accuracy.png", "lambda_cm.png"]),
    ],
)
def test_what_is_not_drawn(tmp_path: Path, methods: list[str], lambdas: list[float] | None, names: list[str]) -> None:
    runs = written(tmp_path, {**FOUND, "dair": FOUND["dair_lambda1"]}, methods, lambdas)
    assert [file.name for file in plot_sweep(tmp_path, runs, "Scenes", METRICS)] == names
    assert {path.name for path in tmp_path.glob("*.png")} == set(names)


def test_a_record_that_is_not_there_is_named(tmp_path: Path) -> None:
    runs = written(tmp_path)
    (tmp_path / "dair_lambda1_seed1.json").unlink()
    with pytest.raises(DataError, match=r"dair_lambda1_seed1\.json: no such file"):
        plot_sweep(tmp_path, runs, "Scenes", METRICS)
