"""`dair-hf evaluate`: a model, or answers of another program, on the pairs of a file; and the prompts for it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from dair_hf.commands.audit import Name, Revision, Split


def evaluate_file(
    model: Annotated[
        str,
        typer.Argument(help="Model id on the Hub, local folder, or .jsonl of answers to prompts.", show_default=False),
    ],
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Paired rows: .jsonl, .json, .csv or .parquet, a folder of `datasets`, or user/name of a data set on "
            "the Hub. Columns text and label for classifiers; prompt and completion, messages, or source and target "
            "for models that generate; each also with the prefix augmented_.",
            show_default=False,
        ),
    ],
    split: Split = None,
    name: Name = None,
    revision: Revision = None,
    output: Annotated[str, typer.Option(help="Folder for evaluation.json and predictions.jsonl.")] = "pair_evaluation",
    match: Annotated[
        str | None,
        typer.Option(
            help="When a generated answer is right: exact (default), ignore-case, first-line or last-number as the "
            "reference. Classifiers always use label, the class with the largest logit.",
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
        typer.Option(min=1, help="Tokens after which answers end; default: the longest target and 8 more."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first rows, for a quick try.")] = None,
    clusters: Annotated[
        str | None,
        typer.Option(help="Column of units that belong together, for the intervals; default: dialogue_id, else rows."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 or mps; default: the first GPU, else the CPU.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write the pair report to the folder: where the two views disagree.")
    ] = False,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help="Column by which the report breaks losses down; may be repeated; sets --report."),
    ] = None,
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
    from dair_hf.io.commands import align
    from dair_hf.io.files import require_output_folder
    from dair_hf.io.records import require_pairs_file

    require_pairs_file(pairs)
    require_output_folder(output, [pairs], overwrite)

    # Slow imports, after the checks that do not need them.
    from dair_hf.commands.model_evaluation import EvaluationSettings, evaluate_model, table_of

    source = {"name": name, "split": split, "revision": revision}
    settings = EvaluationSettings(match, batch_size, max_tokens, max_new_tokens, limit, clusters, device, source)
    report_groups = groups or ([] if report else None)
    record = evaluate_model(model, pairs, Path(output), settings, report_groups, progress, overwrite, started)
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
    typer.echo(f"took {record['seconds']['total']:.1f} s; wrote {', '.join(record['files'])} to {output}")


def print_prompts(
    pairs: Annotated[Path, typer.Argument(help="Paired rows, as for `dair-hf evaluate`.", show_default=False)],
    split: Split = None,
    name: Name = None,
    revision: Revision = None,
) -> None:
    """Print the prompt of each view of all pairs, for another program to answer: JSON of row_id, view and prompt.

    View 0 is the original, view 1 its partner. `dair-hf evaluate ANSWERS PAIRS` reads the answers.
    """
    from dair_hf.io.records import require_pairs_file

    require_pairs_file(pairs)
    from dair_hf.data.texts.files import read_pairs, with_row_ids  # slow
    from dair_hf.evaluation.text_views import TextViews

    rows = read_pairs(pairs, name=name, split=split, revision=revision)
    typer.echo("\n".join(map(json.dumps, TextViews(with_row_ids(rows)).prompts)))
