"""`make results`: after any interruption it ends with the same ledger, and repeats no finished run."""

from __future__ import annotations

import contextlib
import io
import os
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

# Replacement for a recipe: its runs only sleep, and their metrics depend on method and seed.
FAKE = """
import argparse, json, os, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path)
parser.add_argument("--seeds", type=int, nargs="+")
parser.add_argument("--source")
given = parser.parse_args()
if not given.source:
    sys.exit("error: no data")
records = []
for method, share in (("erm", 7), ("dair", 3)):
    for seed in given.seeds:
        name = f"{method}_seed{seed}"
        file, scratch = given.output_dir / f"{name}.json", given.output_dir / "scratch"
        if not file.exists():
            time.sleep(0.1)
            with (given.output_dir / "executed.log").open("a") as log:
                log.write(name + chr(10))
            metrics = {"accuracy": (1 + seed) / share, "cm": 0.5}
            scratch.write_text(json.dumps({"name": name, "method": method, "seed": seed, "metrics": metrics}))
            os.replace(scratch, file)
        records.append(json.loads(file.read_text()))
(given.output_dir / "comparison.json").write_text(json.dumps({"title": "Fake", "runs": records}))
(given.output_dir / "comparison.md").write_text("| method |")
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


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DAIR_DATA": "data"}
    return subprocess.Popen(
        [sys.executable, "-m", "reproduction.results"],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(folder: Path, *options: str, data: str = "data") -> tuple[int, str]:
    """Run the command in this process; return exit status and output."""
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(contextlib.redirect_stderr(printed))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["results.py", *options])
        patch.setenv("DAIR_DATA", data)
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


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    text = (uninterrupted / "results" / "pages" / "a_section.md").read_text()
    # (1/7 + 2/7) / 2 = 21.43 %, deviation 1/7 / sqrt(2) = 10.10 %; (1/3 + 2/3) / 2 = 50 %, 1/3 / sqrt(2) = 23.57 %.
    assert "| first: erm, accuracy | 33.33 | 21.43 ± 10.10, n = 2 |" in text
    assert "| nested: dair, accuracy | 33.33 | 50.00 ± 23.57, n = 2 |" in text
    assert len(executed(uninterrupted)) == 8


@pytest.mark.slow
def test_killed_at_two_points(uninterrupted: Path, tmp_path: Path) -> None:
    """Once alone, so that the recipe outlives the command, and once together with the recipe."""
    folder = make_workspace(tmp_path / "killed")
    for finished, kill in ((1, os.kill), (5, os.killpg)):
        with start(folder) as process:
            while process.poll() is None and len(executed(folder)) < finished:
                time.sleep(0.02)
            assert process.poll() is None, process.communicate()[0]
            kill(process.pid, signal.SIGKILL)
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
    assert len(ran) <= 8 + 2


def test_finished_experiments_are_not_repeated(uninterrupted: Path) -> None:
    before = tree(uninterrupted / "results")
    (uninterrupted / "results" / "RESULTS.md").unlink()
    (uninterrupted / "results" / ".first.abc.dair_hf").mkdir()
    status, printed = run(uninterrupted)
    assert status == 0 and "8/8" in printed
    assert tree(uninterrupted / "results") == before and len(executed(uninterrupted)) == 8
    assert not (uninterrupted / "results" / ".first.abc.dair_hf").exists()


def test_changed_experiment_runs_again_with_its_stored_runs(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path / "new", SECOND)
    assert run(folder)[0] == 0
    stored = folder / "results" / "nested" / "second"
    (stored / "dair_seed0.json").unlink()
    before = (stored / "erm_seed0.json").read_bytes()
    shutil.rmtree(folder / "outputs")
    changed = {**SECOND, "command": "fake.py --seeds 0 1 2 --source none", "runs": 6}
    (folder / "results" / "experiments.yaml").write_text(yaml.safe_dump({"experiments": [changed]}))
    assert "0/6" in run(folder, "--list")[1]
    assert not (folder / "outputs").exists()
    status, printed = run(folder)
    assert status == 0, printed
    assert sorted(executed(folder)) == ["second/dair_seed0", "second/dair_seed2", "second/erm_seed2"]
    assert (stored / "erm_seed0.json").read_bytes() == before
    assert "6/6" in run(folder, "--list")[1]


def test_failing_experiment_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = {**FIRST, "name": "broken", "command": "fake.py --seeds 0 --source ''"}
    one_seed = {**SECOND, "command": "fake.py --seeds 0 --source none", "runs": 2}
    folder = make_workspace(tmp_path / "new", broken, FIRST, one_seed)
    status, printed = run(folder, data="")
    assert status == 2 and "2 of 3 experiments" in printed
    assert "broken/output.log:\nerror: no data" in printed and "first: " in printed and "DAIR_DATA" in printed
    assert {path.name for path in (folder / "results").iterdir() if path.is_dir()} == {"nested", "pages"}
    text = (folder / "results" / "pages" / "a_section.md").read_text()
    assert "| first: erm, accuracy | 33.33 | - | not run yet: first (method = erm) |" in text
    assert "| nested: erm, accuracy | 33.33 | 14.29, n = 1 | one seed: undecided" in text


def test_invalid_options_and_claims_are_refused_before_the_first_run(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path / "new")
    status, printed = run(folder, "--only", "third")
    assert status == 2 and "--only third" in printed
    claims = yaml.safe_load((folder / "results" / "claims.yaml").read_text())
    claims["sections"][0]["groups"][0]["claims"][0]["metrik"] = "x"
    (folder / "results" / "claims.yaml").write_text(yaml.safe_dump(claims))
    status, printed = run(folder)
    assert status == 2 and "metrik" in printed and executed(folder) == []
