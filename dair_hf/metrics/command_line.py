"""Command line of the joint goal accuracy, `dair-hf jga`."""

from __future__ import annotations

import argparse
import functools
import json
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dair_hf.io.commands import exit_status, printable
from dair_hf.io.files import read_json, require_output_file, write_json
from dair_hf.metrics.state.conventions import FORMAT_PRESETS, PRESETS, Convention, resolve_convention

_FORMATS = """Files of --predictions and --references hold one dialogue state as JSON per line, with or without id:
  {"hotel-area": ["east"], "hotel-stars": "4"}              files are matched line by line
  {"row_id": "MUL0003/4", "state": {...}}                   files are matched by id ("id" works too)
  {"dialogue_id": "MUL0003", "turn_id": 4, "state": {...}}  files are matched by id
An augmented view of a row has "variant": "augmented", further ones "augmented_2" and so on.
The predictions.jsonl of a run holds predictions and references of both views: give it to both options.
Intervals have the "cluster" of each line as unit, if the lines have one, else its dialogue: "MUL0003" of "MUL0003/4".
A state may also be nested, {"hotel": {"area": "east"}}, or a list, [{"slot": "hotel-area", "values": ["east"]}], and a
"prediction" or "reference" in place of the "state" may be text: "hotel-area = east ; hotel-stars = 4".
Files of other evaluators are read by their --format; most have the gold states too, and then need no --references:
  trade      all_prediction_*.json of TRADE               simpletod  the evaluation file of SimpleTOD
  parlai     the world log of ParlAI and CheckDST         ubar       model_output*BS.json of UBAR
  convlab    predictions.json of ConvLab-3                mwz22      predictions of MultiWOZ_Evaluation, data of 2.2"""

_RATIOS = (
    *("joint_goal_accuracy", "joint_goal_accuracy_names", "average_goal_accuracy", "slot_accuracy"),
    *("slot_precision", "slot_recall", "slot_f1"),
)
_COUNTS = ("turns", "turns_skipped", "empty_predictions", "empty_references", "references_with_dontcare")
# All but the switch that only the consistency metric reads.
_SWITCHES = {name: hint for name, hint in typing.get_type_hints(Convention).items() if name != "consistency_slots"}


def jga(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status, see `dair_hf.io.commands.exit_status`."""
    parser = argparse.ArgumentParser(
        prog="dair-hf jga",
        usage="%(prog)s --predictions FILE [--references FILE] [--format NAME] [--preset NAME] [options]",
        description="Compute the joint goal accuracy of predicted dialogue states under a named convention.",
        epilog=_FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--predictions", required=True, metavar="FILE", help="predicted states, as JSON lines")
    parser.add_argument("--references", metavar="FILE", help="gold states, unless the predictions have them")
    parser.add_argument("--format", default="json", choices=FORMAT_PRESETS, help="format of the files, see below")
    presets = f"convention, described in the README of joint_goal_accuracy: {', '.join(PRESETS)}"
    parser.add_argument("--preset", metavar="NAME", help=f"{presets} (default: any_of, or that of the format)")
    group = parser.add_argument_group(
        "switches", "Each option changes one rule of the preset, and the name in the output shows the change."
    )
    for name, hint in _SWITCHES.items():
        choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else None
        text = Convention.__dataclass_fields__[name].metadata["help"]
        metavar = "|".join(choices) if choices else "FILE" if name == "label_maps" else "A,B,..."
        group.add_argument(f"--{name}", metavar=metavar, help=text)
    group = parser.add_argument_group("intervals and output")
    group.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="confidence level of the intervals (default: 0.95)"
    )
    group.add_argument("--json", metavar="FILE", help="also write all results to this JSON file")
    group.add_argument(
        "--overwrite", action="store_true", help="allow --json to replace a file that this command wrote before"
    )
    arguments = parser.parse_args(argv)
    return exit_status(lambda: _compute(arguments))


def _compute(arguments: argparse.Namespace) -> None:
    # Here, so that --help is shown at once.
    from dair_hf.metrics.items import pair_items, read_turns_file
    from dair_hf.metrics.state.formats import read_published
    from dair_hf.metrics.state.joint_goal import summarize_turns

    files = {"predictions": arguments.predictions, "references": arguments.references or arguments.predictions}
    if arguments.json is not None:
        require_output_file(arguments.json, list(files.values()), arguments.overwrite, _is_own)
    changed = {name: value for name in _SWITCHES if (value := getattr(arguments, name)) is not None}
    preset, convention = resolve_convention(arguments.preset or FORMAT_PRESETS[arguments.format], **changed)
    read = read_turns_file if arguments.format == "json" else functools.partial(read_published, name=arguments.format)
    is_only = arguments.references is not None
    predictions, references = (read(file, kind=kind, is_only=is_only) for kind, file in files.items())
    turns = pair_items(predictions, references)
    results = summarize_turns(turns, preset, convention, confidence=arguments.confidence)
    if arguments.json is not None:
        write_json(arguments.json, json.loads(json.dumps(results), parse_constant=lambda _: None))  # null for NaN
    print("\n".join(map(printable, _tabulate(results).split("\n"))))


def _is_own(path: Path) -> bool:
    content = read_json(path)
    return isinstance(content, dict) and {"preset", "switches"} <= content.keys()


def _tabulate(results: Mapping[str, Any]) -> str:
    rows = [("preset", results["preset"])]
    for view in ("",) if "joint_goal_accuracy" in results else ("original_", "augmented_"):
        rows += [(view + key, _percentage(results, view + key)) for key in _RATIOS]
        by_domain = results[f"{view}by_domain"].items()
        rows += [(f"  {name}", _percentage(inner, "joint_goal_accuracy")) for name, inner in by_domain]
        rows += [(view + key, str(results[view + key])) for key in _COUNTS]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _percentage(results: Mapping[str, Any], key: str) -> str:
    """Format a ratio in percent, with its interval, numerator and denominator if the results contain them."""
    value = results[key]
    text = "undefined" if math.isnan(value) else f"{100 * value:6.2f} %"
    if f"{key}_low" in results and not math.isnan(results[f"{key}_low"]):
        text += f"  [{100 * results[f'{key}_low']:.2f}, {100 * results[f'{key}_high']:.2f}]"
    if f"{key}_numerator" in results:
        text += f"  {results[f'{key}_numerator']:.10g}/{results[f'{key}_denominator']:.10g}"
    return text
