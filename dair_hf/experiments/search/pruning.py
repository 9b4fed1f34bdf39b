"""Early stopping of the hopeless runs of a search: reports during training, and the rule that judges them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback

from dair_hf.errors import DataError
from dair_hf.experiments.run_records import RunStopped
from dair_hf.experiments.search.grids import SearchConfig
from dair_hf.losses.model_state import fork_rng
from dair_hf.training.trainer import DAIRTrainer

if TYPE_CHECKING:
    import optuna


def make_pruner(config: SearchConfig) -> optuna.pruners.BasePruner:
    """Return Optuna's pruner for the settings of a search.

    Example:
        >>> type(make_pruner(SearchConfig(search_pruner="median"))).__name__
        'MedianPruner'
    """
    import optuna

    if config.search_pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=config.search_startup, n_warmup_steps=config.search_warmup)
    if config.search_pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=config.search_warmup, reduction_factor=2)
    return optuna.pruners.NopPruner()


class RunWatch(TrainerCallback):
    """Evaluates a run during training, reports the metric that chooses, and stops the run if told to.

    Report k of n is made after the share k / n of the optimizer steps; the last one is left to the evaluation of the
    trained model. The random state is restored, so that a run that is not stopped equals one that is not watched.
    """

    def __init__(
        self,
        trainer: DAIRTrainer,
        evaluate: Callable[[DAIRTrainer], Mapping[str, Any]],
        metric: str,
        reports: int,
        report: Callable[[int, float | None], bool],
    ) -> None:
        self.trainer, self.evaluate, self.metric = trainer, evaluate, metric
        self.reports, self.report = reports, report
        self.seconds, self._start = 0.0, time.perf_counter()
        self._value: float | None = None
        self._stopped: RunStopped | None = None
        trainer.add_callback(self)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report after each n-th part of the steps."""
        number = state.global_step * self.reports // state.max_steps
        if number == (state.global_step - 1) * self.reports // state.max_steps or number >= self.reports:
            return
        start = time.perf_counter()
        with _restored_randomness(self.trainer.args.device):
            metrics = self.evaluate(self.trainer)
        if self.metric not in metrics:
            raise DataError(f"no metric {self.metric!r} to report; the evaluation returned {', '.join(metrics)}")
        self._value = metrics[self.metric]
        stops = self.report(number, self._value)
        self.seconds += time.perf_counter() - start
        if stops:
            self._stopped = self._stop("worse than other lambdas")
            control.should_training_stop = True

    def end_training(self) -> None:
        """Raise `RunStopped` if the run was stopped early."""
        if self._stopped is not None:
            raise self._stopped

    def diverged(self, error: Exception) -> RunStopped:
        """Return what ends a run whose loss became NaN or infinite."""
        return self._stop(str(error))

    def _stop(self, reason: str) -> RunStopped:
        training = time.perf_counter() - self._start - self.seconds
        seconds = {"training": training, "reports": self.seconds}
        return RunStopped(reason, self.trainer.state.global_step, self.trainer.state.max_steps, self._value, seconds)


@contextmanager
def _restored_randomness(device: torch.device) -> Iterator[None]:
    """Restore the random state of Python, numpy and torch on exit: data loaders, for instance, draw a seed."""
    states = random.getstate(), np.random.get_state()
    with fork_rng(device):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])
