"""`make results`: after any interruption it ends with the same ledger, and repeats no finished run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each recipe imports the libraries again

# Replacement for a recipe: a real comparison whose runs only sleep; their metrics depend on method and seed.
FAKE = """
import argparse, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path)
parser.add_argument("--seeds", type=int, nargs="+")
parser.add_argument("--source")
given = parser.parse_args()
if not given.source:
    sys.exit("error: no data")

from dair_hf.experiments.comparison import ComparisonConfig, Result, compare, runs_of
from dair_hf.config import DAIRConfig
from dair_hf.experiments.report import Column


def execute(run):
    time.sleep(0.25)
    with (given.output_dir / "executed.log").open("a") as log:
        log.write(run.name + chr(10))
    share = (1 + run.seed) / (7 if run.method == "erm" else 3)
    return Result({"accuracy": share, "cm": share / 2}, {"training": time.time()})


args = DAIRConfig(str(given.output_dir), use_cpu=True)
runs = list(runs_of(ComparisonConfig(["erm", "dair"], seeds=given.seeds), args))
compare(runs, execute, given.output_dir, "Fake", [Column("accuracy", "accuracy")], {}, {})
"""
FIRST = {"name": "first", "command": "fake.py --seeds 0 1 --source '{data}'", "runs": 4, "minutes": 0.01}
SECOND = {"name": "nested/second", "command": "fake.py --seeds 0 1 --source none", "runs": 4, "minutes": 0.01}
CLAIMS = {
    "sections": [
        {
            "section": "A section",
            "groups": [
                {
                    "id": experiment, "setup": experiment, "experiment": experiment, "quantity": "accuracy",
                    "metric": "accuracy", "better": "higher", "scale": 100,
                    "claims": [
                        {"id": method, "method": method, "paper": "33.33", "where": {"method": method}}
                        for method in ("erm", "dair")
                    ],
                }
                for experiment in ("first", "nested")
            ],
        }
    ]
}  # fmt: skip


def make_workspace(folder: Path, *experiments: dict[str, Any]) -> Path:
    """Create a folder with a fake recipe, claims and experiments."""
    (folder / "results").mkdir(parents=True)
    (folder / "fake.py").write_text(FAKE)
    (folder / "results" / "claims.yaml").write_text(yaml.safe_dump(CLAIMS))
    listed = list(experiments) or [FIRST, SECOND]
    (folder / "results" / "experiments.yaml").write_text(yaml.safe_dump({"experiments": listed}))
    return folder


def start(folder: Path, *options: str, data: str | None = "data") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DAIR_DATA": data or ""}
    return subprocess.Popen(
        [sys.executable, "-m", "reproduction.results", *options],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(folder: Path, *options: str, **settings: Any) -> tuple[int, str]:
    """Run to the end; return exit status and output."""
    with start(folder, *options, **settings) as process:
        printed, _ = process.communicate()
    return process.returncode, printed


def run_here(folder: Path, *options: str) -> tuple[int, str]:
    """Like `run`, but in this process, for options that start no recipe."""
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(contextlib.redirect_stderr(printed))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["results.py", *options])
        patch.setenv("DAIR_DATA", "data")
        try:
            runpy.run_path(str(ROOT / "reproduction" / "results.py"), run_name="__main__")
        except SystemExit as ended:
            return int(ended.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def executed(folder: Path) -> list[str]:
    """Return every completed execution of a run."""
    # Not with rglob, which fails if a temporary folder is removed meanwhile.
    logs = sorted(
        Path(parent, "executed.log") for parent, _, names in os.walk(folder / "outputs") if "executed.log" in names
    )
    return [f"{log.parent.name}/{line}" for log in logs for line in log.read_text().split()]


def tree(folder: Path) -> dict[str, Any]:
    """Return all files of the results, and of records only what does not depend on the time."""
    contents: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".json" and path.name != "experiment.json":
            content = json.loads(path.read_text())
            contents[name] = (content["name"], content["metrics"], content["settings_fingerprint"])
        else:
            contents[name] = path.read_bytes()
    return contents


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Workspace of a command that ran without interruption."""
    folder = make_workspace(tmp_path_factory.mktemp("uninterrupted"))
    status, printed = run(folder)
    assert status == 0, printed
    return folder


def test_uninterrupted_command(uninterrupted: Path) -> None:
    names = {"dair_seed0.json", "dair_seed1.json", "erm_seed0.json", "erm_seed1.json", "experiment.json"}
    for name in ("first", "nested/second"):
        assert {path.name for path in (uninterrupted / "results" / name).glob("*.json")} == names
    text = (uninterrupted / "results" / "RESULTS.md").read_text()
    # (1/7 + 2/7) / 2 = 21.43 %, deviation 1/7 / sqrt(2) = 10.10 %; (1/3 + 2/3) / 2 = 50 %, 1/3 / sqrt(2) = 23.57 %.
    assert "| first: erm, accuracy | 33.33 | 21.43 ± 10.10, n = 2 |" in text
    assert "| nested: dair, accuracy | 33.33 | 50.00 ± 23.57, n = 2 |" in text
    assert len(executed(uninterrupted)) == 8


def test_killed_at_three_random_points(uninterrupted: Path, tmp_path: Path) -> None:
    folder = make_workspace(tmp_path / "killed")
    generator = random.Random(3)
    # Kill after some runs have finished and a random delay, alone or together with the recipe.
    points = [(finished, generator.uniform(0, 0.6)) for finished in sorted(generator.sample(range(8), 3))]
    parent_only = [True, False, generator.random() < 0.5]
    for (finished, delay), only_parent in zip(points, parent_only, strict=True):
        with start(folder) as process:
            while process.poll() is None and len(executed(folder)) < finished:
                time.sleep(0.02)
            time.sleep(delay)
            assert process.poll() is None, process.communicate()[0]
            (os.kill if only_parent else os.killpg)(process.pid, signal.SIGKILL)
            process.wait()
            # A recipe that is still running holds the pipe open; its output is discarded.
            assert process.stdout
            process.stdout.close()
    status, printed = run(folder)
    assert status == 0, printed
    assert tree(folder / "results") == tree(uninterrupted / "results")
    ran = executed(folder)
    assert set(ran) == set(executed(uninterrupted))
    # Only a run that was killed before its record was written is repeated.
    assert len(ran) <= 8 + len(points)


def test_finished_experiments_are_not_repeated(uninterrupted: Path) -> None:
    before = tree(uninterrupted / "results")
    (uninterrupted / "results" / "RESULTS.md").unlink()
    (uninterrupted / "results" / ".first.abc.dair_hf").mkdir()
    start_time = time.perf_counter()
    status, printed = run(uninterrupted)
    assert status == 0, printed
    assert tree(uninterrupted / "results") == before
    assert len(executed(uninterrupted)) == 8
    assert not (uninterrupted / "results" / ".first.abc.dair_hf").exists()
    assert "8/8" in printed
    assert time.perf_counter() - start_time < 60


def test_changed_experiment_runs_again(tmp_path: Path) -> None:
    """Another seed; a record that is older than some settings is kept, and one of other settings is an error."""
    folder = make_workspace(tmp_path / "new", SECOND)
    assert run(folder)[0] == 0
    stored = folder / "results" / "nested" / "second"
    older = json.loads((stored / "erm_seed0.json").read_text())
    del older["config"]["training"]["chunked_loss"]
    stale = json.loads((stored / "dair_seed0.json").read_text())
    stale["config"]["training"]["predict_with_generate"] = False
    for record in (older, stale):
        record["settings_fingerprint"] = "older"
        (stored / f"{record['name']}.json").write_text(json.dumps(record))
    shutil.rmtree(folder / "outputs")
    changed = {**SECOND, "command": "fake.py --seeds 0 1 2 --source none", "runs": 6}
    (folder / "results" / "experiments.yaml").write_text(yaml.safe_dump({"experiments": [changed]}))
    assert "0/6" in run_here(folder, "--list")[1]
    before = tree(stored)
    status, printed = run(folder)
    assert status == 2 and "dair_seed0.json" in printed and "predict_with_generate" in printed
    assert (executed(folder), tree(stored)) == ([], before)
    for copy in (stored, folder / "outputs" / "nested" / "second"):
        (copy / "dair_seed0.json").unlink()
    status, printed = run(folder)
    assert status == 0, printed
    assert sorted(executed(folder)) == ["second/dair_seed0", "second/dair_seed2", "second/erm_seed2"]
    assert json.loads((stored / "erm_seed0.json").read_text()) == older
    assert "6/6" in run_here(folder, "--list")[1]


def test_list_shows_the_status(uninterrupted: Path, tmp_path: Path) -> None:
    assert re.findall(r"(\S+) +(\d+)/(\d+) +(.*)", run_here(uninterrupted, "--list")[1]) == [
        ("first", "4", "4", "done"),
        ("nested/second", "4", "4", "done"),
    ]
    folder = make_workspace(tmp_path / "new", {**FIRST, "minutes": 3})
    assert re.findall(r"(\S+) +(\d+)/(\d+) +(.*)", run_here(folder, "--list")[1]) == [
        ("first", "0", "4", "about 12 min left")
    ]
    assert not (folder / "outputs").exists()


def test_failing_experiment_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = {**FIRST, "name": "broken", "command": "fake.py --seeds 0 --source ''"}
    one_seed = {**SECOND, "command": "fake.py --seeds 0 --source none", "runs": 2}
    folder = make_workspace(tmp_path / "new", broken, FIRST, one_seed)
    assert run(folder, "--only", "nested/")[0] == 0
    assert executed(folder) == ["second/erm_seed0", "second/dair_seed0"]
    status, printed = run(folder, data=None)
    assert status == 2
    assert "error: 2 of 3 experiments are not done" in printed
    assert "broken: the recipe ended with 1; the end of outputs/broken/output.log:\nerror: no data" in printed
    assert "first: needs the public data sets; set DAIR_DATA or give --data" in printed
    assert {path.name for path in (folder / "results").iterdir() if path.is_dir()} == {"nested"}
    text = (folder / "results" / "RESULTS.md").read_text()
    assert "| first: erm, accuracy | 33.33 | - | not run yet: first (method = erm) |" in text
    assert "| nested: erm, accuracy | 33.33 | 14.29, n = 1 | one seed: undecided" in text


def test_invalid_options_and_claims_are_refused(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path / "new")
    status, printed = run_here(folder, "--only", "third")
    assert (status, "--only third: no such experiment; there are first, nested/second" in printed) == (2, True)
    claims = yaml.safe_load((folder / "results" / "claims.yaml").read_text())
    claims["sections"][0]["groups"][0]["claims"][0]["metrik"] = "x"
    (folder / "results" / "claims.yaml").write_text(yaml.safe_dump(claims))
    status, printed = run_here(folder)
    assert (status, "unknown key 'metrik'; did you mean 'metric'?" in printed) == (2, True)
    with contextlib.suppress(FileNotFoundError):
        assert [path.name for path in (folder / "outputs").iterdir()] == ["results.lock"]
