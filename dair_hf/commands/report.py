"""`dair-hf report`: the report on the pairs of a file, with the losses of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dair_hf.errors import DataError
from dair_hf.io.commands import printable

OTHER_FOLDER = "name another folder with --output"
# Options of `report` that need the model again.
OPTIONS_OF_THE_MODEL = {
    "groups": "--group",
    "dair_lambda": "--lambda",
    "max_tokens": "--max-tokens",
    "batch_size": "--batch-size",
}


def report(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_JSON",
            help="Model id on the Hub or local folder; or the pair_report.json of an earlier report, to draw its page "
            "again.",
            show_default=False,
        ),
    ],
    pairs: Annotated[
        Path | None,
        typer.Argument(
            help="Paired rows: .jsonl, .csv or .parquet, or a folder of `datasets` (save_to_disk). Columns text and "
            "label, prompt and completion, messages, source and target, or tokenised columns, each also with the "
            "prefix augmented_; augmented_2_ for a second partner, and so on.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str, typer.Option(help="Folder for pair_report.html and pair_report.json.", show_default=False)
    ] = "pair_report",
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help="Column by which losses are broken down; may be given several times."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page; default: the name of the file.")] = None,
    worst: Annotated[int, typer.Option(min=1, help="Number of pairs that are shown.")] = 100,
    dair_lambda: Annotated[
        float | None,
        typer.Option("--lambda", min=0.0, help="Lambda of the training in pair units, for the gradient weights."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens after which texts are cut; default: 512, or the positions of the model if fewer."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs run at once.")] = 16,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier report in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show where the two views of pairs disagree, and list the pairs that never agree.

    Pairs whose label does not fit are among the first, such as those of a name that was replaced in the text but not in
    the label. Pairs that the model has memorized in training are found better by DAIRTrainer.pair_report, which also
    knows the losses of the steps of training.
    """
    from dair_hf.io.files import require_output_file
    from dair_hf.io.folders import sole_writer
    from dair_hf.io.pair_files import require_pairs_file

    is_drawn_again = source.endswith(".json")
    if not is_drawn_again and Path(source).is_file():
        raise DataError(f"{source}: is a file, not a model; the order is dair-hf report MODEL PAIRS")
    if is_drawn_again == (pairs is not None):
        needed = "only the page is drawn again, so leave out PAIRS" if is_drawn_again else "name a file of pairs, too"
        raise DataError(f"{source}: {needed}: dair-hf report MODEL PAIRS, or dair-hf report pair_report.json")
    if not output:
        raise DataError("--output '' names no folder; give one, such as pair_report")
    folder = Path(output)
    sources = {name: context.get_parameter_source(name) for name in context.params}
    options = {name for name, origin in sources.items() if origin is not None and origin.name == "COMMANDLINE"}
    if is_drawn_again and (unused := [OPTIONS_OF_THE_MODEL[name] for name in OPTIONS_OF_THE_MODEL if name in options]):
        raise DataError(
            f"{', '.join(unused)}: has no effect when a page is drawn again; leave it out, or make the report anew: "
            "dair-hf report MODEL PAIRS"
        )
    if pairs is not None:
        require_pairs_file(pairs)

    from dair_hf.pair_report.page import require_report_folder, require_report_libraries, write_report
    from dair_hf.pair_report.report import JSON_FILE, PAGE_FILE, PairReport, json_value, pair_name

    require_report_libraries()
    made = PairReport.read(source) if is_drawn_again else None
    require_report_folder(folder)  # files of another kind are not replaced by --overwrite either
    if is_drawn_again and not (folder / JSON_FILE).exists():
        require_output_file(folder / PAGE_FILE, [source], overwrite, remedy=OTHER_FOLDER)
    elif not is_drawn_again or not (folder / JSON_FILE).samefile(source):
        require_output_file(folder / JSON_FILE, [pairs or source], overwrite, remedy=OTHER_FOLDER)
    elif {"title", "worst"} & options and not overwrite:
        raise DataError(f"{source}: would be changed, too; name another --output, or give --overwrite")
    if made is not None:
        if "title" in options:
            made.title = title or ""
        if "worst" in options:
            made = made.shortened(worst)
        page = write_report(made, folder)
    else:
        from dair_hf.commands.model_pairs import report_on_model

        assert pairs is not None
        with sole_writer(folder):
            made = report_on_model(
                source, pairs, groups or [], title or pairs.stem, worst, dair_lambda, max_tokens, batch_size
            )
            page = write_report(made, folder)
    if as_json:
        worst_ids = made.pairs["row_id"][: len(made.worst)]
        result = {"page": str(page), "json": str(folder / JSON_FILE), "summary": made.summary, "worst": worst_ids}
        typer.echo(printable(json.dumps(json_value(result), ensure_ascii=False, allow_nan=False)))
        return
    summary = made.summary
    worst_pair = printable(pair_name(made.pairs, 0))
    typer.echo(f"{summary['pairs']} pairs of {summary['rows']} rows; the worst is {worst_pair}")
    typer.echo(f"open {page}")
