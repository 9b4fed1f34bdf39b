"""What the metrics' command lines share: JSON lines in, a table and JSON out."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError, SlotNameWarning, UndefinedMetricWarning
from dair_hf.io.commands import exit_status
from dair_hf.io.files import read_json, require_output_file, write_text
from dair_hf.metrics.state.conventions import PRESETS, Convention
from dair_hf.metrics.state.items import Turn, check_ids, decode_item, read_item

INPUTS = ("predictions", "references", "correct", "compare")  # options that name files to read
FORMATS = """each line holds one JSON value, in any of these shapes:
  {"hotel-area": ["east"], "hotel-stars": "4"}            a state; lines match by position
  {"row_id": "MUL0003/4", "state": {...}}                 lines match by id ("id" works too)
  {"dialogue_id": "MUL0003", "turn_id": 4, "state": {...}}
a state may also be nested, {"hotel": {"area": "east"}}, or a list, [{"slot": "hotel-area", "values": ["east"]}].
"variant": "augmented" beside the id marks the augmented view of a row."""


_GZIP = b"\x1f\x8b"


def read_lines(path: str) -> list[tuple[str, Any]]:
    """Read a file of JSON lines; blank lines are passed over.

    Returns:
        ("file:line", value) of every line.

    Raises:
        DataError: The file is absent, not UTF-8, empty, or has a line that is not JSON; with file and line.
    """
    return parse_lines(read_text(path), path)


def read_text(path: str) -> str:
    """Read a text file; a byte order mark is passed over.

    Raises:
        DataError: The file is absent, compressed or not UTF-8.
    """
    try:
        content = Path(path).read_bytes()
        if content.startswith(_GZIP):
            raise DataError(f"{path}: is compressed; unpack it with gunzip")
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); re-save the file as UTF-8") from error


def parse_lines(text: str, path: str) -> list[tuple[str, Any]]:
    r"""Parse the text of a file of JSON lines; see `read_lines`.

    Example:
        >>> parse_lines('{"a": 1}\n\n[2]\n', "x.jsonl")
        [('x.jsonl:1', {'a': 1}), ('x.jsonl:3', [2])]
    """
    values = []
    # Only "\n" ends a line here: str.splitlines would also break at characters that JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append((f"{path}:{number}", decode_item(line)))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{number}: not JSON at column {error.colno} ({error.msg}); one JSON value belongs on each line"
            ) from None
    if not values:
        raise DataError(f"{path}: holds no lines; expected one JSON value on each")
    return values


def read_turns(path: str) -> list[Turn]:
    """Read a file of items; see `FORMATS`."""
    turns = [read_item(value, where) for where, value in read_lines(path)]
    check_ids(turns, path)
    return turns


def add_convention_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--preset`, one option for each switch, and the bootstrap's settings."""
    parser.add_argument("--preset", default="any_of", help=f"convention: {', '.join(PRESETS)} (default: any_of)")
    group = parser.add_argument_group("switches", "change one rule of the preset; the printed name then says so")
    for field in dataclasses.fields(Convention):
        choices = field.metadata["choices"]
        group.add_argument(
            f"--{field.name}", metavar="|".join(choices) if choices else "A,B,...", help=field.metadata["help"]
        )
    add_result_arguments(parser)


def add_result_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the bootstrap's settings and `--json`."""
    parser.add_argument("--n_bootstrap", type=int, default=1000, help="resamples for the intervals; 0 for none")
    parser.add_argument("--seed", type=int, default=0, help="seed of the resampling")
    parser.add_argument("--confidence", type=float, default=0.95, help="coverage of the intervals")
    parser.add_argument("--json", metavar="OUT", help="also write all figures to this file")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT where this command wrote it before")


def chosen_switches(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the switches that were given on the command line."""
    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Convention)}
    return {name: value for name, value in given.items() if value is not None}


def bootstrap_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the bootstrap's settings as keyword arguments."""
    return {name: getattr(arguments, name) for name in ("n_bootstrap", "seed", "confidence")}


def run_command(
    command: Callable[[], Mapping[str, Any]],
    tabulate: Callable[[Mapping[str, Any]], str],
    arguments: argparse.Namespace,
) -> int:
    """Run a metric's command: write its JSON and print its table.

    Args:
        command: Computes the figures.
        tabulate: Figures -> text.
        arguments: The command line; `json` and `overwrite` say where the figures go.

    Returns:
        The exit status; see `dair_hf.io.commands.exit_status`.
    """

    def main() -> None:
        if arguments.json is not None:
            read = [path for name in INPUTS if (path := getattr(arguments, name, None)) is not None]
            require_output_file(arguments.json, read, arguments.overwrite)
        with _warnings_in_one_line():
            figures = command()
        if arguments.json is not None:
            _write_figures(arguments.json, without_nan(figures))
        print(tabulate(figures))

    return exit_status(main)


def _write_figures(path: str, figures: Mapping[str, Any]) -> None:
    if Path(path).exists() and Path(path).stat().st_size:
        try:
            before = read_json(path)
        except DataError:
            before = None
        if not isinstance(before, dict) or 2 * len(before.keys() & figures.keys()) < len(before):
            raise DataError(f"{path}: was not written by this command; name another file, or remove it")
    write_text(path, json.dumps(figures, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as said:
        for category in (SlotNameWarning, UndefinedMetricWarning):
            warnings.simplefilter("always", category)
        yield
    for warning in said:
        print(f"warning: {warning.message}", file=sys.stderr)


def without_nan(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None, at any depth.

    Example:
        >>> without_nan({"cm": float("nan"), "rows": [1, 2.5]})
        {'cm': None, 'rows': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def percentage(figures: Mapping[str, Any], key: str) -> str:
    """Format a ratio with its interval and, where they are known, numerator and denominator."""
    value = figures[key]
    text = "undefined" if math.isnan(value) else f"{100 * value:6.2f} %"
    if f"{key}_low" in figures and not math.isnan(figures[f"{key}_low"]):
        text += f"  [{100 * figures[f'{key}_low']:.2f}, {100 * figures[f'{key}_high']:.2f}]"
    if f"{key}_numerator" in figures:
        text += f"  {figures[f'{key}_numerator']:.10g}/{figures[f'{key}_denominator']:.10g}"
    return text


def table(rows: list[tuple[str, str]]) -> str:
    """Align two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
