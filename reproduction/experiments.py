"""Experiments behind the ledger: a list of recipe commands, which are done, and how their records are kept."""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import SCRATCH, atomic_path, read_json, read_yaml, write_json
from dair_hf.io.folders import SUPERSEDED, mark_folder, set_aside, superseded_name

MARKER = "experiment.json"


class Experiment(NamedTuple):
    """A recipe with its settings.

    Attributes:
        name: Its folder, below the outputs as well as below the results: "rotated_mnist_noise/share_0.2".
        command: The recipe and its options; "{data}" stands for the folder of the public data sets.
        runs: How many runs it makes.
        minutes: Expected minutes of one run, on two cores.
    """

    name: str
    command: tuple[str, ...]
    runs: int
    minutes: float

    @property
    def needs_data(self) -> bool:
        """Whether the command names the folder of the public data sets."""
        return any("{data}" in part for part in self.command)

    def argv(self, data: str | None, output: Path) -> list[str]:
        """The command with the folder of the data and that of the output."""
        return [*(part.replace("{data}", data or "") for part in self.command), "--output_dir", str(output)]


def read_experiments(path: Path) -> list[Experiment]:
    """Read and check `experiments.yaml`: a list `experiments`, each with `name`, `command`, `runs` and `minutes`.

    Args:
        path: The file.

    Returns:
        The experiments, in the order in which they are to be run.

    Raises:
        DataError: The file is absent or no YAML, a key is unknown or missing, a value is of the wrong kind, or a name
            is given twice or lies inside another.
    """
    content = read_yaml(path)
    entries = content.get("experiments") if isinstance(content, dict) else None
    if not isinstance(entries, list) or set(content) != {"experiments"}:
        raise DataError(f"{path}: needs one key at the top, `experiments`, with a list below it")
    found = [_experiment(entry, path) for entry in entries]
    folders = [Path(experiment.name) for experiment in found]
    for index, folder in enumerate(folders):
        for other in folders[:index]:
            if folder == other or folder in other.parents or other in folder.parents:
                raise DataError(f"{path}: {other} and {folder}: one folder lies inside the other; give each its own")
    return found


def _experiment(entry: Any, path: Path) -> Experiment:
    kinds: dict[str, tuple[type, ...]] = {"name": (str,), "command": (str,), "runs": (int,), "minutes": (int, float)}
    if not isinstance(entry, dict) or set(entry) != set(kinds):
        raise DataError(f"{path}: {entry!r}: each experiment needs exactly {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(entry[key], kind) or isinstance(entry[key], bool):
            raise DataError(f"{path}: {entry['name']}: {key}={entry[key]!r} has the wrong type")
    place = Path(entry["name"])
    if place.is_absolute() or not place.parts or any(part.startswith(".") for part in place.parts):
        raise DataError(f"{path}: name {entry['name']!r}: give a folder below the results")
    if entry["runs"] < 1 or entry["minutes"] < 0:
        raise DataError(f"{path}: {entry['name']}: needs at least one run, and minutes of 0 or more")
    return Experiment(entry["name"], tuple(shlex.split(entry["command"])), entry["runs"], entry["minutes"])


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """What an experiment depends on: its command, and the settings, not the comments, of the YAML files it names."""
    files = [Path(part) for part in experiment.command if part.endswith((".yaml", ".yml"))]
    return {"command": list(experiment.command), "configs": {str(f): _digest(f) for f in files if f.is_file()}}


def _digest(config: Path) -> str:
    return hashlib.sha256(json.dumps(read_yaml(config), sort_keys=True, default=str).encode()).hexdigest()[:16]


def is_done(experiment: Experiment, results: Path) -> bool:
    """Whether the records of an experiment, with the settings of today, stand in the results."""
    marker = results / experiment.name / MARKER
    return marker.exists() and read_json(marker) == settings_of(experiment)


def finished_runs(output: Path) -> int:
    """How many runs below a recipe's output folder have their JSON."""
    count = 0
    # Not by rglob: the recipe at work makes and removes folders meanwhile.
    for _, folders, names in os.walk(output):
        folders[:] = [name for name in folders if name not in ("runs", SUPERSEDED) and not name.startswith(".")]
        count += len(fnmatch.filter(names, "*_seed*.json"))
    return count


def collect(experiment: Experiment, output: Path, results: Path) -> int:
    """Copy what a finished experiment found into the results: records, tables and plots, and last the note of it.

    Records are those that the recipe's `comparison.json` names: a run of an earlier comparison that still stands in the
    output is left behind. A recipe that writes several comparisons, in folders below its output, keeps those folders.
    A record of the results that is not, or no longer, among them is moved to `superseded/` of the output.

    Args:
        experiment: The experiment.
        output: The recipe's output folder.
        results: The results; the experiment's folder in it is brought up to date.

    Returns:
        The number of records.

    Raises:
        DataError: The recipe left no comparison.
    """
    tables = sorted(path for path in output.rglob("comparison.json") if _visible(path, output))
    if not tables:
        raise DataError(f"{output}: no comparison.json; the recipe of {experiment.name} ended without a table")
    kept, done = results / experiment.name, settings_of(experiment)
    found = {
        (table.parent / f"{record['name']}.json").relative_to(output): record
        for table in tables
        for record in read_json(table)["runs"]
    }
    for path in sorted(kept.rglob("*_seed*.json")):
        if read_json(path) != found.get(path.relative_to(kept)):
            set_aside(path, output / path.parent.relative_to(kept))
    for name, record in found.items():
        write_json(kept / name, record)
    for table in tables:
        for file in sorted([*table.parent.glob("*.md"), *table.parent.glob("*.png")]):
            with atomic_path(kept / file.relative_to(output)) as path:
                shutil.copyfile(file, path)
    write_json(kept / MARKER, done)
    return len(found)


def restore(experiment: Experiment, output: Path, results: Path) -> None:
    """Put records of the results back where the recipe looks for finished runs, as far as they are absent there.

    So a fresh clone, or an emptied output folder, repeats no run whose settings are still the same. The recipe compares
    them itself, and moves those of other settings to `superseded/` of its output, from where none comes back.
    """
    kept = results / experiment.name
    for path in sorted(kept.rglob("*_seed*.json")):
        place, record = output / path.relative_to(kept), read_json(path)
        is_superseded = (place.parent / SUPERSEDED / superseded_name(record, place.stem)).exists()
        if _visible(path, kept) and not place.exists() and not is_superseded:
            mark_folder(output)
            write_json(place, record)


def superseded_runs(output: Path) -> set[Path]:
    """The records below a recipe's output folder that were set aside."""
    return set(output.rglob(f"{SUPERSEDED}/*.json"))


def remove_leftovers(results: Path) -> None:
    """Remove what a writer that was killed left in the results; only for who holds `sole_worker`."""
    for scratch in list(results.rglob(f".*{SCRATCH}")):
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def sole_worker(lock: Path) -> Iterator[int]:
    """Wait until no other process works here, and keep others waiting meanwhile.

    The lock is an open file: it falls with the last process that holds it, however that ends. A recipe that is started
    with the yielded descriptor holds it too, so a recipe that outlives a killed parent is waited for, and two never
    write to one folder.

    Args:
        lock: The file; its folder is made. It holds the number of the last process.

    Yields:
        The file descriptor to hand to child processes (`pass_fds`).
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            print(f"{lock}: process {holder}, or the recipe it started, still works here; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _visible(path: Path, folder: Path) -> bool:
    """Not in a trainer's folder (`runs/`), nor set aside, nor in the leftovers of a killed writer."""
    parts = path.relative_to(folder).parts
    return not {"runs", SUPERSEDED} & {*parts[:-1]} and not any(part.startswith(".") for part in parts)
