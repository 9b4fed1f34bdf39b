"""`dair-hf evaluate`: a model on the pairs of a file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from dair_hf.commands.evaluation_record import RECORD_FILE, require_evaluation_folder
from dair_hf.errors import DataError
from dair_hf.evaluation.answers import MATCHES

RULES = "; ".join(f"{name}: {match.description}" for name, match in MATCHES.items())


def evaluate(
    model: Annotated[str, typer.Argument(help="Model id on the Hub, or local folder.", show_default=False)],
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Paired rows: .jsonl, .json, .csv or .parquet, or a folder of `datasets` (save_to_disk). Columns text "
            "and label for classifiers; prompt and completion, messages, or source and target for models that "
            "generate; each also with the prefix augmented_.",
            show_default=False,
        ),
    ],
    output: Annotated[str, typer.Option(help="Folder for evaluation.json and predictions.jsonl.")] = "pair_evaluation",
    match: Annotated[
        str | None,
        typer.Option(
            help=f"When a generated answer is right. {RULES}. Default: exact; classifiers always use label, the class "
            "with the largest logit.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs run at once.")] = 16,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens after which texts are cut; default: 512, or the positions of the model if fewer."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens after which answers end; default: those of the longest target and 8 more."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read the first rows only, for a try.")] = None,
    clusters: Annotated[
        str | None,
        typer.Option(help="Column of units that belong together, for the intervals; default: dialogue_id, else rows."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 or mps; default: the first GPU, else the CPU.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Also write the pair report to the folder.")] = False,
    progress: Annotated[bool, typer.Option(help="Show progress bars on stderr.")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier evaluation in the folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Answer both views of all pairs: accuracy, consistency metric CM in both directions, flips, with intervals.

    CM is the share of the originals answered right whose partner is answered right as well; reverse CM is the same from
    partner to original. Intervals are Wilson's, 95 %; rows of one unit of --clusters count together.
    """
    started = time.perf_counter()
    from dair_hf.io.columns import align
    from dair_hf.io.files import require_writable_folder
    from dair_hf.io.pair_files import PREDICTIONS_FILE, require_pairs_file

    if match is not None and match not in (*MATCHES, "label"):
        raise DataError(f"--match {match}: no such rule; use one of {', '.join(MATCHES)}, label")
    if Path(model).is_file():
        raise DataError(f"{model}: is a file, not a model; the order is dair-hf evaluate MODEL PAIRS")
    require_pairs_file(pairs)
    folder = require_writable_folder(output, "--output")
    names = [PREDICTIONS_FILE]
    if report:
        from dair_hf.pair_report.page import require_report_libraries
        from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE

        require_report_libraries()
        names += [JSON_FILE, PAGE_FILE]
    require_evaluation_folder(folder, names, [pairs], overwrite)

    # Slow, and thus after what can be refused without it.
    from dair_hf.commands.model_evaluation import EvaluationSettings, evaluate_model, table_of

    settings = EvaluationSettings(match, batch_size, max_tokens, max_new_tokens, limit, clusters, device)
    record = evaluate_model(model, pairs, folder, settings, report, progress, overwrite, started)
    if int(os.environ.get("RANK", "0")):
        return
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    metrics = record["metrics"]
    rule = record["settings"]["rule"]
    count = metrics.get("partners", metrics["pairs"])
    typer.echo(f"{model} on {pairs}: {count} pairs of {metrics['rows']} rows; right: {rule}")
    typer.echo("\n".join(align(table_of(metrics))))
    files = ", ".join(str(folder / file) for file in (RECORD_FILE, *names))
    typer.echo(f"took {record['seconds']['total']:.1f} s; wrote {files}")
