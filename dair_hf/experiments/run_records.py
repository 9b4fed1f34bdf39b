"""Records of finished runs: which of them has the settings that are asked for now."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.report import plain_config
from dair_hf.io.files import read_json
from dair_hf.io.folders import set_aside

REDO_CHANGED = "DAIR_REDO_CHANGED"
# Settings of training in which the runs of one comparison differ.
_OWN_TO_A_RUN = {f"training.{name}" for name in ("method", "regularizer", "dair_lambda", "seed", "seeds")}


class Run(NamedTuple):
    """One method with one seed.

    Attributes:
        method: Its name in the comparison, such as "kl", or "kl_lambda10" in a sweep.
        seed: Its seed.
        args: The trainer's arguments.
    """

    method: str
    seed: int
    args: DAIRConfig

    @property
    def name(self) -> str:
        """Name of the run's files."""
        return f"{self.method}_seed{self.seed}"


def redo_changed() -> bool:
    """Tell whether `DAIR_REDO_CHANGED` is set: finished runs of other settings are set aside and made anew."""
    return bool(os.environ.get(REDO_CHANGED))


def fingerprint(*settings: Any) -> str:
    """Eight hex digits over anything that JSON can hold: equal settings, equal fingerprint.

    Example:
        >>> fingerprint({"a": 1}) == fingerprint({"a": 1}) != fingerprint({"a": 2})
        True
    """
    text = json.dumps(settings, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def finished_records(
    folder: Path, runs: Sequence[Run], config: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, dict[str, Any] | None]:
    """Name of each run -> its record, None where it is not finished; see `finished_record`.

    Example:
        >>> finished_records(Path("absent"), [Run("erm", 0, DAIRConfig("out"))], {}, {})
        {'erm_seed0': None}
    """
    return {run.name: finished_record(folder, run, config, data) for run in runs}


def finished_record(
    folder: Path, run: Run, config: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, Any] | None:
    """The record of a run that is finished; None where it is not.

    Args:
        folder: Where `NAME.json` of each run is.
        run: The run.
        config: See `compare`.
        data: See `compare`.

    Raises:
        DataError: A run of this name and other settings is finished. It is never overwritten: with the environment
            variable `DAIR_REDO_CHANGED` it is moved to `superseded/`, and counts as not finished.
    """
    path = folder / f"{run.name}.json"
    try:
        record = read_json(path)
    except DataError:
        if path.exists():
            raise
        return None  # also where another process has just set it aside
    if not isinstance(record, dict) or "settings_fingerprint" not in record:
        raise DataError(f"{path}: is no record of a run; name another output_dir, or move the file away")
    if record["settings_fingerprint"] == fingerprint(config, run.args, data):
        return record
    changes = list(changed_settings(record, run, config, data).values())
    if "config" in record and not changes:
        return record
    said = f"{'; '.join(changes[:3]) or 'of another version'}"
    said += f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
    if not redo_changed():
        raise DataError(
            f"{path}: a finished run of other settings ({said}); name another output_dir, or move this one away, or "
            f"set {REDO_CHANGED}=1 to keep it in superseded/ and run anew"
        )
    if PartialState().is_main_process:
        print(f"{path}: a finished run of other settings ({said}); kept as {set_aside(path, folder)}", flush=True)
    return None


def earlier_records(
    folder: Path, runs: Sequence[Run], config: Mapping[str, Any], data: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The other finished runs of a folder whose settings differ from those of `runs` in method, lambda and seed alone.

    Args:
        folder: See `finished_record`.
        runs: What is asked for now.
        config: See `compare`.
        data: See `compare`.

    Returns:
        Their records, by name.
    """
    found, asked = [], {run.name for run in runs}
    for path in sorted(folder.glob("*_seed*.json")):
        with contextlib.suppress(DataError):  # somebody else's file
            record = read_json(path)
            is_record = isinstance(record, dict) and {"method", "metrics", "config"} <= record.keys()
            if is_record and path.stem not in asked and record.get("name") == path.stem:
                if changed_settings(record, runs[0], config, data).keys() <= _OWN_TO_A_RUN:
                    found.append(record)
                else:
                    print(f"{path}: of other settings, not in the table")
    return found


def changed_settings(
    record: Mapping[str, Any], run: Run, config: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, str]:
    """Name of each setting that a finished run had otherwise -> "NAME was X, is Y".

    A field that the record lacks, because a later version added it, had what is its default today. Where a run writes
    is no setting, nor where data lie whose content has a fingerprint (the fields that a configuration names in
    `PLACES`). A field that exists no longer counts as a change: nobody can tell what it did.

    Args:
        record: The record.
        run: What is asked for now.
        config: See `compare`.
        data: See `compare`.
    """
    now = {**config, "training": run.args}
    plain, before = plain_config(now), record.get("config", {})
    filled = {key: _with_defaults(before.get(key, {}), value, plain[key]) for key, value in now.items()}
    old = _leaves({**before, **filled, "fingerprint of data": record.get("data", {})})
    new = _leaves({**plain, "fingerprint of data": dict(data)})
    places = {f"{key}.{name}" for key, value in now.items() for name in ("output_dir", *getattr(value, "PLACES", ()))}
    return {
        name: f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in places
    }


def _with_defaults(before: Any, config: Any, plain: Any) -> Any:
    """Settings of a record, with the defaults of those fields of the dataclass `config` that it lacks."""
    if not isinstance(before, Mapping) or not dataclasses.is_dataclass(config):
        return before
    found = {}
    for field_ in dataclasses.fields(config):
        made = field_.default_factory() if field_.default_factory is not dataclasses.MISSING else field_.default
        if made is not dataclasses.MISSING and field_.name in plain:
            found[field_.name] = made
    return {**plain_config(found), **before}


def _leaves(value: Any, name: str = "") -> dict[str, str]:
    """Dotted name -> text of every value in nested mappings."""
    if not isinstance(value, Mapping):
        return {name: json.dumps(value, default=str)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= _leaves(inner, f"{name}.{key}" if name else str(key))
    return found
