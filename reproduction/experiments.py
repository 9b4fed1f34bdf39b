"""Experiments behind the ledger: recipe commands, their status, and the transfer of records to and from the results."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import lock_descriptor

from dair_hf.config import AUTO
from dair_hf.errors import DataError
from dair_hf.io.files import SCRATCH, atomic_path, mark_folder, read_json, read_yaml, write_json

MARKER = "experiment.json"
PAIRED = "paired.md"
# Settings that were removed since runs were recorded, and the value that all runs have now.
REMOVED_SETTINGS: dict[str, dict[str, Any]] = {
    "data": {
        "foreground": "shapes", "foreground_source": None, "picture_size": 32, "validation_each": 100,
        "fresh_backgrounds": False, "backgrounds_seed": 0, "strict": False, "train_questions": None,
        "test_questions": None, "word_count": 1,
        "noise_mean": 5.0, "noise_std": 5.0, "test_threshold": "test", "tolerance": 1.0, "partner_fraction": 1.0,
        "fresh_angles": True, "partner": "none", "max_tokens": 400, "augmentation": "scramble", "places": False,
        "strict_audit": False, "vocabulary": 2000, "test_file": None, "target": "target",
    },
    "model": {"lora_rank": 0, "lora_alpha": 16, "lora_targets": "all-linear"},
    "attacks": {"norm": "linf", "test_restarts": 1},
    "loss": {"tilt": -2.0},
    "scenes": {
        "sprites": "shapes", "sprite_folder": None, "edits_per_scene": 2, "scene_size": 64, "scene_grid": 4,
        "most": 4, "co_occurrence": 0.9, "language_prior": 0.5, "scene_seed": 0,
    },
    "network": {"train_backbone": False, "pretrained_model": None},
    # Of models that do not generate, of accuracies, and of runs with a number as lambda; the defaults were others.
    "training": {
        "lambda_scheduler_type": "constant", "predict_with_generate": False, "greater_is_better": True,
        "lambda_target": 4.0, "stop_gradient": None, "lambda_max": 10000.0,
    },
}  # fmt: skip


class Experiment(NamedTuple):
    """Recipe with its settings.

    Attributes:
        name: Folder below the outputs and below the results, such as "rotated_mnist_noise/share_0.2".
        command: Recipe and options; "{data}" is replaced by the folder of the public data sets.
        runs: Number of runs.
        minutes: Expected minutes per run, on two cores.
    """

    name: str
    command: tuple[str, ...]
    runs: int
    minutes: float

    @property
    def needs_data(self) -> bool:
        """Return whether the command needs the public data sets."""
        return any("{data}" in part for part in self.command)

    def argv(self, data: str | None, output: Path) -> list[str]:
        """Return the command with the folders of data and output."""
        return [*(part.replace("{data}", data or "") for part in self.command), "--output_dir", str(output)]


def read_experiments(path: Path) -> list[Experiment]:
    """Read and check `experiments.yaml`: a list `experiments`, each with `name`, `command`, `runs` and `minutes`.

    Returns:
        The experiments, in the order in which they are run.

    Raises:
        DataError: The file is missing or not YAML, a key is unknown, missing or of the wrong type, or a name equals or
            lies inside another.
    """
    content = read_yaml(path)
    entries = content.get("experiments") if isinstance(content, dict) else None
    if not isinstance(entries, list) or set(content) != {"experiments"}:
        raise DataError(f"{path}: needs one key at the top, `experiments`, with a list below it")
    experiments = [_read_experiment(entry, path) for entry in entries]
    folders = [Path(experiment.name) for experiment in experiments]
    for index, folder in enumerate(folders):
        for other in folders[:index]:
            if folder == other or folder in other.parents or other in folder.parents:
                raise DataError(f"{path}: {other} and {folder}: one folder lies inside the other; give each its own")
    return experiments


def _read_experiment(entry: Any, path: Path) -> Experiment:
    types: dict[str, tuple[type, ...]] = {"name": (str,), "command": (str,), "runs": (int,), "minutes": (int, float)}
    if not isinstance(entry, dict) or set(entry) != set(types):
        raise DataError(f"{path}: {entry!r}: each experiment needs exactly {', '.join(types)}")
    for key, allowed in types.items():
        if not isinstance(entry[key], allowed) or isinstance(entry[key], bool):
            raise DataError(f"{path}: {entry['name']}: {key}={entry[key]!r} has the wrong type")
    folder = Path(entry["name"])
    if folder.is_absolute() or not folder.parts or any(part.startswith(".") for part in folder.parts):
        raise DataError(f"{path}: name {entry['name']!r}: give a folder below the results")
    if entry["runs"] < 1 or entry["minutes"] < 0:
        raise DataError(f"{path}: {entry['name']}: needs at least one run, and minutes of 0 or more")
    try:
        command = tuple(shlex.split(entry["command"]))
    except ValueError as error:
        raise DataError(f"{path}: {entry['name']}: command={entry['command']!r}: {error}; close the quote") from error
    if not command:
        raise DataError(f"{path}: {entry['name']}: the command is empty; give a recipe and its options")
    return Experiment(entry["name"], command, entry["runs"], entry["minutes"])


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return the command of an experiment, and a digest of each YAML file that it names, without comments."""
    files = [Path(part) for part in experiment.command if part.endswith((".yaml", ".yml"))]
    return {"command": list(experiment.command), "configs": {str(f): _digest(f) for f in files if f.is_file()}}


def _digest(config: Path) -> str:
    settings = read_yaml(config)
    if isinstance(settings, dict):
        settings.pop("recipe", None)  # not a setting of the runs; the command names the recipe
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def is_done(experiment: Experiment, results: Path) -> bool:
    """Return whether the results contain all records of an experiment, with its current settings."""
    folder = results / experiment.name
    is_current = (folder / MARKER).exists() and read_json(folder / MARKER) == settings_of(experiment)
    return is_current and finished_runs(folder) >= experiment.runs


def finished_runs(output: Path) -> int:
    """Return the number of finished runs below the output folder of a recipe."""
    count = 0
    # Not with rglob, which fails if the running recipe removes a folder.
    for _, folders, names in os.walk(output):
        folders[:] = [name for name in folders if name != "runs" and not name.startswith(".")]
        count += len(fnmatch.filter(names, "*_seed*.json"))
    return count


def collect(experiment: Experiment, output: Path, results: Path) -> int:
    """Copy records, tables and plots of a finished experiment to the results, and mark it as done.

    Only the records that the recipe's `comparison.json` contains are copied, not records of earlier comparisons.
    A recipe that writes several comparisons, each to a subfolder, has the same subfolders in the results.

    Returns:
        The number of records.

    Raises:
        DataError: The recipe wrote no comparison, or the results hold a record that the comparison lacks.
    """
    tables = sorted(path for path in output.rglob("comparison.json") if _is_visible(path, output))
    if not tables:
        raise DataError(f"{output}: no comparison.json; the recipe of {experiment.name} ended without a table")
    target, settings = results / experiment.name, settings_of(experiment)
    records = {
        (table.parent / f"{record['name']}.json").relative_to(output): record
        for table in tables
        for record in read_json(table)["runs"]
    }
    for path in sorted(target.rglob("*_seed*.json")):
        if _without_removed_settings(read_json(path)) != records.get(path.relative_to(target)):
            raise DataError(f"{path}: expected the record that {output} holds; move one of them away")
    for name, record in records.items():
        if not (target / name).exists():
            write_json(target / name, record)
    for table in tables:
        for file in sorted(path for kind in ("*.md", "*.png") for path in table.parent.glob(kind)):
            with atomic_path(target / file.relative_to(output)) as path:
                shutil.copyfile(file, path)
        if not (table.parent / PAIRED).exists():
            (target / table.parent.relative_to(output) / PAIRED).unlink(missing_ok=True)  # of an earlier comparison
    write_json(target / MARKER, settings)
    return len(records)


def restore(experiment: Experiment, output: Path, results: Path) -> None:
    """Copy missing records from the results to the output folder of a recipe, so that it does not repeat their runs.

    The recipe itself checks their settings.
    """
    stored = results / experiment.name
    for path in sorted(stored.rglob("*_seed*.json")):
        target = output / path.relative_to(stored)
        if _is_visible(path, stored) and not target.exists():
            mark_folder(output)
            write_json(target, _without_removed_settings(read_json(path)))


def _without_removed_settings(record: Any) -> Any:
    """Return a record without those removed settings that had the value of all runs since."""
    settings = {
        part: {
            name: value
            for name, value in values.items()
            if REMOVED_SETTINGS.get(part, {}).get(name, ...) != value
            or (name == "lambda_target" and values["dair_lambda"] == AUTO)
            or (name == "lora_alpha" and "lora_rank" not in values)  # also the name of a setting of today
        }
        if isinstance(values, dict)
        else values
        for part, values in record.get("config", {}).items()
    }
    data = record.get("data", {})
    if data.get("renaming") == "revision 4" and settings["data"]["source"] == "demo":
        # Revision 5 changes the articles before names; these dialogues have none.
        record = {**record, "data": {**data, "renaming": "revision 5"}}
    return {**record, "config": settings} if settings else record


def remove_leftovers(results: Path) -> None:
    """Remove temporary folders of interrupted writes from the results; call it only inside `sole_worker`."""
    for scratch in list(results.rglob(f".*{SCRATCH}")):
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def sole_worker(lock: Path) -> Iterator[int]:
    """Wait until no other process works here, and make others wait until the block ends.

    The lock is an open file. A recipe that is started with the yielded descriptor holds it too. So a recipe that
    outlives a killed parent is waited for, and two never write to one folder.

    Args:
        lock: Lock file. Its folder is created.

    Yields:
        The file descriptor to pass to child processes (`pass_fds`).
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)) as file:
        if not lock_descriptor(file.fileno(), blocking=False):
            print(f"{lock}: another process, or a recipe it started, still works here; waiting for it", flush=True)
            lock_descriptor(file.fileno())
        yield file.fileno()


def _is_visible(path: Path, folder: Path) -> bool:
    """Return whether a path is neither in a trainer's folder (`runs/`) nor in a hidden folder."""
    parts = path.relative_to(folder).parts
    return "runs" not in parts[:-1] and not any(part.startswith(".") for part in parts)
