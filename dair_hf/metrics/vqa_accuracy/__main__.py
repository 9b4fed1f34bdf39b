"""Command line of the VQA accuracy, for the public JSON files or JSON lines.

python -m dair_hf.metrics.vqa_accuracy --predictions results.json --references annotations.json --json OUT.json
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from dair_hf.metrics import command_line
from dair_hf.metrics.command_line import percentage
from dair_hf.metrics.vqa.breakdown import summarize_answers
from dair_hf.metrics.vqa.items import pair_answers, read_prediction_file, read_reference_file
from dair_hf.metrics.vqa.scores import Normalize

_FORMATS = """Predictions are a public result file, [{"question_id": 458752000, "answer": "net"}, ...], or JSON lines:
  {"question_id": 458752000, "answer": "net"}             files are matched by id ("row_id" works too)
  "net"                                                   files are matched line by line
References are a public annotation file (unpacked), or JSON lines:
  {"question_id": 458752000, "answers": ["net", ...], "answer_type": "other", "question_type": "what is this"}
  ["net", ...]
If a question is asked about several edits of an image, an "image_id" on both sides distinguishes them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status, see `dair_hf.io.commands.exit_status`."""
    parser = command_line.metric_parser(
        "vqa_accuracy",
        "--predictions FILE --references FILE",
        "Compute the accuracy of visual question answering as in the official evaluation, overall and by type.",
        _FORMATS,
    )
    parser.add_argument("--predictions", required=True, metavar="FILE", help="predicted answers")
    parser.add_argument("--references", required=True, metavar="FILE", help="the annotators' answers")
    parser.add_argument(
        "--normalize",
        default="disputed",
        metavar="|".join(get_args(Normalize)),
        help="when answers are normalized: if the annotators' answers differ, as in the official evaluation (disputed, "
        "the default), always or never",
    )
    command_line.add_result_arguments(parser)
    arguments = parser.parse_args(argv)

    def compute() -> dict[str, Any]:
        pairs = pair_answers(read_prediction_file(arguments.predictions), read_reference_file(arguments.references))
        return summarize_answers(pairs, arguments.normalize, confidence=arguments.confidence)

    return command_line.run_command(compute, _tabulate, arguments, "vqa_accuracy")


def _tabulate(results: Mapping[str, Any]) -> str:
    rows = [("normalize", results["normalize"])]
    rows += [(key, percentage(results, key)) for key in ("vqa_accuracy", "vqa_accuracy_simple", "vqa_correct")]
    for kind in ("by_answer_type", "by_question_type"):
        if results[kind]:
            rows.append((kind, ""))
        for name, inner in results[kind].items():
            rows.append((f"  {name}", f"{percentage(inner, 'vqa_accuracy')}  of {inner['questions']}"))
    counts = ("questions", "undisputed", "not_ten_annotators", "empty_predictions")
    return command_line.table(rows + [(key, str(results[key])) for key in counts])


if __name__ == "__main__":
    sys.exit(main())
