"""Run every experiment that is not done yet, and regenerate results/RESULTS.md and results/pages/.

Run (as `make results` does; about 86 hours on two cores from scratch, a minute if everything is done):

    python -m reproduction.results --data path/to/data

`results/experiments.yaml` lists the experiments, the most informative first; each is a recipe with its configuration.
They run one after the other, each in its own process. A recipe skips its finished runs and resumes an interrupted one.
Its records are copied to `results/NAME/`, and RESULTS.md is rewritten after each experiment. The command can be killed
at any time and started again.

An experiment whose command or configuration has changed runs again: runs whose settings are unchanged are kept, and
a record with other settings is an error that names it. Move it away to repeat the run.

`--list` shows the status, `--only NAME` runs one experiment (or those below a folder). The output of each recipe is
written to `outputs/NAME/output.log`.
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
from dair_hf.io.files import mark_folder
from reproduction.experiments import (
    Experiment,
    collect,
    finished_runs,
    is_done,
    read_experiments,
    remove_leftovers,
    restore,
    sole_worker,
)
from reproduction.ledger import write_ledger

POLL_SECONDS = 0.5
TAIL_LINES = 15


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="claims.yaml, experiments.yaml, records")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="where the recipes work")
    parser.add_argument("--data", default=os.environ.get("DAIR_DATA"), help="public data sets (default: DAIR_DATA)")
    parser.add_argument("--only", metavar="NAME", help="this experiment, or those below this folder")
    parser.add_argument("--list", action="store_true", help="show what is done, and run nothing")
    return parser.parse_args()


def select_experiments(experiments: list[Experiment], only: str | None) -> list[Experiment]:
    """Return the experiments that `--only` selects."""
    folder = None if only is None else only.rstrip("/")  # the shell completes the names of folders with a slash
    selected = [e for e in experiments if folder is None or e.name == folder or e.name.startswith(f"{folder}/")]
    if not selected:
        raise DataError(f"--only {only}: no such experiment; there are {', '.join(e.name for e in experiments)}")
    return selected


def print_status(experiments: list[Experiment], options: argparse.Namespace) -> None:
    """Print which experiments are done, and the time left for the others."""
    for experiment in experiments:
        done = is_done(experiment, options.results)
        runs = experiment.runs if done else min(finished_runs(options.outputs / experiment.name), experiment.runs)
        state = "done" if done else f"about {(experiment.runs - runs) * experiment.minutes:.0f} min left"
        print(f"{experiment.name:40} {runs:4}/{experiment.runs:<4} {state}")


def run_experiment(
    experiment: Experiment, options: argparse.Namespace, bar: tqdm, minutes_left: float, lock: int
) -> None:
    """Run a recipe in its own process, and show its finished runs in the progress bar."""
    output = options.outputs / experiment.name
    mark_folder(output)
    log, before = output / "output.log", bar.n
    argv = [sys.executable, *experiment.argv(options.data, output)]
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=file, pass_fds=[lock]) as process:
        try:
            while process.poll() is None:
                finished = min(finished_runs(output), experiment.runs)
                hours = (minutes_left - finished * experiment.minutes) / 60
                bar.set_postfix_str(f"{experiment.name}, about {hours:.1f} h left", refresh=False)
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


def run_experiments(experiments: list[Experiment], options: argparse.Namespace, lock: int) -> list[str]:
    """Run the experiments that are not done, one after the other, and return the error messages of those that fail."""
    missing = [experiment for experiment in experiments if not is_done(experiment, options.results)]
    errors = []
    # A log file gets one line per minute, not two per second.
    interval = POLL_SECONDS if sys.stderr.isatty() else 60
    with tqdm(total=sum(e.runs for e in experiments), unit="run", desc="results", mininterval=interval) as bar:
        bar.update(sum(e.runs for e in experiments) - sum(e.runs for e in missing))
        for index, experiment in enumerate(missing):
            minutes_left = sum(e.runs * e.minutes for e in missing[index:])
            output = options.outputs / experiment.name
            try:
                if experiment.needs_data and not options.data:
                    raise DataError(f"{experiment.name}: needs the public data sets; set DAIR_DATA or give --data")
                restore(experiment, output, options.results)
                run_experiment(experiment, options, bar, minutes_left, lock)
                collect(experiment, output, options.results)
                write_ledger(options.results)
            except DataError as error:
                # The other experiments can still run.
                errors.append(str(error))
                bar.write(f"error: {error}")
    return errors


def main() -> None:
    """Run the experiments that are not done, and write the ledger."""
    options = parse_options()
    experiments = select_experiments(read_experiments(options.results / "experiments.yaml"), options.only)
    if options.list:
        return print_status(experiments, options)
    with sole_worker(options.outputs / "results.lock") as lock:
        remove_leftovers(options.results)
        write_ledger(options.results)  # reports invalid claims before the first experiment runs
        errors = run_experiments(experiments, options, lock)
        write_ledger(options.results)
    print(f"Written: {options.results / 'RESULTS.md'}")
    if errors:
        raise DataError(f"{len(errors)} of {len(experiments)} experiments are not done:\n" + "\n".join(errors))


if __name__ == "__main__":
    run_recipe(main)
