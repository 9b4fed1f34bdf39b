"""Settings of a recipe: dataclasses filled from a YAML file, then from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_origin

import yaml
from transformers import HfArgumentParser

from dair_hf.errors import DataError


def run_recipe(main: Callable[[], None]) -> None:
    """Run a recipe; a mistake in its input ends it with one line on stderr and exit status 1.

    Args:
        main: The recipe.
    """
    try:
        main()
    except DataError as error:
        sys.exit(f"error: {error}")


class _Parser(HfArgumentParser):
    """A parser whose complaints are errors of the user's input, and whose mapping fields take JSON."""

    def __init__(self, types: Sequence[type]) -> None:
        super().__init__(list(types), allow_abbrev=False)
        for action in self._actions:
            if get_origin(action.type) is dict:
                action.type = _mapping

    def error(self, message: str) -> NoReturn:
        raise DataError(message)


def parse_arguments(types: Sequence[type], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from `--config FILE.yaml` and `--field value` options; the command line wins.

    Args:
        types: Dataclasses whose fields carry `metadata["help"]`; their field names are distinct.
        argv: Options; None: those of the process. A mapping is given as JSON: `--lambdas '{"kl": 1.0}'`.

    Returns:
        One instance of each type.

    Raises:
        DataError: The file is absent, no YAML, no mapping, or holds an unknown field; an option is unknown; or a value
            is refused by its dataclass.

    Example:
        >>> from dair_hf.config import DAIRConfig
        >>> parse_arguments([DAIRConfig], ["--output_dir", "out", "--dair_lambda", "2"])[0].dair_lambda
        2.0
    """
    options = list(sys.argv[1:] if argv is None else argv)
    fields = {f.name: f for t in types for f in dataclasses.fields(t) if f.init}
    path, options = _config_file(options)
    # Later options win in argparse; those of the file come first.
    from_file = _as_options(_read_yaml(path, fields)) if path else []
    try:
        *parsed, left = _Parser(types).parse_args_into_dataclasses(
            args=from_file + options, return_remaining_strings=True, look_for_args_file=False
        )
    except ValueError as error:
        # Settings of transformers raise plain ValueErrors.
        raise DataError(str(error)) from error
    if left:
        raise DataError(f"unknown option {left[0]}{_hint(left[0].lstrip('-'), fields)}")
    return tuple(parsed)


def _config_file(options: list[str]) -> tuple[Path | None, list[str]]:
    """The file after `--config`, and the other options."""
    for place, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name != "--config":
            continue
        rest = options[place + 1 :]
        if not equals:
            value, rest = (rest[0], rest[1:]) if rest else ("", [])
        if not value:
            raise DataError("--config needs a file name after it, such as recipes/configs/demo.yaml")
        return Path(value), options[:place] + rest
    return None, options


def _read_yaml(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; the shipped ones are in recipes/configs/") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); re-save the file as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DataError(f"{path}: {where}not valid YAML ({problem})") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: found {type(values).__name__} at the top; write one `field: value` a line")
    for name in values:
        if name not in fields:
            raise DataError(f"{path}: unknown field {name!r}{_hint(str(name), fields)}")
    return values


def _hint(name: str, fields: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, fields, 1)
    return f"; did you mean {near[0]!r}?" if near else "; see --help for the fields"


def _as_options(values: Mapping[str, Any]) -> list[str]:
    options: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, list):
            options += [f"--{name}", *(str(item) for item in value)]
        else:
            # Joined by "=", so that a value may begin with a dash.
            options.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return options


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON ({error.msg}): {text!r}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"found {type(value).__name__}, a mapping is needed: {text!r}")
    return value
