"""Command line: the consistency metric of JSON lines from any system, and a test between two models.

python -m dair_hf.metrics.consistency --predictions P --references R --preset any_of --json OUT
python -m dair_hf.metrics.consistency --correct A --compare B
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics.json_lines import (
    FORMATS,
    add_convention_arguments,
    bootstrap_settings,
    chosen_switches,
    percentage,
    read_lines,
    read_turns,
    run_command,
    table,
)
from dair_hf.metrics.pair_consistency import (
    PairCorrectness,
    compare_models,
    consistency_metrics,
    judge_pairs,
    read_correctness_rows,
)
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.items import pair_turns

_EPILOG = f"""states: {FORMATS}
correctness: {{"row_id": "MUL0003/4", "original_correct": true, "augmented_correct": false}}
  (null where the row has no augmented view)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; see `dair_hf.io.commands.exit_status`."""
    parser = argparse.ArgumentParser(
        prog="python -m dair_hf.metrics.consistency",
        description="The consistency metric: right on the augmented view, given right on the original.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--predictions", metavar="P", help="JSON lines of predicted states of both views")
    parser.add_argument("--references", metavar="R", help="JSON lines of gold states of both views")
    parser.add_argument("--correct", metavar="A", help="JSON lines of correctness, instead of states")
    parser.add_argument("--compare", metavar="B", help="a second model: its --correct or --predictions file")
    add_convention_arguments(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _figures(arguments), _tabulate, arguments)


def _figures(arguments: argparse.Namespace) -> dict[str, Any]:
    switches = chosen_switches(arguments)
    name = "given correctness"
    if arguments.correct is None:
        if arguments.predictions is None or arguments.references is None:
            raise DataError("give --predictions and --references, or --correct")
        name = resolve_convention(arguments.preset, **switches)[0]
    elif arguments.predictions is not None or arguments.references is not None:
        raise DataError("give either --correct or --predictions and --references, not both")
    elif switches:
        raise DataError(f"--correct takes no switches (found {', '.join(switches)}): nothing is left to judge")

    def read(path: Any) -> list[PairCorrectness]:
        if arguments.correct is not None:
            return read_correctness_rows(read_lines(path))
        turns = pair_turns(read_turns(path), read_turns(arguments.references))
        return judge_pairs(turns, arguments.preset, **switches)

    pairs = read(arguments.correct or arguments.predictions)
    figures = consistency_metrics(pairs, **bootstrap_settings(arguments))
    if arguments.compare is not None:
        figures["mcnemar"] = compare_models(pairs, read(arguments.compare))
    return figures | {"preset": name}


def _tabulate(figures: Mapping[str, Any]) -> str:
    of_pairs = ("cm", "both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")
    accuracies = ("original_accuracy_pairs", "augmented_accuracy_pairs")
    of_rows = ("original_accuracy", "augmented_accuracy", "cm_all_rows")
    rows = [("preset", figures["preset"]), ("pairs", str(figures["pairs"]))]
    rows += [(key, percentage(figures, key)) for key in of_pairs + accuracies]
    rows += [("rows", str(figures["rows"]))] + [(key, percentage(figures, key)) for key in of_rows]
    for view, test in figures.get("mcnemar", {}).items():
        rows.append((f"mcnemar {view}", f"only A {test['only_a']}, only B {test['only_b']}, p = {test['p_value']:.4g}"))
    return table(rows)


if __name__ == "__main__":
    sys.exit(main())
