"""Settings of a recipe: dataclasses filled from a YAML file, then from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from dair_hf.errors import DataError
from dair_hf.io.files import parse_yaml, read_yaml


class SettingsParser(HfArgumentParser):
    """A parser of dataclasses whose complaints are `DataError`s and whose lists and mappings are taken as YAML.

    A percent sign in a help text stands for itself.

    Args:
        dataclass_types: Dataclasses whose fields carry `metadata["help"]`.
        **settings: Those of `argparse.ArgumentParser`.
    """

    def __init__(self, dataclass_types: Sequence[type], **settings: Any) -> None:
        super().__init__(list(dataclass_types), allow_abbrev=False, **settings)
        self.kinds = {
            name: _kinds(hint) for owner in dataclass_types for name, hint in typing.get_type_hints(owner).items()
        }
        for action in self._actions:
            kinds = self.kinds.get(action.dest, set())
            if dict in kinds:
                action.type = _mapping_or_text if str in kinds else _mapping

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """As `argparse.ArgumentParser.add_argument`, but a lone percent sign in the help needs no escape."""
        if settings.get("help"):
            settings["help"] = re.sub(
                r"%%|%\(\w+\)s|%", lambda found: "%%" if found[0] == "%" else found[0], settings["help"]
            )
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise a DataError."""
        raise DataError(message)

    def joined(self, options: Sequence[str]) -> list[str]:
        """Join what the shell parted at spaces: `--seeds [0, 1]` and `--lambdas {kl: 1.0}` need no quotes."""
        found: list[str] = []
        left = list(options)
        while left:
            name, equals, value = left.pop(0).partition("=")
            kinds = self.kinds.get(name.removeprefix("--").replace("-", "_"), set())
            values = [value] if equals else []
            if name.startswith("--") and kinds & {list, dict}:
                while left and not equals and not left[0].startswith("--"):
                    values.append(left.pop(0))
            text = " ".join(values)
            if list in kinds and text.startswith("["):
                found += [name, *_items(name, text)]
            elif dict in kinds and text.startswith("{"):
                found.append(f"{name}={text}")
            else:
                found += [name + equals + value] if equals else [name, *values]
        return found


def parse_arguments(types: Sequence[type], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from `--config FILE.yaml` and `--field value` options; the command line wins.

    Args:
        types: Dataclasses whose fields carry `metadata["help"]`; their field names are distinct.
        argv: Options; None: those of the process. A mapping is given as in YAML or JSON, `--lambdas '{kl: 1.0}'`, a
            list so, `--seeds [0, 1]`, or item by item, `--seeds 0 1`.

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
    from_file = _as_options(_read_settings(path, fields)) if path else []
    parser = SettingsParser(types)
    try:
        *parsed, left = parser.parse_args_into_dataclasses(
            args=from_file + parser.joined(options), return_remaining_strings=True, look_for_args_file=False
        )
    except DataError:
        raise
    except Exception as error:
        # Settings of transformers refuse what they cannot use in many ways.
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise DataError(f"{kind}{' '.join(str(error).split())}") from error
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


def _read_settings(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    if not path.exists():
        raise DataError(f"{path}: no such file; the shipped ones are in recipes/configs/")
    values = read_yaml(path)
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
            options.append(f"--{name}={json.dumps(value, default=str) if isinstance(value, dict) else value}")
    return options


def _kinds(hint: Any) -> set[Any]:
    """The types that a field takes, without their parameters: `list[int] | None` is list and None."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return {typing.get_origin(part) or part for part in parts}


def _items(name: str, text: str) -> list[str]:
    values = parse_yaml(text, name)
    if not isinstance(values, list):
        raise DataError(f"{name}: found {text!r}; write a list such as [1, 2]")
    return [str(value) for value in values]


def _mapping_or_text(text: str) -> dict[str, Any] | str:
    return _mapping(text) if text.lstrip().startswith("{") else text


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = parse_yaml(text, repr(text))
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"found {type(value).__name__}, a mapping is needed: {text!r}")
    for key, held in value.items():
        if held is None and ":" in str(key):
            raise argparse.ArgumentTypeError(f"a space is missing after the colon of {key!r}: {text!r}")
    # As JSON has it: keys are text.
    found: dict[str, Any] = json.loads(json.dumps(value, default=str))
    return found
