"""Shared parts of the metrics' command lines: options, table, JSON file and exit status."""

from __future__ import annotations

from dair_hf.io.commands import exit_status

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from dair_hf.io.files import holds_json, require_output_file, write_text
from dair_hf.metrics.state.conventions import PRESETS, Convention

STATE_FORMATS = """Files of --predictions and --references hold one dialogue state as JSON per line, with or without id:
  {"hotel-area": ["east"], "hotel-stars": "4"}              files are matched line by line
  {"row_id": "MUL0003/4", "state": {...}}                   files are matched by id ("id" works too)
  {"dialogue_id": "MUL0003", "turn_id": 4, "state": {...}}  files are matched by id
If a file contains the original and the augmented view of a row, mark the latter with "variant": "augmented"; further
augmented views of the row are "augmented_2" and so on.
The predictions.jsonl of a run holds both: give it to both options.
Intervals have the "cluster" of each line as unit, if the lines have one, else its dialogue: "MUL0003" of "MUL0003/4".
A state may also be nested, {"hotel": {"area": "east"}}, or a list, [{"slot": "hotel-area", "values": ["east"]}], and a
"prediction" or "reference" in place of the "state" may be text: "hotel-area = east ; hotel-stars = 4"."""

_INPUTS = ("predictions", "references", "correct", "compare")  # options that name files to read


def metric_parser(
    metric: str, usage: str, description: str, formats: str, program: str | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a metric's command line, still without options.

    Args:
        metric: Name of the metric's folder.
        usage: Required and most important options.
        description: Text above the options.
        formats: Text below the options, about the input files.
        program: Name of the command; None: `python -m` and the module.
    """
    return argparse.ArgumentParser(
        prog=program or f"python -m dair_hf.metrics.{metric}",
        usage=f"%(prog)s {usage} [options]",
        description=description,
        epilog=formats,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_convention_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--preset` and one option for each switch of a convention."""
    parser.add_argument(
        "--preset",
        default="any_of",
        metavar="NAME",
        help=f"convention for comparing states, described in the README of joint_goal_accuracy: {', '.join(PRESETS)} "
        "(default: any_of)",
    )
    group = parser.add_argument_group(
        "switches", "Each option changes one rule of the preset, and the name in the output shows the change."
    )
    for field in dataclasses.fields(Convention):
        choices = field.metadata["choices"]
        group.add_argument(
            f"--{field.name}", metavar="|".join(choices) if choices else "A,B,...", help=field.metadata["help"]
        )


def add_result_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the settings of the confidence intervals and of the JSON file."""
    group = parser.add_argument_group("intervals and output")
    group.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="confidence level of the intervals (default: 0.95)"
    )
    group.add_argument("--json", metavar="FILE", help="also write all results to this JSON file")
    group.add_argument(
        "--overwrite", action="store_true", help="allow --json to replace a file that this command wrote before"
    )


def selected_switches(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the switches that were set on the command line."""
    switches = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Convention)}
    return {name: value for name, value in switches.items() if value is not None}


def run_command(
    compute: Callable[[], Mapping[str, Any]],
    tabulate: Callable[[Mapping[str, Any]], str],
    arguments: argparse.Namespace,
    ratio: str,
) -> int:
    """Compute the results, write the JSON file, print the table, and return the exit status.

    Args:
        compute: Returns the results.
        tabulate: Returns the table of some results.
        arguments: The parsed options.
        ratio: Name of a ratio in every result; a JSON file without it, or without its denominator, is never replaced.
    """

    def is_own(content: Any) -> bool:
        names = (ratio, f"original_{ratio}")
        return isinstance(content, dict) and any({name, f"{name}_denominator"} <= content.keys() for name in names)

    def main() -> None:
        if arguments.json is not None:
            inputs = [path for name in _INPUTS if (path := getattr(arguments, name, None)) is not None]
            require_output_file(arguments.json, inputs, arguments.overwrite, holds_json(is_own))
        results = compute()
        if arguments.json is not None:
            text = json.dumps(_without_nan(results), indent=2, ensure_ascii=False, allow_nan=False)
            write_text(arguments.json, text + "\n")
        print(tabulate(results))

    return exit_status(main)


def _without_nan(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def percentage(results: Mapping[str, Any], key: str) -> str:
    """Format a ratio in percent, with its interval, numerator and denominator if the results contain them."""
    value = results[key]
    text = "undefined" if math.isnan(value) else f"{100 * value:6.2f} %"
    if f"{key}_low" in results and not math.isnan(results[f"{key}_low"]):
        text += f"  [{100 * results[f'{key}_low']:.2f}, {100 * results[f'{key}_high']:.2f}]"
    if f"{key}_numerator" in results:
        text += f"  {results[f'{key}_numerator']:.10g}/{results[f'{key}_denominator']:.10g}"
    return text


def table(rows: list[tuple[str, str]]) -> str:
    """Align names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
