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
from dair_hf.io.archives import sha256_of
from dair_hf.io.files import read_json
from dair_hf.io.records import PREDICTIONS_FILE
from dair_hf.losses.objective import REGULARIZED

PACKAGES = ("dair-hf", "torch", "transformers", "datasets", "accelerate", "evaluate", "peft", "numpy")
SETTINGS_NOTE = "settings_fingerprint.txt"  # in the folder of a run
SECRETS = ("hub_token", "push_to_hub_token")
# Tracked files that do not change what a run does, as git excludes them.
_WITHOUT_INFLUENCE = tuple(f":(top,exclude){kind}" for kind in ("results/*.json", "results/*.md", "*.png", "*.svg"))


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


def _model_files(folder: str) -> dict[str, str]:
    """Return the hash of each file of a model and its tokenizer in a local folder; nothing for a name on the Hub."""
    kinds = ("*config.json", "*.safetensors", "*.py", "tokenizer*", "vocab*", "merges.txt", "*.model")
    files = sorted({file for kind in kinds for file in Path(folder).glob(kind)}) if folder else []
    return {file.name: sha256_of(file) for file in files}


def with_models(data: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprints of data sets, and of the models in local folders, which the settings name by path."""
    names = {f"files of {key}": getattr(value, "model_name_or_path", None) or "" for key, value in config.items()}
    models = {key: _model_files(name) for key, name in names.items() if key not in data}
    return {**data, **{key: fingerprint(files) for key, files in models.items() if files}}


def finished_records(
    folder: Path, runs: Sequence[Run], config: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, dict[str, Any] | None]:
    """Map the name of each run to its record, or to None if it has not finished; refuse records of other settings.

    Example:
        >>> finished_records(Path("absent"), [Run("erm", 0, DAIRConfig("out"))], {}, {})
        {'erm_seed0': None}
    """
    known = with_models(data, config)
    return {run.name: _finished_record(folder / f"{run.name}.json", run, config, known) for run in runs}


def _finished_record(path: Path, run: Run, config: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    record: dict[str, Any] = read_json(path)
    if record.get("settings_fingerprint") != fingerprint(config, run.args, data) and not _is_same(
        record, {**config, "training": run.args}, data
    ):
        raise DataError(
            f"{path}: a finished run with other settings or data; choose another output_dir, or move it away"
        )
    return record


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


def _is_same(record: Mapping[str, Any], now: Mapping[str, Any], data: Mapping[str, str]) -> bool:
    """Return whether a run had these settings and data, whose fingerprint replaces the location of files.

    What a record lacks counts as equal: a setting to its default, a fingerprint to any. Progress bars do not count.
    """
    paths = {key: {"output_dir", "disable_tqdm", *getattr(value, "PATH_FIELDS", ())} for key, value in now.items()}
    plain, defaults = (json.loads(json.dumps(of, default=str)) for of in (_plain_config(now), _defaults(now)))
    recorded = {
        key: {**{name: item for name, item in defaults.get(key, {}).items() if name in plain[key]}, **value}
        if isinstance(value, dict) and isinstance(plain.get(key), dict)
        else value
        for key, value in record.get("config", {}).items()
    }
    before, after = (
        {
            (key, name): item
            for key, value in settings.items()
            for name, item in (value.items() if isinstance(value, dict) else [("", value)])
            if name not in paths.get(key, ())
        }
        for settings in (recorded, plain)
    )
    return before == after and {**data, **record.get("data", {})} == data


def _defaults(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    made = {key: dataclasses.fields(value) for key, value in settings.items() if dataclasses.is_dataclass(value)}
    absent = dataclasses.MISSING
    return {
        key: {
            field.name: field.default if field.default_factory is absent else field.default_factory()
            for field in fields
            if field.default is not absent or field.default_factory is not absent
        }
        for key, fields in made.items()
    }


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
