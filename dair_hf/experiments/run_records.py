"""Records of runs: one JSON for each finished run, reused on later calls with the same settings."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.io.files import read_json
from dair_hf.io.records import PREDICTIONS_FILE
from dair_hf.losses.objective import REGULARIZED

PACKAGES = ("dair-hf", "torch", "transformers", "datasets", "accelerate", "evaluate", "peft", "numpy")
SETTINGS_NOTE = "settings_fingerprint.txt"  # in the folder of a run
SECRETS = ("hub_token", "push_to_hub_token")
# Tracked files that do not change what a run does, as git excludes them.
_WITHOUT_INFLUENCE = tuple(f":(top,exclude){kind}" for kind in ("results/*.json", "results/*.md", "*.png", "*.svg"))
# Training settings that may differ between the runs of one comparison.
_RUN_SPECIFIC = {f"training.{name}" for name in ("method", "regularizer", "dair_lambda", "seed", "seeds")}
# Settings that were removed since runs were recorded, and the value that all runs have now.
_REMOVED_VALUES: dict[str, dict[str, Any]] = {
    "data": {
        "foreground": "shapes", "foreground_source": None, "picture_size": 32, "validation_each": 100,
        "fresh_backgrounds": False, "backgrounds_seed": 0, "smallest_crop": 0.08, "shared_crop": True,
        "strict": False, "train_questions": None, "test_questions": None, "word_count": 1,
        "noise_mean": 5.0, "noise_std": 5.0, "test_threshold": "test", "tolerance": 1.0, "partner_fraction": 1.0,
        "fresh_angles": True, "partner": "none", "max_tokens": 400, "keep_numbers": None, "train_problems": 3000,
        "test_problems": 200, "known_numbers": 15, "unseen_numbers": 25, "augmentation": "scramble",
        "places": False, "strict_audit": False, "vocabulary": 2000, "number_partners": False,
    },
    "attacks": {"norm": "linf", "test_restarts": 1},
    "loss": {"tilt": -2.0},
    "scenes": {
        "sprites": "shapes", "sprite_folder": None, "edits_per_scene": 2, "scene_size": 64, "scene_grid": 4,
        "most": 4, "co_occurrence": 0.9, "language_prior": 0.5, "scene_seed": 0,
    },
    "network": {"train_backbone": False},
    "training": {"lambda_scheduler_type": "constant"},
}  # fmt: skip
_REMOVED = {
    f"{part}.{name}": json.dumps(value) for part, values in _REMOVED_VALUES.items() for name, value in values.items()
}


class Run(NamedTuple):
    """One method, such as "kl", or "kl_lambda10" in a sweep, with one seed and its training arguments."""

    method: str
    seed: int
    args: DAIRConfig

    @property
    def name(self) -> str:
        """Name of the run's files."""
        return f"{self.method}_seed{self.seed}"

    @property
    def predictions_file(self) -> Path:
        """File of its predictions on the test rows; `compare` pairs methods over them."""
        return Path(self.args.output_dir) / PREDICTIONS_FILE


class Result(NamedTuple):
    """Metrics of one run by name, and the wall time of each part in seconds."""

    metrics: Mapping[str, Any]
    seconds: Mapping[str, float]


def run_record(
    name: str,
    method: str,
    seed: int,
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    seconds: Mapping[str, float],
    data: Mapping[str, str],
    settings_fingerprint: str,
) -> dict[str, Any]:
    """Return the record of a finished run: settings without tokens, metrics (NaN as null), versions and hardware.

    `config` holds dataclasses or plain values, `seconds` the wall time of each part, `data` the fingerprint of each
    data set; later calls recognize the run by `settings_fingerprint`.
    """
    return {
        "name": name,
        "method": method,
        "seed": seed,
        "metrics": {key: _finite(value) for key, value in metrics.items()},
        "seconds": {key: round(value, 2) for key, value in seconds.items()},
        "config": _plain_config(config),
        "data": dict(data),
        "settings_fingerprint": settings_fingerprint,
        **provenance(),
    }


def provenance() -> dict[str, Any]:
    """Return versions, git revision, hardware and the time, for the record of something that has just finished."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "git_revision": git_revision(),
        "hardware": {
            "cpu": platform.machine(),
            "cpu_model": _cpu_model(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
        },
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cpu_model(source: Path = Path("/proc/cpuinfo")) -> str:
    """Return name, family and model of the processor on Linux, else what Python knows; processors round differently."""
    try:
        lines = source.read_text().splitlines()
    except OSError:
        return platform.processor()
    first: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        first.setdefault(name.strip(), value.strip())
    return ", ".join(f"{name} {first[name]}" for name in ("model name", "cpu family", "model") if name in first)


@functools.cache
def git_revision() -> str | None:
    """Return the git revision of the library's checkout at the first call, or None outside a checkout.

    It ends with "-dirty" if tracked files differ from it, except plots and the records in `results/`, which change
    while experiments run but do not affect them. A copy of the library inside a repository that does not track it, as
    in a virtual environment, counts as outside.
    """
    file = Path(__file__)

    def git(*command: str) -> str:
        settings: dict[str, Any] = {"cwd": file.parent, "capture_output": True, "text": True, "timeout": 10}
        return subprocess.run(["git", "--no-optional-locks", *command], check=True, **settings).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *_WITHOUT_INFLUENCE)
        return git("describe", "--always") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as plain dictionaries, without tokens."""
    plain = {key: _as_dict(value) for key, value in config.items()}
    return {
        key: {name: item for name, item in value.items() if name not in SECRETS} if isinstance(value, dict) else value
        for key, value in plain.items()
    }


def fingerprint(*settings: Any) -> str:
    """Return eight hexadecimal digits that identify settings: equal settings have equal fingerprints.

    Example:
        >>> fingerprint({"a": 1}) == fingerprint({"a": 1}) != fingerprint({"a": 2})
        True
    """

    def encode(value: Any) -> Any:
        plain = _as_dict(value)
        return str(value) if plain is value else plain

    text = json.dumps(settings, sort_keys=True, default=encode)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def finished_records(
    folder: Path, runs: Sequence[Run], config: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, dict[str, Any] | None]:
    """Map the name of each run to its record, or to None if it has not finished; refuse records of other settings.

    Example:
        >>> finished_records(Path("absent"), [Run("erm", 0, DAIRConfig("out"))], {}, {})
        {'erm_seed0': None}
    """
    return {run.name: _finished_record(folder / f"{run.name}.json", run, config, data) for run in runs}


def _finished_record(path: Path, run: Run, config: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    record: dict[str, Any] = read_json(path)
    if record.get("settings_fingerprint") != fingerprint(config, run.args, data):
        if changes := list(_changed_settings(record, run, config, data).values()):
            summary = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
            raise DataError(
                f"{path}: a finished run with other settings ({summary}); choose another output_dir, or move it away"
            )
    return record


def earlier_records(
    folder: Path, runs: Sequence[Run], config: Mapping[str, Any], data: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the records of the other finished runs in a folder that differ in method, lambda and seed only."""
    records, current = [], {run.name for run in runs}
    for path in sorted(folder.glob("*_seed*.json")):
        record = read_json(path)
        if path.stem in current or record.get("name") != path.stem:  # such as a copy
            continue
        if _changed_settings(record, runs[0], config, data).keys() <= _RUN_SPECIFIC:
            records.append(record)
        else:
            print(f"{path}: not in the table, because its settings differ")
    return records


def records_by_method(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group records into the rows of a table: by method, and by lambda if runs of a method differ in it.

    Example:
        >>> training = [{"method": "dair", "dair_lambda": value} for value in (1.0, 1.0, "auto")]
        >>> list(records_by_method([{"method": "dair", "config": {"training": run}} for run in training]))
        ['dair, lambda 1', 'dair, lambda auto']
    """
    lambdas: dict[str, set[Any]] = {}
    for record in records:
        lambdas.setdefault(record["method"], set()).add(lambda_of(record))
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        name, value = record["method"], lambda_of(record)
        label = f"{name}, lambda {lambda_text(value)}" if len(lambdas[name]) > 1 else name
        rows.setdefault(label, []).append(record)
    return rows


def lambda_of(record: Mapping[str, Any]) -> float | str | None:
    """Return the lambda of a run, a number or "auto"; None if its method has none."""
    training = record.get("config", {}).get("training", {})
    return training.get("dair_lambda") if training.get("method") in REGULARIZED else None


def lambda_text(value: float | str | None) -> str:
    """Return a lambda as tables show it.

    Example:
        >>> lambda_text(0.5), lambda_text("auto"), lambda_text(None)
        ('0.5', 'auto', '-')
    """
    return "-" if value is None else value if isinstance(value, str) else f"{value:g}"


def _changed_settings(
    record: Mapping[str, Any], run: Run, config: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, str]:
    """Compare the settings of a finished run with the current ones.

    A field that was added after the record was written counts as its default, and a field that was removed as a change
    unless `_REMOVED` lists its value. Paths are ignored: `output_dir`, and the fields that a configuration lists in
    `PATH_FIELDS`, whose content has a fingerprint.
    """
    now = {**config, "training": run.args}
    plain, before, paths = _plain_config(now), record.get("config", {}), _path_settings(now)
    filled = {key: _with_defaults(before.get(key, {}), value, plain[key]) for key, value in now.items()}
    old = _flatten({**before, **filled, "fingerprint of data": record.get("data", {})})
    new = {**_REMOVED, **_flatten({**plain, "fingerprint of data": data})}
    return {
        name: f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name, _REMOVED.get(name)) != new.get(name) and name not in paths
    }


def shared_settings(run: Run, config: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, str]:
    """Map dotted names to the JSON of what runs of a comparison share: no paths, method, lambda and seed."""
    now = {**config, "training": run.args}
    flat = _flatten({**_plain_config(now), "fingerprint of data": dict(data)})
    hidden = _path_settings(now) | _RUN_SPECIFIC
    return {name: value for name, value in flat.items() if name not in hidden}


def _path_settings(settings: Mapping[str, Any]) -> set[str]:
    """Return the dotted names of the settings that are only locations."""
    return {
        f"{key}.{name}"
        for key, value in settings.items()
        for name in ("output_dir", *getattr(value, "PATH_FIELDS", ()))
    }


def _with_defaults(before: Any, config: Any, plain: Any) -> Any:
    """Add defaults of the dataclass `config` to recorded settings that lack its newer fields."""
    if not isinstance(before, Mapping) or not dataclasses.is_dataclass(config):
        return before
    defaults = {}
    for field in dataclasses.fields(config):
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if default is not dataclasses.MISSING and field.name in plain:
            defaults[field.name] = default
    return {**_plain_config(defaults), **before}


def _flatten(value: Any, name: str = "") -> dict[str, str]:
    """Map the dotted name of every leaf of nested mappings to its JSON."""
    if not isinstance(value, Mapping):
        return {name: json.dumps(value, default=str)}
    leaves: dict[str, str] = {}
    for key, inner in value.items():
        leaves |= _flatten(inner, f"{name}.{key}" if name else str(key))
    return leaves


def _as_dict(value: Any) -> Any:
    """Convert a configuration to a dictionary; return any other value unchanged."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
