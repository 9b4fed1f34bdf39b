"""Reports during training: when they are made, what they leave unchanged, and how they stop a run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch

from dair_hf import DAIRTrainer
from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.experiments.comparison import train_evaluate_save
from dair_hf.experiments.run_records import Run, RunStopped
from dair_hf.experiments.search.grids import SearchConfig
from dair_hf.experiments.search.pruning import RunWatch, make_pruner
from tests.fixtures import points, tiny


@pytest.mark.parametrize(
    ("max_steps", "reports", "expected"),
    [
        # 13 k / 5 is 2.6, 5.2, 7.8, 10.4; the last report is the evaluation of the trained model.
        (13, 5, [(1, 3), (2, 6), (3, 8), (4, 11)]),
        (4, 2, [(1, 2)]),
        (2, 5, [(2, 1)]),
        (1, 3, []),
    ],
)
def test_reports_are_evenly_spaced(
    tmp_path: Path, max_steps: int, reports: int, expected: list[tuple[int, int]]
) -> None:
    seen: list[tuple[int, int]] = []
    trainer = points.trainer(tmp_path, points.pairs(8), max_steps=max_steps)

    def report(number: int, value: float | None) -> bool:
        assert value == trainer.state.global_step
        seen.append((number, int(value)))
        return False

    watch = RunWatch(trainer, lambda trained: {"acc": trained.state.global_step}, "acc", reports, report)
    trainer.train()
    watch.end_training()
    assert seen == expected


def evaluate_at_random(trainer: DAIRTrainer) -> dict[str, float]:
    """Run the model, and draw from all generators of random numbers."""
    torch.rand(3), random.random(), np.random.rand()
    return {"acc": trainer.evaluate_pairs(evaluator=lambda p, r: [True] * len(p), intervals=False)["original_accuracy"]}


def test_watched_run_equals_one_that_is_not_watched(tmp_path: Path) -> None:
    results = []
    for watched in (False, True):
        random.seed(1)
        np.random.seed(1)
        trainer = tiny.trainer(
            tmp_path / str(watched),
            "bart",
            tiny.pairs("bart"),
            built=tiny.model("bart", dropout=0.2),
            eval_dataset=tiny.pairs("bart", 3, seed=1),
        )
        if watched:
            RunWatch(trainer, evaluate_at_random, "acc", 4, lambda number, value: False)
        trainer.train()
        results.append((tiny.weights(trainer.model), random.random(), np.random.rand()))
    assert tiny.distance(results[0][0], results[1][0]) == 0
    assert results[0][1:] == results[1][1:]


def watched_run(folder: Path, stop_at: int | None) -> tuple[DAIRTrainer, Run, list[str]]:
    """A run of ten steps with ten reports, and a list that gets the parts of the run that were evaluated."""
    trainer, evaluated = points.trainer(folder, points.pairs(8), max_steps=10), []

    def watch(observed: DAIRTrainer, evaluate: Any) -> RunWatch:
        return RunWatch(observed, evaluate, "acc", 10, lambda number, value: number == stop_at)

    return trainer, Run("dair_lambda1", 0, trainer.args, watch), evaluated


@pytest.mark.parametrize("stop_at", [None, 4])
def test_stopped_run_is_neither_evaluated_nor_saved(tmp_path: Path, stop_at: int | None) -> None:
    trainer, run, evaluated = watched_run(tmp_path, stop_at)

    def evaluate(trained: DAIRTrainer) -> dict[str, float]:
        evaluated.append(str(trained.state.global_step))
        return {"acc": trained.state.global_step / 10}

    if stop_at is None:
        result = train_evaluate_save(trainer, evaluate, run)
        assert (result.metrics, sorted(result.seconds)) == ({"acc": 1.0}, ["evaluation", "reports", "training"])
        assert evaluated == [str(step) for step in range(1, 11)]
        assert (tmp_path / "model.safetensors").exists()
        return
    with pytest.raises(RunStopped, match="stopped after step 4 of 10: worse than other lambdas") as stopped:
        train_evaluate_save(trainer, evaluate, run)
    assert (stopped.value.step, stopped.value.max_steps, stopped.value.value) == (4, 10, 0.4)
    assert stopped.value.seconds.keys() == {"training", "reports"} and min(stopped.value.seconds.values()) > 0
    assert (trainer.state.global_step, evaluated) == (4, ["1", "2", "3", "4"])
    assert not (tmp_path / "model.safetensors").exists()


def test_run_without_watch_has_the_seconds_of_before(tmp_path: Path) -> None:
    trainer = points.trainer(tmp_path, points.pairs(8), max_steps=2)
    assert sorted(train_evaluate_save(trainer, lambda trained: {}).seconds) == ["evaluation", "training"]


def test_watched_run_that_diverges_is_stopped(tmp_path: Path) -> None:
    data = points.pairs(8)
    for is_watched in (True, False):
        trainer, run, _ = watched_run(tmp_path, None)
        trainer.train_dataset = data
        with torch.no_grad():
            trainer.model.linear.weight[0, 0] = float("nan")
        if is_watched:
            with pytest.raises(RunStopped, match="stopped after step 0 of 10: the loss of 4 of 4 rows") as stopped:
                train_evaluate_save(trainer, lambda trained: {"acc": 1.0}, run)
            assert stopped.value.value is None
        else:
            with pytest.raises(NonFiniteLossError):
                train_evaluate_save(trainer, lambda trained: {"acc": 1.0})


def test_missing_metric_is_refused_at_the_first_report(tmp_path: Path) -> None:
    trainer, run, _ = watched_run(tmp_path, None)
    with pytest.raises(DataError, match="no metric 'acc' to report; the evaluation returned cm, rmse"):
        train_evaluate_save(trainer, lambda trained: {"cm": 1.0, "rmse": 1.0}, run)
    assert trainer.state.global_step == 1


def prunes(pruner: Any, earlier: list[list[float]], curve: list[float]) -> int | None:
    """Return the number of the report that stops a run, after runs that finished with their own reports."""
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for values in earlier:
        reports = dict(enumerate(values, start=1))
        study.add_trial(optuna.create_trial(value=values[-1], intermediate_values=reports))
    trial = study.ask()
    for number, value in enumerate(curve, start=1):
        trial.report(value, number)
        if trial.should_prune():
            return number
    return None


def test_settings_reach_the_pruner() -> None:
    low, high = [0.1] * 8, [0.9] * 8
    median = SearchConfig(search_pruner="median")
    assert prunes(make_pruner(median), [high, high], low) == 3
    assert prunes(make_pruner(median), [high], low) is None
    assert prunes(make_pruner(SearchConfig(search_pruner="median", search_startup=1)), [high], low) == 3
    assert prunes(make_pruner(SearchConfig(search_pruner="median", search_warmup=5)), [high, high], low) == 5
    assert prunes(make_pruner(median), [low, low], high) is None
    assert prunes(make_pruner(SearchConfig()), [high, high], low) is None
    # The first run reaches report 2 alone; the second one is outside the better half there.
    halving = make_pruner(SearchConfig(search_pruner="halving", search_warmup=2))
    study = optuna.create_study(direction="maximize", pruner=halving)
    ends = []
    for value in (0.5, 0.4, 0.6):
        trial = study.ask()
        for number in range(1, 9):
            trial.report(value, number)
            if trial.should_prune():
                break
        ends.append(number)
    assert ends == [8, 2, 8]
