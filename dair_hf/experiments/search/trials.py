"""Trials of a search in an Optuna study, each taken by one of the processes that share the study's file."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from accelerate import PartialState
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.io.processes import on_first_rank

if TYPE_CHECKING:
    import optuna

logger = logging.get_logger(__name__)

HEARTBEAT_SECONDS = 30.0  # between two signs of life of the process that runs a trial
LOST_SECONDS = 300.0  # without a sign of life, after which a trial is taken from its process
POLL_SECONDS = 2.0  # between two looks at the journal while other processes run the last points
SETTINGS_SECONDS = 30.0  # to wait for the process that has just created a study and is about to describe it
_POINT, _SETTINGS, _RESULT, _HEARTBEAT, _WORKER = "point", "settings", "result", "heartbeat", "worker"


class TrialLost(Exception):
    """The trial of this process was given to another one, because this one seemed to have ended."""


class Trials(NamedTuple):
    """Points of a study by state."""

    waiting: list[str]
    running: dict[str, str]
    finished: dict[str, Any]
    stopped: dict[str, Any]


class Outcome(NamedTuple):
    """Outcome of a point.

    Attributes:
        value: Its value; None or NaN if it is undefined.
        result: What other processes get to know, as JSON represents it.
        is_stopped: Whether it was stopped early.
    """

    value: float | None
    result: Any
    is_stopped: bool = False


class TrialStudy:
    """Points of a grid as trials of an Optuna study, in a journal file that processes and machines may share.

    Every point is run by one process, in the order of the grid. `GridSampler` does not promise that: at the end of a
    grid it gives a point to a second process while the first still runs it, and it counts a failed trial as visited.
    Here each point is queued as a trial with fixed parameters, and the journal decides which process takes it. Two
    processes may queue a point at the same time; of its trials that have not failed, the one with the lowest number
    counts.

    Optuna's heartbeat needs a database, and SQLite lets two processes take the same queued trial. So a trial carries a
    counter that its process increases every `HEARTBEAT_SECONDS`. A trial whose counter stands still for
    `LOST_SECONDS`, by the clock of the observer, is queued again.

    Args:
        file: The journal.
        name: Name of the study.
        settings: Settings by dotted name; a study with others is refused.
        points: Points of the grid -> their parameters.
        make_pruner: Returns Optuna's pruner, which decides what is stopped early; None: nothing is.
        maximize: Whether larger values are better.
        shared: Whether other processes may work on the study now. If not, running trials are those of a killed process.

    Raises:
        DataError: optuna is not installed, the file is no journal or cannot be written, or its study has other
            settings.

    Example:
        >>> import tempfile
        >>> study = TrialStudy(Path(tempfile.mkdtemp(), "study.log"), "dair", {}, {"1": {"dair_lambda": 1.0}})
        >>> study.run(lambda point: Outcome(0.9, f"result of {point}")).finished
        {'1': 'result of 1'}
    """

    def __init__(
        self,
        file: Path,
        name: str,
        settings: Mapping[str, str],
        points: Mapping[str, Mapping[str, float]],
        make_pruner: Callable[[], optuna.pruners.BasePruner] | None = None,
        *,
        maximize: bool = True,
        shared: bool = False,
    ) -> None:
        self.file, self.name, self.points = file, name, {point: dict(values) for point, values in points.items()}
        self.maximize = maximize
        self._study: Any = None  # of optuna; on the first rank
        self._trial: optuna.Trial | None = None
        self._reported: set[int] = set()
        self._alive: threading.Event | None = None
        self._seen: dict[int, tuple[Any, float]] = {}  # trial -> its counter, and when it was first seen
        on_first_rank(functools.partial(self._open, settings, make_pruner, shared))

    def run(self, execute: Callable[[str], Outcome], wait: bool = True) -> Trials:
        """Run points until none is left to take, and return all points by state.

        Args:
            execute: Runs a point.
            wait: Whether to wait for the points that other processes run, and to take over those of killed ones.
        """
        announced = False
        while True:
            if (point := on_first_rank(self._take)) is not None:
                self._run_point(point, execute)
                continue
            state = on_first_rank(self._state)
            if not wait or not (state.waiting or state.running):
                return state
            if not announced and PartialState().is_main_process:
                print(f"{self.file}: waiting for {', '.join(f'{p} ({by})' for p, by in state.running.items())}")
            announced = True
            time.sleep(POLL_SECONDS)

    def report(self, step: int, value: float | None) -> bool:
        """Report an intermediate value of the point that this process runs, and return whether to stop it.

        Args:
            step: Number of the report, the same for the same amount of training in all trials.
            value: The value; None or NaN if it is undefined, which stops nothing.

        Raises:
            TrialLost: Another process has the trial now.
        """
        if value is None or math.isnan(value):
            return False
        return self._unless_lost(functools.partial(self._report, step, value))

    def _run_point(self, point: str, execute: Callable[[str], Outcome]) -> None:
        try:
            outcome = execute(point)
            self._unless_lost(functools.partial(self._end, outcome))
        except TrialLost:
            if PartialState().is_main_process:
                print(f"{self.file}: {point} was taken over by another process", flush=True)
        finally:
            self._release()

    def _unless_lost(self, work: Callable[[], bool]) -> bool:
        """Run `work` on the first rank; if the trial is lost, say so on every rank."""

        def attempt() -> bool | None:
            from optuna.exceptions import UpdateFinishedTrialError

            try:
                return work()
            except UpdateFinishedTrialError:
                return None

        if (result := on_first_rank(attempt)) is None:
            raise TrialLost
        return result

    # ---- on the first rank ----

    def _open(self, settings: Mapping[str, str], make_pruner: Callable[[], Any] | None, shared: bool) -> None:
        require_optuna()
        self._study = _open_study(self.file, self.name, settings, make_pruner and make_pruner(), self.maximize)
        for trial in () if shared else self._trials():
            if trial.state.name == "RUNNING":
                self._fail(trial.number)

    def _state(self) -> Trials:
        state = Trials([], {}, {}, {})
        for point in self.points:
            trial = self._counting(point)
            if trial is None or trial.state.name == "WAITING":
                state.waiting.append(point)
            elif trial.state.name == "RUNNING":
                state.running[point] = trial.user_attrs.get(_WORKER, "a process")
            else:
                results = state.finished if trial.state.name == "COMPLETE" else state.stopped
                results[point] = trial.user_attrs[_RESULT]
        return state

    def _take(self) -> str | None:
        """Take the next point that no process has taken, or None if there is none now."""
        self._release_lost()
        while True:
            if not any(trial.state.name == "WAITING" for trial in self._trials()):
                missing = next((point for point in self.points if self._counting(point) is None), None)
                if missing is None:
                    return None
                self._enqueue(missing)
            trial = self._study.ask()
            taken = self._trials()[trial.number].user_attrs.get(_POINT)
            counting = None if taken is None else self._counting(taken)
            if taken in self.points and counting is not None and counting.number == trial.number:
                self._start(trial, taken)
                return taken
            # Another process took the waiting trial in the meantime, or has queued this point at the same time.
            self._fail(trial.number)

    def _report(self, step: int, value: float) -> bool:
        assert self._trial is not None
        if step not in self._reported:  # a trial that was taken up again has those of its former process
            self._trial.report(value, step)
            self._reported.add(step)
        return bool(self._trial.should_prune())

    def _end(self, outcome: Outcome) -> bool:
        from optuna.trial import TrialState

        assert self._trial is not None
        self._trial.set_user_attr(_RESULT, outcome.result)
        if outcome.is_stopped:
            self._study.tell(self._trial, state=TrialState.PRUNED)
        else:
            undefined = outcome.value is None or math.isnan(outcome.value)
            worst = -math.inf if self.maximize else math.inf
            self._study.tell(self._trial, worst if undefined else outcome.value, TrialState.COMPLETE)
        self._trial = None
        return True

    def _release(self) -> None:
        """End the signs of life, and give a point back that has not ended."""
        trial, self._trial = self._trial, None
        if self._alive is not None:
            self._alive.set()
            self._alive = None
        if trial is not None:
            self._fail(trial.number)

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _counting(self, point: str) -> optuna.trial.FrozenTrial | None:
        """Return the trial of a point that counts."""
        trials = (t for t in self._trials() if t.user_attrs.get(_POINT) == point and t.state.name != "FAIL")
        return next(trials, None)

    def _enqueue(self, point: str) -> None:
        import optuna

        # With the reports of a trial that failed, since it resumes from its checkpoint; and the rungs that it reached.
        failed = [trial for trial in self._trials() if trial.user_attrs.get(_POINT) == point]
        failed.sort(key=lambda trial: len(trial.intermediate_values))
        rungs = failed[-1].system_attrs if failed else {}
        self._study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState.WAITING,
                system_attrs={**rungs, "fixed_params": self.points[point]},
                user_attrs={_POINT: point},
                intermediate_values=failed[-1].intermediate_values if failed else None,
            )
        )

    def _start(self, trial: optuna.Trial, point: str) -> None:
        for name in self.points[point]:
            values = [values[name] for values in self.points.values()]
            trial.suggest_float(name, min(values), max(values))
        self._trial, self._reported = trial, set(self._trials()[trial.number].intermediate_values)
        trial.set_user_attr(_WORKER, f"{platform.node()}, process {os.getpid()}")
        self._alive = threading.Event()
        threading.Thread(target=_beat, args=(trial, self._alive), daemon=True).start()

    def _release_lost(self) -> None:
        """Queue the trials again whose processes have given no sign of life for `LOST_SECONDS`."""
        now = time.monotonic()
        for trial in self._trials():
            if trial.state.name != "RUNNING":
                continue
            count = trial.user_attrs.get(_HEARTBEAT)
            if self._seen.get(trial.number, (None, None))[0] != count or trial.number not in self._seen:
                self._seen[trial.number] = count, now
            elif now - self._seen[trial.number][1] > LOST_SECONDS:
                worker = trial.user_attrs.get(_WORKER, "a process")
                logger.warning(f"{self.file}: trial {trial.number} of {worker} is taken over; it gave no sign of life")
                self._fail(trial.number)

    def _fail(self, number: int) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with contextlib.suppress(UpdateFinishedTrialError):  # by another process at the same time
            self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


def require_optuna() -> None:
    """Refuse to go on without optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise DataError(
            "search_pruner and search_storage need optuna; it is not installed: pip install optuna"
        ) from error


def _open_study(
    file: Path, name: str, settings: Mapping[str, str], pruner: optuna.pruners.BasePruner | None, maximize: bool
) -> optuna.Study:
    """Create a study in a journal, or load the one that is there."""
    import optuna

    from dair_hf.experiments.search.journal import open_journal

    storage = open_journal(file)
    pruner = pruner or optuna.pruners.NopPruner()
    kind: Any = {"sampler": optuna.samplers.RandomSampler(), "pruner": pruner}  # nothing is sampled: points are queued
    try:
        study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize" if maximize else "minimize", **kind
        )
        study.set_user_attr(_SETTINGS, dict(settings))
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(storage=storage, study_name=name, **kind)
    end = time.monotonic() + SETTINGS_SECONDS
    while (known := study.user_attrs.get(_SETTINGS)) is None:
        if time.monotonic() > end:
            raise DataError(f"{file}: the process that created it was killed at once; remove the file")
        time.sleep(0.05)
    changed = [
        f"{key} was {known.get(key, 'absent')}, is {settings.get(key, 'absent')}"
        for key in sorted(known.keys() | settings.keys())
        if known.get(key) != settings.get(key)
    ]
    if changed:
        more = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise DataError(
            f"{file}: holds a search with other settings ({'; '.join(changed[:3])}{more}); name another file"
        )
    return study


def _beat(trial: optuna.Trial, alive: threading.Event) -> None:
    count = 0
    while True:
        try:
            trial.set_user_attr(_HEARTBEAT, count)
        except OSError as error:  # such as a network file system that is away for a while
            logger.warning(f"no sign of life of trial {trial.number} could be written: {error}")
        except RuntimeError:
            return  # the trial was given to another process, which `report` or `finish` will find
        count += 1
        if alive.wait(HEARTBEAT_SECONDS):
            return
