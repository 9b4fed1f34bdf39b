"""Settings of recipes: dataclasses filled from a YAML file and the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import itertools
import json
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from dair_hf.errors import DataError
from dair_hf.io.files import parse_yaml, read_yaml

HELP, HELP_ALL = {"-h", "--help"}, "--help-all"
# Fields of transformers that the short help shows as well.
COMMON_FIELDS = {
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "save_strategy",
}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Formatter that shows each option under one name; the others are its spellings with dashes."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.nargs == 0 or not action.option_strings:
            return ", ".join(action.option_strings[: 2 if action.dest == "help" else 1])
        return f"{action.option_strings[0]} {self._format_args(action, action.dest.upper())}"


class SettingsParser(HfArgumentParser):
    """Parser for dataclasses that raises `DataError` and accepts lists and mappings in YAML syntax."""

    def __init__(self, dataclass_types: Sequence[type], **settings: Any) -> None:
        self.fields_without_value: set[str] = set()
        self.fields_with_list: set[str] = set()
        super().__init__(list(dataclass_types), allow_abbrev=False, **settings)
        self.field_types = {
            name: _base_types(hint) for owner in dataclass_types for name, hint in typing.get_type_hints(owner).items()
        }
        for action in self._actions:
            accepted = self.field_types.get(action.dest, set())
            if dict in accepted:
                action.type = _mapping_or_text if str in accepted else _mapping
            if {list, type(None)} <= accepted:
                action.nargs = "*"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse options; a single value is a list only in `fields_with_list`, and `fields_without_value` are None."""
        parsed, rest = super().parse_known_args(args, namespace)
        for name, accepted in self.field_types.items():
            value = getattr(parsed, name, None)
            if str in accepted and name not in self.fields_with_list and isinstance(value, list) and len(value) == 1:
                setattr(parsed, name, value[0])
        for name in self.fields_without_value:
            setattr(parsed, name, None)
        return parsed, rest

    def parse_settings(self, options: list[str]) -> tuple[Any, ...]:
        """Return one instance of each dataclass, and a namespace of the options that `add_argument` added, if any."""
        try:
            *parsed, unknown = self.parse_args_into_dataclasses(
                args=options, return_remaining_strings=True, look_for_args_file=False
            )
        except DataError:
            raise
        except Exception as error:
            # Dataclasses of transformers raise many types of exceptions for invalid values.
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise DataError(f"{kind}{' '.join(str(error).split())}") from error
        if unknown:
            raise _unknown(unknown[0], {action.dest for action in self._actions})
        return tuple(parsed)

    def arrange_help(self, path: Path | None, values: Mapping[str, Any], shows_all: bool) -> None:
        """Group the options of the help by dataclass, and hide fields of transformers unless they matter here.

        Call it only before the help is printed: it changes defaults.
        """
        self.formatter_class = _HelpFormatter
        self.usage = "%(prog)s [--config FILE] [--OPTION VALUE ...]"
        self.add_argument("--config", metavar="FILE", help="YAML file of settings.", default=path)
        self.description = "Options take precedence over the file of settings; dashes may replace underscores."
        if path is not None:
            self.description += f" Defaults are those of {path}."
        inherited: set[str] = set()
        shown: set[str] = set()
        for owner in self.dataclass_types:
            own, of_transformers = _fields_by_origin(owner)
            inherited |= of_transformers
            sentence = re.split(r"[.:;](?:\s|$)", owner.__doc__ or owner.__name__)[0]
            self._move_to_group("Objective and batches of pairs" if of_transformers else sentence, own)
        if inherited:
            shown = inherited if shows_all else inherited & (COMMON_FIELDS | set(values))
            self._move_to_group("Training arguments of transformers", inherited)
            self.add_argument(HELP_ALL, action="help", help=f"Show all {len(inherited)} training arguments, too.")
            if not shows_all:
                self.epilog = (
                    f"{len(inherited - shown)} more training arguments of transformers are shown by {HELP_ALL}."
                )
        for action in self._actions:
            if action.dest in inherited - shown:
                action.help = argparse.SUPPRESS
            elif isinstance(action, argparse._StoreFalseAction):
                action.help, action.default = f"The same as --{action.dest} false.", argparse.SUPPRESS
            elif action.dest in values:
                action.default = values[action.dest]

    def _move_to_group(self, title: str, names: Collection[str]) -> None:
        group = self.add_argument_group(title)
        group._group_actions += [action for action in self._actions if action.dest in names]
        ungrouped = self._optionals._group_actions
        ungrouped[:] = [action for action in ungrouped if action.dest not in names]

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument; unlike in `argparse`, a percent sign in the help needs no escape."""
        settings.pop("replaced_by", None)  # metadata of a field, for `parse_arguments`
        if settings.get("help"):
            settings["help"] = re.sub(
                r"%%|%\(\w+\)s|%", lambda match: "%%" if match[0] == "%" else match[0], settings["help"]
            )
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise a `DataError`."""
        raise DataError(message)

    def join_brackets(self, options: Sequence[str]) -> list[str]:
        """Join values that the shell split at spaces: `--seeds [0, 1]` and `--lambdas {kl: 1.0}` need no quotes.

        `--NAME null` is left out and added to `fields_without_value`, if the field may be None.
        """
        joined: list[str] = []
        remaining = list(options)
        while remaining:
            name, equals, value = remaining.pop(0).partition("=")
            field = name.removeprefix("--").replace("-", "_")
            accepted = self.field_types.get(field, set())
            values = [value] if equals else []
            if name.startswith("--") and type(None) in accepted and "null" in (values or remaining[:1]):
                self.fields_without_value.add(field)
                del remaining[: 1 - len(values)]
                continue
            if name.startswith("--") and accepted & {list, dict}:
                while remaining and not equals and not remaining[0].startswith("--"):
                    values.append(remaining.pop(0))
            text = " ".join(values)
            if list in accepted and text.startswith("["):
                self.fields_with_list.add(field)
                joined += [name, *_list_items(name, text)]
            elif dict in accepted and text.startswith("{"):
                joined.append(f"{name}={text}")
            else:
                joined += [name + equals + value] if equals else [name, *values]
        return joined


def parse_arguments(types: Sequence[type], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Fill dataclasses from `--config FILE.yaml` and `--field value` options; the command line takes precedence.

    A field without a value in the file, or with `--field null`, is None if it accepts None; otherwise it is refused. A
    field whose `metadata["replaced_by"]` names an option of the command line loses its value of the file; both on the
    command line are refused. A dataclass with a method `check_with(others, given, options)` then checks itself beside
    the other instances; `given` are the names of the fields that the file or the command line sets, `options` of those
    that the command line sets.

    `--help` shows the fields of each dataclass as a group, with the values of the file as defaults. Of the fields of
    transformers it shows the common ones and those of the file; `--help-all` shows all.

    The line `recipe: NAME` of a file is no field: it tells `dair-hf train` which recipe to run. Another recipe beside
    that one refuses the file.

    Args:
        types: Dataclasses whose fields carry `metadata["help"]` and have distinct names.
        argv: Command-line options; None: those of the process. A mapping is written as `--lambdas '{kl: 1.0}'`
            (YAML or JSON), a list as `--seeds [0, 1]` or `--seeds 0 1`.

    Returns:
        One instance of each type.

    Raises:
        DataError: The file is missing, no YAML mapping or of another recipe, a field or option is unknown, or a value
            is invalid, missing or without effect beside the others.

    Example:
        >>> from dair_hf.config import DAIRConfig
        >>> parse_arguments([DAIRConfig], ["--output_dir", "out", "--dair_lambda", "2"])[0].dair_lambda
        2.0
    """
    options = list(sys.argv[1:] if argv is None else argv)
    fields = {f.name: f for t in types for f in dataclasses.fields(t) if f.init}
    path, options = _split_config_file(options)
    # Options of the file come first, because later ones override earlier ones in argparse.
    values = _read_settings(path, fields) if path else {}
    parser = SettingsParser(types)
    options = parser.join_brackets(options)
    values |= dict.fromkeys(parser.fields_without_value)
    if values and options and not options[0].startswith("--") and options[0] not in HELP:
        raise _unknown(options[0], fields)  # argparse would give it to the last option of the file
    names = [
        option.partition("=")[0].removeprefix("--").replace("-", "_") for option in options if option.startswith("--")
    ]
    given = set(names)
    # A list without values takes back that of the file, and replaces no other field.
    empty = {
        option.removeprefix("--").replace("-", "_")
        for option, after in itertools.pairwise([*options, "--"])
        if option.startswith("--") and after.startswith("--") and "=" not in option
    }
    for name in names:
        if names.count(name) > 1 and parser.field_types.get(name, set()) & {list, dict}:
            raise DataError(f"--{name} is given twice; give all its values after one --{name}")
    replaced = [(name, other) for name in fields for other in fields[name].metadata.get("replaced_by", ())]
    for name, other in replaced:
        if other in given - empty and name not in given:
            values.pop(name, None)
    parser.fields_with_list |= {name for name, value in values.items() if isinstance(value, list)} - given
    parser.fields_without_value = {name for name, value in values.items() if value is None} - given
    for name, value in values.items():
        if value is not None or name in parser.fields_without_value:
            _check_kind(f"{path}: {name}", value, parser.field_types[name])
    if HELP_ALL in options or not HELP.isdisjoint(options):
        parser.arrange_help(path, values, HELP_ALL in options)
    parsed = parser.parse_settings(_as_options(values) + options)
    for name, other in replaced:
        if {name, other} <= given and any(getattr(settings, name, None) for settings in parsed):
            raise DataError(f"--{name} and --{other} are both given; keep one of them")
    for settings in parsed:
        if hasattr(settings, "check_with"):
            settings.check_with(parsed, given | set(values), given)
    return parsed


def _split_config_file(options: list[str]) -> tuple[Path | None, list[str]]:
    """Return the file given by `--config`, and the other options."""
    for index, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name != "--config":
            continue
        rest = options[index + 1 :]
        if not equals:
            value, rest = (rest[0], rest[1:]) if rest else ("", [])
        if not value:
            raise DataError("--config needs a file name after it, such as recipes/configs/demo.yaml")
        if any(other.partition("=")[0] == "--config" for other in rest):
            raise DataError(f"--config is given twice, first {value}; put the settings of both files into one")
        return Path(value), options[:index] + rest
    return None, options


def _read_settings(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    if not path.exists():
        raise DataError(f"{path}: no such file; the shipped ones are in recipes/configs/")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: found {type(values).__name__} at the top; write one `field: value` per line")
    if "recipe" not in fields:
        _check_recipe(path, values.pop("recipe", None))
    for name in values:
        if name not in fields:
            raise DataError(f"{path}: unknown field {name!r}; see --help for the fields")
    return values


def _check_recipe(path: Path, recipe: Any) -> None:
    """Refuse a configuration of another recipe that lies beside the running one."""
    program = Path(sys.argv[0])
    if recipe is not None and program.stem != recipe and (program.parent / f"{recipe}.py").is_file():
        raise DataError(
            f"{path}: belongs to the recipe {recipe}, but {program.name} is running; start {recipe}.py, or dair-hf "
            "train, which finds the recipe, or change the line `recipe:`"
        )


def _check_kind(place: str, value: Any, accepted: set[Any]) -> None:
    """Refuse a value of a YAML file that would reach its field as the text of another kind of value."""
    if value is None and type(None) not in accepted:
        raise DataError(f"{place} has no value; give one, or remove the line to keep the default")
    for kind, name in ((list, "list"), (dict, "mapping")):
        if isinstance(value, kind) and kind not in accepted:
            expected = "a list" if list in accepted else "a mapping" if dict in accepted else "a single value"
            raise DataError(f"{place}: found the {name} {value}; write {expected}")
    is_text = str in accepted and bool not in accepted
    for item in value if isinstance(value, list) else [value] if is_text else []:
        if isinstance(item, bool):
            raise DataError(f"{place}: YAML reads this word as {str(item).lower()}; put it in quotes")
    if isinstance(value, list) and any(item is None or isinstance(item, (list, dict)) for item in value):
        raise DataError(f"{place}: found {value}; each entry of the list must be a single value")


def _hint(name: str, fields: Collection[str]) -> str:
    near = difflib.get_close_matches(name, fields, 1)
    return f"; did you mean {near[0]!r}?" if near else "; see --help for the fields"


def _unknown(option: str, fields: Collection[str]) -> DataError:
    return DataError(f"unknown option {option}{_hint(option.lstrip('-'), fields)}")


def _as_options(values: Mapping[str, Any]) -> list[str]:
    options: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, list):
            options += [f"--{name}", *(str(item) for item in value)]
        else:
            # Joined with "=", because a value may start with a dash.
            options.append(f"--{name}={json.dumps(value, default=str) if isinstance(value, dict) else value}")
    return options


def _fields_by_origin(owner: type) -> tuple[set[str], set[str]]:
    """Return the names of the fields that a dataclass or a base of this library declares, and of all others."""
    names = {field.name for field in dataclasses.fields(owner)}
    ours = [base for base in owner.__mro__ if base.__module__.partition(".")[0] != "transformers"]
    own = names & {name for base in ours for name in inspect.get_annotations(base)}
    return own, names - own


def _base_types(hint: Any) -> set[Any]:
    """Return the types that a field accepts, without parameters: list and None for `list[int] | None`."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return {typing.get_origin(part) or part for part in parts}


def _list_items(name: str, text: str) -> list[str]:
    values = parse_yaml(text, name)
    if not isinstance(values, list):
        raise DataError(f"{name}: found {text!r}; write a list such as [1, 2]")
    return [str(value) for value in values]


def _mapping_or_text(text: str) -> dict[str, Any] | str:
    return _mapping(text) if text.lstrip().startswith("{") else text


def _mapping(text: str) -> dict[str, Any]:
    try:
        mapping = parse_yaml(text, repr(text))
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(mapping, dict):
        raise argparse.ArgumentTypeError(f"expected a mapping, found {type(mapping).__name__}: {text!r}")
    for key, value in mapping.items():
        if value is None and ":" in str(key):
            raise argparse.ArgumentTypeError(f"a space is missing after the colon of {key!r}: {text!r}")
    # Converts keys to strings, as in JSON.
    plain: dict[str, Any] = json.loads(json.dumps(mapping, default=str))
    return plain
