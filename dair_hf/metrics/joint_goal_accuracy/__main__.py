"""Command line: joint goal accuracy of JSON lines of predictions from any system.

python -m dair_hf.metrics.joint_goal_accuracy --predictions P --references R --preset any_of --json OUT
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dair_hf.metrics.json_lines import (
    FORMATS,
    add_convention_arguments,
    bootstrap_settings,
    chosen_switches,
    percentage,
    read_turns,
    run_command,
    table,
)
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.items import pair_turns
from dair_hf.metrics.state.joint_goal import summarize_turns


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; see `dair_hf.io.commands.exit_status`."""
    parser = argparse.ArgumentParser(
        prog="python -m dair_hf.metrics.joint_goal_accuracy",
        description="Joint goal accuracy of predicted dialog states under a named convention.",
        epilog=FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--predictions", required=True, metavar="P", help="JSON lines of predicted states")
    parser.add_argument("--references", required=True, metavar="R", help="JSON lines of gold states")
    add_convention_arguments(parser)
    arguments = parser.parse_args(argv)

    def figures() -> dict[str, Any]:
        name, convention = resolve_convention(arguments.preset, **chosen_switches(arguments))
        turns = pair_turns(read_turns(arguments.predictions), read_turns(arguments.references))
        return summarize_turns(turns, name, convention, progress=True, **bootstrap_settings(arguments))

    return run_command(figures, _tabulate, arguments)


def _tabulate(figures: Mapping[str, Any]) -> str:
    keys = ("joint_goal_accuracy", "joint_goal_accuracy_names", "slot_precision", "slot_recall", "slot_f1")
    rows = [("preset", figures["preset"])] + [(key, percentage(figures, key)) for key in keys]
    rows += [(f"  {name}", percentage(inner, "joint_goal_accuracy")) for name, inner in figures["by_domain"].items()]
    counts = ("turns", "turns_skipped", "empty_predictions", "empty_references", "references_with_dontcare")
    return table(rows + [(key, str(figures[key])) for key in counts])


if __name__ == "__main__":
    sys.exit(main())
