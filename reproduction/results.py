"""The ledger of claims: run every experiment that is not done yet and regenerate results/RESULTS.md.

Run (`make results` does; about eight hours on two cores from nothing, seconds where all is done):

    python -m reproduction.results --data path/to/data

`results/experiments.yaml` lists the experiments, the most telling first, each a recipe with its configuration. One
after the other is run in a process of its own; a recipe skips its finished runs and resumes a killed one. What it found
is copied to `results/NAME/` and RESULTS.md is written anew after each. Kill it whenever you like and start it again.

An experiment whose command or configuration has changed is made anew by the same command: runs whose settings are still
the same are kept, the others are moved to `outputs/NAME/superseded/`, and their names are printed.

`--list` shows what is done, `--only NAME` runs one experiment (or those below a folder). The output of a recipe goes to
`outputs/NAME/output.log`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.commands import run_recipe
from dair_hf.io.folders import mark_folder
from reproduction.experiments import (
    Experiment,
    collect,
    finished_runs,
    is_done,
    read_experiments,
    remove_leftovers,
    restore,
    sole_worker,
    superseded_runs,
)
from reproduction.ledger import write_ledger

POLL_SECONDS = 0.5
TAIL_LINES = 15


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="claims.yaml, experiments.yaml, records")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="where the recipes work")
    parser.add_argument("--data", default=os.environ.get("DAIR_DATA"), help="public data sets (default: DAIR_DATA)")
    parser.add_argument("--only", metavar="NAME", help="this experiment, or those below this folder")
    parser.add_argument("--list", action="store_true", help="show what is done, and run nothing")
    return parser.parse_args()


def chosen(experiments: list[Experiment], only: str | None) -> list[Experiment]:
    """The experiments that were asked for."""
    found = [e for e in experiments if only is None or e.name == only or e.name.startswith(f"{only}/")]
    if not found:
        raise DataError(f"--only {only}: no such experiment; there are {', '.join(e.name for e in experiments)}")
    return found


def show(experiments: list[Experiment], given: argparse.Namespace) -> None:
    """Print what is done and what is not."""
    for experiment in experiments:
        done = is_done(experiment, given.results)
        runs = experiment.runs if done else min(finished_runs(given.outputs / experiment.name), experiment.runs)
        state = "done" if done else f"about {(experiment.runs - runs) * experiment.minutes:.0f} min left"
        print(f"{experiment.name:40} {runs:4}/{experiment.runs:<4} {state}")


def follow(experiment: Experiment, given: argparse.Namespace, bar: tqdm, left: float, lock: int) -> None:
    """Run a recipe to its end, the bar following the runs that it finishes."""
    output = given.outputs / experiment.name
    mark_folder(output)
    log, before = output / "output.log", bar.n
    argv = [sys.executable, *experiment.argv(given.data, output)]
    settings: dict = {"env": {**os.environ, "DAIR_REDO_CHANGED": "1"}, "pass_fds": [lock]}
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=file, **settings) as process:
        try:
            while process.poll() is None:
                finished = min(finished_runs(output), experiment.runs)
                bar.set_postfix_str(
                    f"{experiment.name}, about {(left - finished * experiment.minutes) / 60:.1f} h left", refresh=False
                )
                bar.update(before + finished - bar.n)
                time.sleep(POLL_SECONDS)
        except BaseException:
            process.terminate()
            raise
    bar.n = before + (0 if process.returncode else experiment.runs)
    bar.refresh()
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
        raise DataError(f"{experiment.name}: the recipe ended with {process.returncode}; the end of {log}:\n{tail}")


def work(experiments: list[Experiment], given: argparse.Namespace, lock: int) -> list[str]:
    """Run what is not done, one experiment after the other; the complaints, of experiments and of the ledger."""
    missing = [experiment for experiment in experiments if not is_done(experiment, given.results)]
    complaints = []
    # In a log file one line a minute, not two a second.
    interval = POLL_SECONDS if sys.stderr.isatty() else 60
    with tqdm(total=sum(e.runs for e in experiments), unit="run", desc="results", mininterval=interval) as bar:
        bar.update(sum(e.runs for e in experiments) - sum(e.runs for e in missing))
        for index, experiment in enumerate(missing):
            left = sum(e.runs * e.minutes for e in missing[index:])
            output = given.outputs / experiment.name
            before = superseded_runs(output)
            try:
                if experiment.needs_data and not given.data:
                    raise DataError(f"{experiment.name}: needs the public data sets; set DAIR_DATA or give --data")
                restore(experiment, output, given.results)
                follow(experiment, given, bar, left, lock)
                collect(experiment, output, given.results)
                write_ledger(given.results)
            except DataError as error:
                # The others may still be run: hours of them should not wait for one.
                complaints.append(str(error))
                bar.write(f"error: {error}")
            finally:
                for path in sorted(superseded_runs(output) - before):
                    bar.write(f"{experiment.name}: a finished run of other settings is kept as {path}")
    return complaints


def main() -> None:
    """Run what is not done, and write the ledger."""
    given = options()
    experiments = read_experiments(given.results / "experiments.yaml")
    asked = chosen(experiments, given.only)
    if given.list:
        return show(asked, given)
    with sole_worker(given.outputs / "results.lock") as lock:
        remove_leftovers(given.results)
        write_ledger(given.results)  # a faulty claim is told now and not after hours
        complaints = work(asked, given, lock)
        write_ledger(given.results)
    print(f"Written: {given.results / 'RESULTS.md'}")
    if complaints:
        raise DataError(f"{len(complaints)} of {len(asked)} experiments are not done:\n" + "\n".join(complaints))


if __name__ == "__main__":
    run_recipe(main)
