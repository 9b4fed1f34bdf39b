"""Settings of a recipe: dataclasses filled from a YAML file, then from the command line."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from dair_hf.errors import DataError


def parse_arguments(types: Sequence[type], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from `--config FILE.yaml` and `--field value` options; the command line wins.

    Args:
        types: Dataclasses whose fields carry `metadata["help"]`; their field names are distinct.
        argv: Options; None: those of the process.

    Returns:
        One instance of each type.

    Raises:
        DataError: The file is absent, no YAML, no mapping, or holds an unknown field.
        SystemExit: An unknown option on the command line, as argparse does.

    Example:
        >>> from dair_hf.config import DAIRConfig
        >>> parse_arguments([DAIRConfig], ["--output_dir", "out", "--dair_lambda", "2"])[0].dair_lambda
        2.0
    """
    options = list(sys.argv[1:] if argv is None else argv)
    from_file: list[str] = []
    nested: dict[str, Any] = {}
    if "--config" in options:
        place = options.index("--config")
        if place + 1 == len(options):
            raise DataError("--config needs a file name after it, such as recipes/configs/demo.yaml")
        fields = {f.name: f for t in types for f in dataclasses.fields(t) if f.init}
        values = _read_yaml(Path(options[place + 1]), fields)
        nested = {name: value for name, value in values.items() if isinstance(value, dict)}
        from_file = _as_options({name: value for name, value in values.items() if name not in nested})
        options = options[:place] + options[place + 2 :]
    parser = HfArgumentParser(list(types))
    # Later options win in argparse; those of the file come first.
    parsed = parser.parse_args_into_dataclasses(args=from_file + options, look_for_args_file=False)
    for name, value in nested.items():
        if f"--{name}" not in options:
            holder = next(p for p in parsed if any(f.name == name for f in dataclasses.fields(p)))
            setattr(holder, name, value)
    return tuple(parsed)


def _read_yaml(path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; the shipped ones are in recipes/configs/") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DataError(f"{path}: {where}not valid YAML ({getattr(error, 'problem', error)})") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: found {type(values).__name__} at the top; write one `field: value` a line")
    for name in values:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see --help for the fields"
            raise DataError(f"{path}: unknown field {name!r}{hint}")
    return values


def _as_options(values: dict[str, Any]) -> list[str]:
    options: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        options.append(f"--{name}")
        options += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return options
