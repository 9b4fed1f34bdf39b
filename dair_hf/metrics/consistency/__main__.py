"""Command line of the consistency metric, with a test between two models.

python -m dair_hf.metrics.consistency --predictions P.jsonl --references R.jsonl --preset any_of --json OUT.json
python -m dair_hf.metrics.consistency --correct A.jsonl --compare B.jsonl
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dair_hf.errors import DataError
from dair_hf.metrics import command_line
from dair_hf.metrics.command_line import percentage
from dair_hf.metrics.consistency_items import (
    PairCorrectness,
    compare_models,
    consistency_metrics,
    judge_pairs,
    read_correctness,
)
from dair_hf.metrics.json_items import parse_lines, read_text
from dair_hf.metrics.state.conventions import resolve_pair_convention
from dair_hf.metrics.state.items import pair_turns, read_items_file

_FORMATS = f"""{command_line.STATE_FORMATS}
The consistency metric needs an id with every state.

Files of --correct hold one row per line, with null for a missing augmented view, or one view per line:
  {{"row_id": "MUL0003/4", "original_correct": true, "augmented_correct": false}}
  {{"row_id": "MUL0003/4", "variant": "augmented", "correct": false}}       as in predictions.jsonl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status, see `dair_hf.io.commands.exit_status`."""
    parser = command_line.metric_parser(
        "consistency",
        "(--predictions FILE --references FILE [--preset NAME] | --correct FILE) [--compare FILE]",
        "Compute the consistency metric (CM): of the pairs whose original view is answered correctly, the share whose\n"
        "augmented view is answered correctly, too. Give either dialogue states or the correctness of each row.",
        _FORMATS,
    )
    parser.add_argument("--predictions", metavar="FILE", help="predicted states of both views, as JSON lines")
    parser.add_argument("--references", metavar="FILE", help="gold states of both views, as JSON lines")
    parser.add_argument(
        "--correct", metavar="FILE", help="correctness of both views, as JSON lines, instead of --predictions"
    )
    parser.add_argument(
        "--compare",
        metavar="FILE",
        help="file of a second model, in the format of --correct or --predictions; adds McNemar's test for each view",
    )
    command_line.add_convention_arguments(parser)
    command_line.add_result_arguments(parser)
    arguments = parser.parse_args(argv)
    return command_line.run_command(lambda: _compute(arguments), _tabulate, arguments, "cm")


def _compute(arguments: argparse.Namespace) -> dict[str, Any]:
    switches = command_line.selected_switches(arguments)
    has_states = arguments.predictions is not None or arguments.references is not None
    if arguments.correct is not None and has_states:
        raise DataError("give either --correct, or --predictions and --references, not both")
    if arguments.correct is not None and switches:
        raise DataError(f"--correct cannot be combined with --{' --'.join(switches)}, which compare states")
    if arguments.correct is None and (arguments.predictions is None or arguments.references is None):
        raise DataError("no input: give --predictions and --references, or --correct")
    name, convention = resolve_pair_convention(arguments.preset, **switches)

    def read_pairs(path: str) -> list[PairCorrectness]:
        if arguments.correct is not None:
            return read_correctness(parse_lines(read_text(path), path))
        predictions, references = read_items_file(path), read_items_file(arguments.references, "references")
        return judge_pairs(pair_turns(predictions, references), convention)

    pairs = read_pairs(arguments.correct or arguments.predictions)
    results = consistency_metrics(pairs, confidence=arguments.confidence)
    if arguments.compare is not None:
        results["mcnemar"] = compare_models(pairs, read_pairs(arguments.compare))
    return results | {"preset": name if arguments.correct is None else "given correctness"}


def _tabulate(results: Mapping[str, Any]) -> str:
    of_pairs = ("cm", "both_correct", "pos_to_neg", "neg_to_pos", "neg_to_neg")
    accuracies = ("original_accuracy_pairs", "augmented_accuracy_pairs")
    of_rows = ("original_accuracy", "augmented_accuracy", "cm_all_rows")
    rows = [("preset", results["preset"]), ("pairs", str(results["pairs"]))]
    several = [key for key in results if key == "all_correct" or re.fullmatch("cm_partner_[0-9]+", key)]
    rows += [("partners", str(results["partners"]))] if several else []
    rows += [(key, percentage(results, key)) for key in (*of_pairs, *several, *accuracies)]
    rows += [("rows", str(results["rows"]))] + [(key, percentage(results, key)) for key in of_rows]
    for view, test in results.get("mcnemar", {}).items():
        rows.append((f"mcnemar {view}", f"only A {test['only_a']}, only B {test['only_b']}, p = {test['p_value']:.4g}"))
    return command_line.table(rows)


if __name__ == "__main__":
    sys.exit(main())
