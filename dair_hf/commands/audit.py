"""`dair-hf audit`: what is wrong with a file of pairs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dair_hf.errors import DataError
from dair_hf.io.commands import FINDINGS, printable

# Options of `datasets.load_dataset`.
Split = Annotated[str | None, typer.Option(help="Split of a data set on the Hub, or in a folder.", show_default=False)]
Name = Annotated[str | None, typer.Option("--config", "--name", help="Its configuration.", show_default=False)]
Revision = Annotated[str | None, typer.Option(help="Its branch, tag or commit on the Hub.", show_default=False)]


def audit_file(
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Paired rows: .jsonl, .json, .csv or .parquet, a folder of `datasets`, or user/name of a data set on "
            "the Hub.",
            show_default=False,
        ),
    ],
    against: Annotated[
        Path | None,
        typer.Option(help="Other rows, such as the training file: report what is in both.", show_default=False),
    ] = None,
    against_split: Annotated[
        str | None, typer.Option(help="Split of these rows; without --against, of PAIRS.", show_default=False)
    ] = None,
    split: Split = None,
    name: Name = None,
    revision: Revision = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Column of the input; may be given several times. Default: columns with partners except labels, "
            "and the other columns of the same form of text, such as text_pair for text.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="Column of the label; may be given several times. Default: label, labels, target and completion.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Name of a check to leave out, such as no_partner; may be given several times."),
    ] = None,
    strict: Annotated[bool, typer.Option(help="End with status 3 if there are findings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Report what is wrong with a file of pairs: one line for each finding, with the first rows and what to do.

    The file may be faulty: lines that are not JSON are reported, too. Nothing is changed.
    """
    from dair_hf.commands.audit_findings import audit_rows, label_changes
    from dair_hf.commands.audit_rows import TOOLS, read_audited, refusal_of

    source: dict[str, Any] = {"name": name, "split": split, "revision": revision}
    data = read_audited(pairs, inputs, labels, **source)
    against = against or (pairs if against_split else None)
    of_other = {**(source if against == pairs else {}), "split": against_split}
    other = None if against is None else read_audited(against, inputs, labels, paired=False, **of_other)
    if other is not None and (missing := [name for name in data.inputs if name not in (*other.columns, TOOLS)]):
        raise DataError(f"{against}: expected the column {missing[0]!r} of {pairs}, got {list(other.columns)}")
    refusal = refusal_of(data) if inputs is None and labels is None else None
    findings = [finding for finding in audit_rows(data, other, refusal) if finding.name not in (allow or ())]
    partners = sum(1 for _ in data.pairs())
    counts = {"rows": len(data.rows), "partners": partners, **label_changes(data)}
    if as_json:
        result: dict[str, Any] = {
            "file": str(pairs),
            **{option: value for option, value in source.items() if value is not None},
            "against": None if against is None else str(against),
            "inputs": list(data.inputs),
            "labels": list(data.labels),
            "counts": counts,
            "findings": [asdict(finding) for finding in findings],
        }
        typer.echo(printable(json.dumps(result, ensure_ascii=False)))
    else:
        compared = f"input {', '.join(data.inputs) or 'none'}; label {', '.join(data.labels) or 'none'}"
        changed = ", ".join(f"{name.replace('_', ' ')} in {count}" for name, count in counts.items() if "label" in name)
        sizes = ", ".join(filter(None, [f"{len(data.rows)} rows, {partners} partners", changed]))
        number = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        typer.echo(f"{pairs}: {sizes} ({compared}): {number if findings else 'nothing is wrong'}")
        for finding in findings:
            typer.echo(printable(finding.line()))
    return FINDINGS if strict and findings else 0
