"""Settings of recipes: dataclasses filled from a YAML file and the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from dair_hf.errors import DataError
from dair_hf.io.files import parse_yaml, read_yaml

_HELP_ALL = "--help-all"
# Fields of transformers that the short help shows as well.
_COMMON_FIELDS = {
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "save_strategy",
}
_KINDS = (list, dict, bool, types.NoneType)  # values of YAML that text would not show


class SettingsParser(HfArgumentParser):
    """Parser for dataclasses: a YAML file may set defaults, mappings are YAML, and `null` unsets an optional field."""

    def __init__(self, dataclass_types: Sequence[type], **settings: Any) -> None:
        super().__init__(list(dataclass_types), allow_abbrev=False, **settings)
        self.accepted = {
            name: _base_types(hint) for owner in dataclass_types for name, hint in typing.get_type_hints(owner).items()
        }
        for action in self._actions:
            accepted = self.accepted.get(action.dest, set())
            if dict in accepted:
                action.type = _mapping_or_text if str in accepted else _mapping
            if type(None) in accepted and action.type is not None:
                action.type = _or_null(action.type)
                action.choices = action.choices and [*action.choices, None]

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument; unlike in `argparse`, a percent sign in the help needs no escape."""
        if settings.get("help"):
            settings["help"] = re.sub(r"(?<!%)%(?![%(])", "%%", settings["help"])
        return super().add_argument(*names, **settings)

    def set_file_values(self, path: Path, values: Mapping[str, Any]) -> None:
        """Set defaults to the values of a file."""
        actions = {action.dest: action for action in reversed(self._actions)}
        for name, value in values.items():
            if name not in self.accepted or name not in actions:
                raise DataError(f"{path}: unknown field {name!r}{_nearest(str(name), actions)}")
            try:
                self.set_defaults(**{name: self._from_yaml(actions[name], value)})
            except argparse.ArgumentError as error:
                self.error(f"{path}: {error}")
            actions[name].required = False

    def _from_yaml(self, action: argparse.Action, value: Any) -> Any:
        """Convert a value of a file to what its text on the command line would give."""
        accepted, is_list = self.accepted[action.dest], isinstance(value, list)
        items = value if is_list else [value]
        if (is_list and any(isinstance(item, _KINDS) for item in items)) or (
            isinstance(value, _KINDS) and type(value) not in accepted
        ):
            expected = " or ".join(kind.__name__ for kind in accepted)
            raise argparse.ArgumentError(action, f"expected {expected}, got {value!r}; put a text in quotes")
        if value is None or isinstance(value, dict):
            return value
        found = [self._get_value(action, str(item)) for item in items]
        for item in found:
            self._check_value(action, item)
        return found if is_list or action.nargs == "+" else found[0]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse options; a list that is `null` is None."""
        parsed, rest = super().parse_known_args(args, namespace)
        for name, value in vars(parsed).items():
            if value == [None]:
                setattr(parsed, name, None)
        return parsed, rest

    def parse_settings(self, options: Sequence[str]) -> tuple[Any, ...]:
        """Return one instance of each dataclass, and a namespace of the options that `add_argument` added, if any."""
        *parsed, unknown = self.parse_args_into_dataclasses(
            list(options), return_remaining_strings=True, look_for_args_file=False
        )
        if unknown:
            raise DataError(f"unknown option {unknown[0]}{_nearest(unknown[0], self.accepted)}")
        return tuple(parsed)

    def shorten_help(self, shown: set[str]) -> None:
        """Hide the fields of transformers in the help, except the common ones and those in `shown`."""
        hidden = {name for owner in self.dataclass_types for name in _from_transformers(owner)} - _COMMON_FIELDS - shown
        for action in self._actions:
            del action.option_strings[1 if action.dest != "help" else 2 :]  # the spellings with dashes
            if action.dest in hidden:
                action.help = argparse.SUPPRESS
        if hidden:
            self.epilog = f"{len(hidden)} more training arguments of transformers are shown by {_HELP_ALL}."

    def error(self, message: str) -> NoReturn:
        """Raise a `DataError`."""
        raise DataError(message)


def parse_arguments(dataclass_types: Sequence[type], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from `--config FILE.yaml` and `--field value` options; the command line takes precedence.

    The line `recipe: NAME` of a file is not a field: it tells `dair-hf train` which recipe to run. `--field null` drops
    the value of the file. `--help` shows the common fields of transformers, `--help-all` shows all of them.

    A dataclass may have two more members. `REPLACED_BY` maps a field to the options that remove its value from the
    file. `check_with(others, given, options)` checks an instance against the others; `given` are the names of the
    fields that file or command line set, `options` those that the command line sets.

    Args:
        dataclass_types: Dataclasses whose fields carry `metadata["help"]` and have distinct names.
        argv: Command-line options; None: `sys.argv[1:]`. A mapping is written as `--lambdas '{kl: 1.0}'` (YAML or
            JSON), a list as `--seeds 0 1`.

    Returns:
        One instance of each type.

    Raises:
        DataError: The file cannot be read, a field or option is unknown, or a value is invalid, missing or without
            effect.

    Example:
        >>> from dair_hf.config import DAIRConfig
        >>> parse_arguments([DAIRConfig], ["--output_dir", "out", "--dair_lambda", "2"])[0].dair_lambda
        2.0
    """
    first = SettingsParser([], add_help=False)
    first.add_argument("--config", type=Path)
    found, options = first.parse_known_args(sys.argv[1:] if argv is None else argv)
    given = {
        option.partition("=")[0].removeprefix("--").replace("-", "_") for option in options if option.startswith("--")
    }
    parser = SettingsParser(dataclass_types, usage="%(prog)s [--config FILE] [--OPTION VALUE ...]")
    parser.add_argument(_HELP_ALL, action="help", help="Show all fields of transformers, too.")
    values: dict[str, Any] = {}
    if found.config is not None:
        values = _read_file(found.config, parser)
        for owner in dataclass_types:
            for name, others in getattr(owner, "REPLACED_BY", {}).items():
                if given.intersection(others):
                    values.pop(name, None)
        parser.set_file_values(found.config, values)
    if _HELP_ALL not in options and not {"-h", "--help"}.isdisjoint(options):
        parser.shorten_help(set(values))
    parsed = parser.parse_settings(options)
    for settings in parsed:
        if hasattr(settings, "check_with"):
            settings.check_with(parsed, given | set(values), given)
    return parsed


def _read_file(path: Path, parser: SettingsParser) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected one `field: value` per line, got {type(values).__name__}")
    if "recipe" not in parser.accepted:
        values.pop("recipe", None)
    return values


def _nearest(name: str, fields: Any) -> str:
    near = difflib.get_close_matches(name.lstrip("-"), fields, 1)
    return f"; did you mean {near[0]!r}?" if near else "; see --help for the fields"


def _from_transformers(owner: Any) -> set[str]:
    """Return the fields of a dataclass that only transformers declares."""
    ours = [base for base in owner.__mro__ if base.__module__.partition(".")[0] != "transformers"]
    declared = {name for base in ours for name in inspect.get_annotations(base)}
    return {field.name for field in dataclasses.fields(owner)} - declared


def _base_types(hint: Any) -> set[Any]:
    """Return the types that a field accepts, without parameters: list and None for `list[int] | None`."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return {typing.get_origin(part) or part for part in parts}


def _or_null(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if text == "null" else convert(text)

    read.__name__ = getattr(convert, "__name__", str(convert)).strip("_")  # for messages of argparse
    return read


def _mapping(text: str) -> dict[str, Any]:
    value = parse_yaml(text, "mapping")
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a mapping such as '{{kl: 1.0}}', got {text!r}")
    return value


def _mapping_or_text(text: str) -> dict[str, Any] | str:
    return _mapping(text) if text.lstrip().startswith("{") else text
