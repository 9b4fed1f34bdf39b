"""Studies that processes share: who runs what, killed processes, and files that hold something else."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileSymlinkLock

from dair_hf.errors import DataError
from dair_hf.experiments.search import journal, trials
from dair_hf.experiments.search.trials import Outcome, TrialStudy
from tests.fixtures import tiny
from tests.fixtures.paths import ROOT

POINTS = {f"{value:g}": {"dair_lambda": float(value)} for value in (1, 10, 100)}


def open_study(file: Path, points: Any = POINTS, **options: Any) -> TrialStudy:
    return TrialStudy(file, "dair", {"rows": "60"}, points, **options)


WORKER = """
import json, sys, time
from pathlib import Path
from dair_hf.experiments.search import trials
from dair_hf.experiments.search.trials import Outcome, TrialStudy

file, mode, log = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
trials.HEARTBEAT_SECONDS, trials.POLL_SECONDS = 0.05, 0.05
points = json.loads(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()

def execute(point):
    with log.open("a") as lines:
        lines.write(point + "\\n")
    if mode == "hang":
        print("hangs", flush=True)
        time.sleep(600)
    return Outcome(points[point]["dair_lambda"], {"result": point})

study = TrialStudy(file, "dair", {"rows": "60"}, points, shared=True)
print(json.dumps(study.run(execute)), flush=True)
"""


@contextlib.contextmanager
def worker(file: Path, mode: str, points: Any, log: Path) -> Any:
    """A process that is about to work on a study."""
    command = [sys.executable, "-c", WORKER, str(file), mode, str(log), json.dumps(points)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=tiny.child_environment(), cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def start(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.slow
def test_two_processes_run_every_point_once(tmp_path: Path) -> None:
    points = {str(number): {"dair_lambda": float(number)} for number in range(40)}
    file, logs = tmp_path / "shared" / "study.log", [tmp_path / name for name in ("first", "second")]
    with worker(file, "work", points, logs[0]) as first, worker(file, "work", points, logs[1]) as second:
        start(first)
        start(second)
        states = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in (first, second)]
    ran = [log.read_text().split() if log.exists() else [] for log in logs]
    assert sorted(sum(ran, []), key=int) == list(points)
    # Both know the results of all points.
    assert states[0] == states[1] == [[], {}, {point: {"result": point} for point in points}, {}]
    # Read by Optuna itself.
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
    study = optuna.load_study(study_name="dair", storage=storage)
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert sorted(trial.params["dair_lambda"] for trial in finished) == list(range(40))
    assert study.best_value == 39


@pytest.mark.slow
def test_point_of_a_killed_process_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ran = tmp_path / "study.log", []

    def execute(point: str) -> Outcome:
        ran.append(point)
        return Outcome(1.0, point)

    with worker(file, "hang", POINTS, tmp_path / "log") as hanging:
        start(hanging)
        assert hanging.stdout.readline() == "hangs\n"
        monkeypatch.setattr(trials, "LOST_SECONDS", 1.0)
        monkeypatch.setattr(trials, "POLL_SECONDS", 0.05)
        study = open_study(file, shared=True)
        state = study.run(execute, wait=False)
        assert (ran, list(state.running), state.running["1"].endswith(f"process {hanging.pid}")) == (
            ["10", "100"], ["1"], True,
        )  # fmt: skip
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert study._take() is None, "a living process was robbed"
            time.sleep(0.05)
        hanging.send_signal(signal.SIGKILL)
        hanging.wait()
        assert study.run(execute).finished == {"1": "1", "10": "10", "100": "100"}
    assert ran == ["10", "100", "1"]


def test_point_of_an_interrupted_process_is_run_again_with_its_reports(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    stopped: list[bool] = []

    def interrupted(point: str) -> Outcome:
        study.report(1, 0.5)
        raise KeyboardInterrupt

    def resumed(point: str) -> Outcome:
        # A report of the same step is that of the former process; Optuna would warn of a second one.
        stopped.extend(study.report(step, 0.7) for step in (1, 2))
        return Outcome(0.9, point)

    study = open_study(file, {"1": {"dair_lambda": 1.0}})
    with pytest.raises(KeyboardInterrupt):
        study.run(interrupted)
    assert study._state().waiting == ["1"]
    study = open_study(file, {"1": {"dair_lambda": 1.0}})
    assert study.run(resumed).finished == {"1": "1"}
    assert stopped == [False, False]
    assert study._counting("1").intermediate_values == {1: 0.5, 2: 0.7}  # type: ignore[union-attr]


def test_unshared_study_takes_up_what_was_running(tmp_path: Path) -> None:
    killed = open_study(tmp_path / "study.log")
    assert killed._take() == "1"
    assert open_study(tmp_path / "study.log", shared=True)._state().running.keys() == {"1"}
    resumed = open_study(tmp_path / "study.log")
    assert list(resumed.run(lambda point: Outcome(1.0, point)).finished) == ["1", "10", "100"]


@pytest.mark.parametrize("reports", [True, False])
def test_process_that_lost_its_point_does_not_replace_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reports: bool
) -> None:
    slow, other = (open_study(tmp_path / "study.log", {"1": {}}, shared=True) for _ in range(2))

    def execute(point: str) -> Outcome:
        assert slow._trial is not None
        other._fail(slow._trial.number)
        assert other.run(lambda point: Outcome(1.0, "of the other")).finished == {"1": "of the other"}
        if reports:
            slow.report(1, 0.5)
            pytest.fail("the loss was not noticed")
        return Outcome(2.0, "of the slow one")

    assert slow.run(execute).finished == {"1": "of the other"}
    assert "study.log: 1 was taken over by another process" in capsys.readouterr().out


def test_point_that_two_processes_queued_at_once_is_run_once(tmp_path: Path) -> None:
    study, ran = open_study(tmp_path / "study.log"), []
    for _ in range(2):
        for point in POINTS:
            study._enqueue(point)
    state = study.run(lambda point: Outcome(1.0, ran.append(point)))
    assert (ran, list(state.finished)) == ([*POINTS], [*POINTS])


def median_pruner() -> Any:
    return optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=1)


@pytest.mark.parametrize(
    ("maximize", "curves", "stopped"),
    [
        # 0.4 < 0.5 after the first report; the best value so far counts: 0.7 >= 0.6.
        (True, {"1": [0.5, 0.6], "10": [0.4, 0.9], "100": [0.7, 0.3]}, {"10": 1}),
        # Of errors, 0.6 > 0.5; an undefined value stops nothing.
        (False, {"1": [0.5, 0.6], "10": [math.nan, 0.4], "100": [0.6, 0.1]}, {"100": 1}),
    ],
)
def test_pruner_judges_reports(
    tmp_path: Path, maximize: bool, curves: dict[str, list[float]], stopped: dict[str, int]
) -> None:
    def execute(point: str) -> Outcome:
        for step, value in enumerate(curves[point], start=1):
            if study.report(step, value):
                return Outcome(None, step, is_stopped=True)
        return Outcome(value, None)

    study = open_study(tmp_path / "study.log", make_pruner=median_pruner, maximize=maximize)
    state = study.run(execute)
    assert (state.stopped, state.finished.keys()) == (stopped, POINTS.keys() - stopped.keys())


@pytest.mark.parametrize(("maximize", "values"), [(True, [None, math.nan, -5.0]), (False, [None, math.nan, 5.0])])
def test_undefined_result_is_the_worst(tmp_path: Path, maximize: bool, values: list[float | None]) -> None:
    study = open_study(tmp_path / "study.log", maximize=maximize)
    study.run(lambda point: Outcome(dict(zip(POINTS, values, strict=True))[point], None))
    assert study._study.best_params == {"dair_lambda": 100.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"method,seed\ndair,0\n", "study.log: line 1: not a journal of Optuna; name another file"),
        (b"hello\n", "study.log: line 1: not a journal of Optuna; name another file"),
        (b"hello", "study.log: line 1: not a journal of Optuna"),
        (b"\x00SQLite format 3\xff\xfe\n", "study.log: line 1: not a journal of Optuna"),
        (b'{"name": "dair_seed0"}\n', "study.log: line 1: not a journal of Optuna"),
        (b'{"op_code":99,"worker_id":"a"}\n', "study.log: not a journal of Optuna"),
    ],
)
def test_files_of_others_are_refused_and_kept(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "study.log").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_study(tmp_path / "study.log")
    assert (tmp_path / "study.log").read_bytes() == content


@pytest.mark.parametrize("shared", [False, True])
def test_line_that_a_killed_writer_left_incomplete_is_ignored(tmp_path: Path, shared: bool) -> None:
    file = tmp_path / "study.log"
    study = open_study(file, {"1": POINTS["1"]}, shared=shared)
    study.run(lambda point: Outcome(1.0, point))
    lines = file.read_bytes().splitlines(keepends=True)
    for cut in (1, 30, len(lines[-1]) - 1):
        file.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])  # the result is lost, so the point is run again
        again = open_study(file, {"1": POINTS["1"]})
        assert again.run(lambda point: Outcome(2.0, "again")).finished == {"1": "again"}
        assert open_study(file, {"1": POINTS["1"]}).run(lambda point: Outcome(3.0, "never")).finished == {"1": "again"}


def test_incomplete_line_is_ignored_by_processes_that_are_at_work(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    first, second = open_study(file, shared=True), open_study(file, shared=True)

    def execute(point: str) -> Outcome:
        lock = JournalFileSymlinkLock(str(file))  # heartbeats of this process wait for it, as for that of any writer
        lock.acquire()
        with file.open("ab") as torn:
            torn.write(b'{"op_code":8,"worker_id":"kil')  # another process is killed here
        lock.release()
        return Outcome(1.0, point)

    assert first.run(execute).finished == second.run(execute).finished == {point: point for point in POINTS}
    for line in file.read_text().splitlines()[:-1]:
        json.loads(line)


def test_lock_is_released_where_the_journal_cannot_be_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path) -> None:
        raise OSError("no space left")

    file = tmp_path / "study.log"
    file.touch()
    monkeypatch.setattr(journal, "remove_incomplete_line", fail)
    with pytest.raises(OSError, match="no space left"):
        journal.RepairingLock(file).acquire()
    assert [path.name for path in tmp_path.iterdir()] == ["study.log"]


def test_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    open_study(file)
    before = file.read_bytes()
    lines = before.splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:20] + b"".join(lines[1:]))
    content = file.read_bytes()
    with pytest.raises(DataError, match="study.log: line 2: damaged .*; move the file away and start again"):
        open_study(file)
    assert file.read_bytes() == content


def test_study_with_other_settings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    open_study(file)
    with pytest.raises(
        DataError, match=r"holds a search with other settings \(rows was 60, is 80; seed was absent, is 1"
    ):
        TrialStudy(file, "dair", {"rows": "80", "seed": "1"}, POINTS)
    # Another method in the same file is another study.
    assert TrialStudy(file, "kl", {"rows": "80"}, POINTS)._state().waiting == [*POINTS]


def test_study_whose_creator_was_killed_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SETTINGS_SECONDS", 0.1)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log")))
    optuna.create_study(storage=storage, study_name="dair")
    with pytest.raises(DataError, match="study.log: the process that created it was killed at once; remove the file"):
        open_study(tmp_path / "study.log")


def test_missing_optuna_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(DataError, match="pip install optuna"):
        open_study(tmp_path / "study.log")


def test_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="study.log"):
        open_study(tmp_path / "file" / "study.log")


def test_heartbeat_survives_a_storage_that_is_away_for_a_while() -> None:
    class Trial:
        number, counts = 3, []

        def set_user_attr(self, name: str, count: int) -> None:
            self.counts.append(count)
            if count == 0:
                raise OSError("stale file handle")
            if count == 2:
                raise optuna.exceptions.UpdateFinishedTrialError

    class Clock:
        wait: Callable[..., bool] = staticmethod(lambda seconds: False)

    trials._beat(Trial(), Clock())  # type: ignore[arg-type]
    assert Trial.counts == [0, 1, 2]
