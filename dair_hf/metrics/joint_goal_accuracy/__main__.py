"""Command line of the joint goal accuracy.

python -m dair_hf.metrics.joint_goal_accuracy --predictions P.jsonl --references R.jsonl --preset any_of --json OUT.json
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dair_hf.metrics import command_line
from dair_hf.metrics.command_line import percentage
from dair_hf.metrics.state.conventions import resolve_convention

_RATIOS = ("joint_goal_accuracy", "joint_goal_accuracy_names", "slot_precision", "slot_recall", "slot_f1")
_COUNTS = ("turns", "turns_skipped", "empty_predictions", "empty_references", "references_with_dontcare")


def main(argv: Sequence[str] | None = None, program: str | None = None) -> int:
    """Run the command and return its exit status, see `dair_hf.io.commands.exit_status`.

    Args:
        argv: Options; None: those of the process.
        program: Name of the command in messages; None: `python -m` and the module.
    """
    parser = command_line.metric_parser(
        "joint_goal_accuracy",
        "--predictions FILE --references FILE [--preset NAME]",
        "Compute the joint goal accuracy of predicted dialogue states under a named convention.",
        command_line.STATE_FORMATS,
        program,
    )
    parser.add_argument("--predictions", required=True, metavar="FILE", help="predicted states, as JSON lines")
    parser.add_argument("--references", required=True, metavar="FILE", help="gold states, as JSON lines")
    command_line.add_convention_arguments(parser)
    command_line.add_result_arguments(parser)
    arguments = parser.parse_args(argv)

    def compute() -> dict[str, Any]:
        # Here, so that --help is shown at once.
        from dair_hf.metrics.state.items import pair_turns, read_items_file
        from dair_hf.metrics.state.joint_goal import summarize_turns

        name, convention = resolve_convention(arguments.preset, **command_line.selected_switches(arguments))
        predictions, references = (
            read_items_file(getattr(arguments, name), name) for name in ("predictions", "references")
        )
        turns = pair_turns(predictions, references)
        return summarize_turns(turns, name, convention, progress=True, confidence=arguments.confidence)

    return command_line.run_command(compute, _tabulate, arguments, "joint_goal_accuracy")


def _tabulate(results: Mapping[str, Any]) -> str:
    rows = [("preset", results["preset"])]
    for view in ("",) if "joint_goal_accuracy" in results else ("original_", "augmented_"):
        rows += [(view + key, percentage(results, view + key)) for key in _RATIOS]
        by_domain = results[f"{view}by_domain"].items()
        rows += [(f"  {name}", percentage(inner, "joint_goal_accuracy")) for name, inner in by_domain]
        rows += [(view + key, str(results[view + key])) for key in _COUNTS]
    return command_line.table(rows)


if __name__ == "__main__":
    sys.exit(main())
