"""Command line: VQA accuracy of the public JSON files, or of JSON lines from any system.

python -m dair_hf.metrics.vqa_accuracy --predictions P --references R --json OUT
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from dair_hf.metrics.json_lines import add_result_arguments, bootstrap_settings, percentage, run_command, table
from dair_hf.metrics.vqa.breakdown import summarize_answers
from dair_hf.metrics.vqa.items import pair_answers, read_prediction_file, read_reference_file
from dair_hf.metrics.vqa.scores import Normalize

_EPILOG = """predictions: a public result file, [{"question_id": 458752000, "answer": "net"}, ...], or a line for each:
  {"question_id": 458752000, "answer": "net"}             lines match by id ("row_id" works too)
  "net"                                                   lines match by position
references: a public annotation file, or a line for each question:
  {"question_id": 458752000, "answers": ["net", ...], "answer_type": "other", "question_type": "what is this"}
  ["net", ...]
"image_id" beside the id, on both sides, tells the edits of an image apart."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; see `dair_hf.io.commands.exit_status`."""
    parser = argparse.ArgumentParser(
        prog="python -m dair_hf.metrics.vqa_accuracy",
        description="Accuracy of visual question answering by the official rule, overall and by type.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--predictions", required=True, metavar="P", help="predicted answers")
    parser.add_argument("--references", required=True, metavar="R", help="the annotators' answers")
    parser.add_argument(
        "--normalize",
        default="disputed",
        metavar="|".join(get_args(Normalize)),
        help="when both sides are normalised: where the annotators' answers differ (the official rule), always, never",
    )
    add_result_arguments(parser)
    arguments = parser.parse_args(argv)

    def figures() -> dict[str, Any]:
        pairs = pair_answers(read_prediction_file(arguments.predictions), read_reference_file(arguments.references))
        return summarize_answers(pairs, arguments.normalize, **bootstrap_settings(arguments))

    return run_command(figures, _tabulate, arguments)


def _tabulate(figures: Mapping[str, Any]) -> str:
    rows = [("normalize", figures["normalize"])]
    rows += [(key, percentage(figures, key)) for key in ("vqa_accuracy", "vqa_accuracy_simple", "vqa_correct")]
    for kind in ("by_answer_type", "by_question_type"):
        if figures[kind]:
            rows.append((kind, ""))
        for name, inner in figures[kind].items():
            rows.append((f"  {name}", f"{percentage(inner, 'vqa_accuracy')}  of {inner['questions']}"))
    counts = ("questions", "undisputed", "not_ten_annotators", "empty_predictions")
    return table(rows + [(key, str(figures[key])) for key in counts])


if __name__ == "__main__":
    sys.exit(main())
