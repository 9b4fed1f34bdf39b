"""Recipes on images and tables, run on a few rows for a few steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from dair_hf.experiments import plots
from dair_hf.vision.networks import DigitCNN
from tests.fixtures.digits import noise_digits, write_parquet
from tests.fixtures.recipe_runs import command_line, run

DIGITS = ["--train_rows", "60", "--validation_rows", "20", "--num_train_epochs", "2", "--lr_drop_epochs", "1"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mnist")
    write_parquet(folder / "train.parquet", noise_digits(600, seed=1))
    write_parquet(folder / "test.parquet", noise_digits(100, seed=2))
    return folder


@pytest.fixture(scope="module")
def qsar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(0)
    rows = {name: generator.integers(0, 2, (count, 5)) for name, count in (("X_train", 40), ("X_test", 20))}
    targets = {"y" + name[1:]: values.sum(1, keepdims=True).astype(float) for name, values in rows.items()}
    scipy.io.savemat(path := tmp_path_factory.mktemp("qsar") / "qsar.mat", {**rows, **targets})
    return path


def record(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return content


def test_colored_mnist_runs_every_method(mnist: Path, tmp_path: Path) -> None:
    methods = ["da", "dair", "irm", "rex", "dro"]
    options = command_line(mnist=mnist, test_source="test", test_rows=50, seeds=0, penalty_anneal_steps=1)
    run("colored_mnist", "colored_mnist_adv", tmp_path, *DIGITS, *options, "--methods", *methods)
    for method in methods:
        metrics = record(tmp_path, f"{method}_seed0")["metrics"]
        assert set(metrics) == {
            "accuracy_c1", "accuracy_c3", "accuracy_augmentation", "cm_c1_c3", "cm_c1_augmentation",
            "cm_numerator_c1_c3", "cm_numerator_c1_augmentation", "cm_denominator",
            "both_correct_c1_c3", "both_correct_c1_augmentation",
        }  # fmt: skip
        assert all(0 <= metrics[name] <= 1 for name in ("accuracy_c1", "accuracy_c3"))
    card = (tmp_path / "runs" / "dro_seed0" / "README.md").read_text()
    assert "replaced by the objective: `GroupDRO(step_size=0.01)`" in card
    assert DigitCNN.from_pretrained(tmp_path / "runs" / "dair_seed0").config.num_channels == 3
    assert {"irm_penalty", "dro_step_size"} <= set(record(tmp_path, "irm_seed0")["config"]["environments"])


def test_rotated_mnist_reports_each_digit_and_plots_the_regularizer_of_all_seeds_from_the_records(
    mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[dict[str, Any]] = []
    monkeypatch.setattr(plots, "plot_ends", lambda path, title, ylabel, series: drawn.append(series))
    options = ["--mnist", str(mnist), "--logging_steps", "1", "--per_device_train_batch_size", "20"]
    methods = ["--methods", "erm", "dair", "--seeds", "0", "1"]
    for runs in ("runs", "none"):
        run("rotated_mnist", "rotated_mnist_weak", tmp_path, *DIGITS, *options, *methods)
        assert (tmp_path / "runs" / "dair_seed0" / "trainer_state.json").exists() == (runs == "runs")
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)  # as where the records were copied
    assert "regularizer" not in record(tmp_path, "erm_seed0")["metrics"]  # ERM has no regularizer
    ends = [record(tmp_path, f"dair_seed{seed}")["metrics"]["regularizer"] for seed in (0, 1)]
    assert drawn == [{"dair": ends}] * 2 and ends[0] != ends[1]
    assert [end["steps"] for end in ends] == [6, 6] and ends[0]["first"] == ends[0]["last"]

    metrics = record(tmp_path, "dair_seed1")["metrics"]
    assert metrics["rows"] == metrics["pairs"] == 100
    by_digit = [metrics[f"accuracy_digit_{digit}"] for digit in range(10)]
    sizes = np.bincount(noise_digits(100, seed=2).labels.numpy(), minlength=10)
    assert np.dot(by_digit, sizes) / 100 == pytest.approx(metrics["original_accuracy"])


@pytest.mark.parametrize(("loss", "methods"), [("l2", ["erm", "da", "dair"]), ("huber", ["dair"]), ("term", ["dair"])])
def test_regression_with_every_loss(qsar: Path, tmp_path: Path, loss: str, methods: list[str]) -> None:
    options = ["--data_file", str(qsar), "--seeds", "0", "--max_steps", "10", "--loss", loss, "--methods", *methods]
    run("robust_regression", "robust_regression", tmp_path / "a", *options)
    run("robust_regression", "robust_regression", tmp_path / "b", *options, "--consistency", "batch")
    metrics = {name: record(tmp_path / "a", f"{name}_seed0")["metrics"] for name in methods}
    assert all(values["rmse"] > 0 for values in metrics.values())
    batch = {name: record(tmp_path / "b", f"{name}_seed0")["metrics"]["rmse"] for name in metrics}
    # The two ways of computing R differ for DAIR only.
    for name in methods[:-1]:
        assert batch[name] == pytest.approx(metrics[name]["rmse"], rel=1e-5)
    assert abs(batch["dair"] - metrics["dair"]["rmse"]) > 1e-4


@pytest.mark.parametrize("recipe", ["rotated_6_9", "rotated_mnist", "colored_mnist", "robust_regression"])
def test_lambda_is_chosen_on_validation_rows_and_tested_once(
    recipe: str, mnist: Path, qsar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if recipe == "robust_regression":
        config, options = recipe, ["--data_file", str(qsar), "--max_steps", "20", "--validation_share", "0.25"]
    else:
        configs = {"rotated_mnist": "rotated_mnist_weak", "colored_mnist": "colored_mnist_rnd"}
        config, options = configs.get(recipe, recipe), DIGITS
        options = [*options, "--mnist", str(mnist)]
        options += ["--test_source", "test"] if recipe == "colored_mnist" else []
    run(recipe, config, tmp_path, *options, "--methods", "dair", "--search_lambdas", "0.1", "100", "--seeds", "0")
    choice = record(tmp_path / "search" / "dair", "choice")
    key, sign = ("rmse", 1) if recipe == "robust_regression" else ("original_accuracy", -1)
    key = {"colored_mnist": "accuracy_c3", "rotated_6_9": "accuracy_theta_45"}.get(recipe, key)
    trials = {value: record(tmp_path / "search" / "dair", f"dair_lambda{value:g}_seed0") for value in (0.1, 100.0)}
    best = min(trials, key=lambda value: (sign * trials[value]["metrics"][key], value))
    assert choice["value"] == best
    final = record(tmp_path / "final", "dair_seed0")
    assert final["config"]["training"]["dair_lambda"] == best
    assert final["metrics"] != trials[best]["metrics"]
    assert f"lambda {best:g}" in capsys.readouterr().out


def test_search_without_validation_rows_is_refused_before_training(qsar: Path, tmp_path: Path) -> None:
    options = ["--data_file", str(qsar), "--search_lambdas", "1", "2", "--max_steps", "1"]
    with pytest.raises(SystemExit, match="^error: .*validation_share"):
        run("robust_regression", "robust_regression", tmp_path / "out", *options)
    assert not list(tmp_path.rglob("*.safetensors")) and not (tmp_path / "out" / "search").exists()
