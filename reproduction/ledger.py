"""The ledger of claims: each result of the paper next to ours, and whether it holds."""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dair_hf.io.commands import exit_status
from dair_hf.io.files import write_generated
from reproduction.claims import Claim, Section, read_claims
from reproduction.plots import draw_plots
from reproduction.records import Record, read_records
from reproduction.verdicts import FAILED, KINDS, RULES, Verdict, judge

NOTICE = "Generated from `claims.yaml` and the JSON of each run by `make results`; do not edit."


def ledger(sections: Sequence[Section], results: Path) -> str:
    """Return the ledger in Markdown: a summary, a table for each section, and the runs behind them.

    The text depends on claims and records only.

    Raises:
        DataError: A record lacks a value that a claim names; the message contains its file and the claim's id.
    """
    read = functools.cache(read_records)
    judged = [[(claim, judge(claim, results, read)) for claim in section.claims] for section in sections]
    counts = [Counter(verdict.kind for _, verdict in rows) for rows in judged]
    kinds = [kind for kind in KINDS if any(count[kind] for count in counts)]
    summary = [
        [section.title, count.total(), *(count[kind] for kind in kinds)]
        for section, count in zip(sections, counts, strict=True)
    ]
    behind = [record for experiment in _experiments(sections) for record in read(results / experiment)]
    lines = [
        "# The ledger of claims",
        "",
        *_what_fails(sections, judged, behind),
        "",
        "## How it is judged",
        "",
        NOTICE,
        "",
        RULES,
        "",
    ]
    lines += _table(["Section", "claims", *kinds], summary)
    for section, verdicts in zip(sections, judged, strict=True):
        lines += ["", f"## {section.title}", ""]
        for note in section.notes:
            lines += [note.strip(), ""]
        rows = []
        for claim, verdict in verdicts:
            name, paper = f"{claim.setup}: {claim.method}, {claim.quantity}", claim.paper.replace("+-", "±")
            rows.append([name, paper, verdict.ours, verdict.holds, claim.deviations])
        if rows:
            lines += _table(["Claim", "Paper", "Ours (mean ± std, n seeds)", "Holds", "Deviations"], rows)
        for plot in section.plots:
            if (results / plot.file).exists():
                lines += ["", f"![{plot.caption}]({plot.file})"]
    lines += ["", "## The runs behind it", "", *_runs_table(sections, results, read)]
    return "\n".join(lines) + "\n"


def _clean(record: Record) -> bool:
    """Return whether a run names a commit whose files nobody had changed."""
    revision = record.content.get("git_revision")
    return bool(revision) and "dirty" not in str(revision)


def _provenance(records: Sequence[Record]) -> str:
    """Return the sentence on the commits of the runs."""
    count = sum(not _clean(record) for record in records)
    if not count:
        return f"All {len(records)} runs behind these figures were made from commits that the table at the end names."
    return (
        f"{count} of the {len(records)} runs behind these figures were made from a tree with changes that were not "
        "committed, or from no repository: the commit in their record is not exactly their code. The table at the end "
        "counts them."
    )


def _what_fails(
    sections: Sequence[Section], judged: Sequence[Sequence[tuple[Claim, Verdict]]], records: Sequence[Record]
) -> list[str]:
    """Return the section on the claims that fail, and on claims that nothing here decides."""
    rows = [
        (section.title.partition(". ")[2] or section.title, claim, verdict)
        for section, of_section in zip(sections, judged, strict=True)
        for claim, verdict in of_section
    ]
    counts = Counter(verdict.kind for _, _, verdict in rows)
    wide = sum(verdict.kind == "inside" and verdict.is_wide for _, _, verdict in rows)
    baselines = sum(verdict.kind == "better" and not claim.method.startswith("DAIR") for _, claim, verdict in rows)
    undefined = f"; {counts['undefined']} have no defined value" if counts["undefined"] else ""
    failed = sum(counts[kind] for kind in FAILED)
    lines = [
        "## What does not hold here, and why",
        "",
        f"{failed} of {len(rows)} claims fail here, and {counts['better']} lie outside on the better side, {baselines} "
        "of them for methods other than DAIR, which weakens the paper's comparison. "
        f"{counts['undecided']} are undecided, for want of seeds or because the paper prints no deviation; "
        f"{counts['not run']} were not run{undefined}. Our runs do not contradict {counts['inside']} printed values, "
        f"{wide} of them with a bound wider than a tenth of the value, and {counts['holds']} relations hold. If "
        "printed values were reproduced exactly, up to one in twenty would still lie outside by chance.",
        "",
        _provenance(records),
    ]

    def table(selected: Sequence[tuple[str, Claim, Verdict]]) -> list[str]:
        return _table(
            ["Claim", "Paper", "Ours", "Verdict"],
            [
                [
                    f"{title}, {claim.setup}: {claim.method}, {claim.quantity}",
                    claim.paper.replace("+-", "±"),
                    verdict.ours,
                    verdict.holds,
                ]
                for title, claim, verdict in selected
            ],
        )

    reasons: dict[str, list[tuple[str, Claim, Verdict]]] = {}
    for row in rows:
        if row[2].kind in FAILED:
            reasons.setdefault(row[1].why.strip(), []).append(row)
    # Claims without a known reason come last.
    for why in sorted(reasons, key=lambda why: not why):
        lines += ["", why or "No reason is known for these:", "", *table(reasons[why])]
    for heading, of_heading in (
        ("Outside on the better side, so not reproduced either:", [row for row in rows if row[2].kind == "better"]),
        (
            "Undecided, and our means do not have the claimed relation:",
            [row for row in rows if row[2].kind == "undecided" and row[2].is_opposed],
        ),
    ):
        if of_heading:
            lines += ["", heading, "", *table(of_heading)]
    not_run = Counter(
        (title, claim.not_run or verdict.holds) for title, claim, verdict in rows if verdict.kind == "not run"
    )
    if not_run:
        lines += ["", "Not run:", ""]
        for (title, reason), count in not_run.items():
            lines.append(f"- {title}, {count} {'claim' if count == 1 else 'claims'}: {reason}")
    return lines


def _runs_table(sections: Sequence[Section], results: Path, read: Callable[[Path], list[Record]]) -> list[str]:
    rows = []
    for experiment in _experiments(sections):
        records = read(results / experiment)
        contents = [record.content for record in records]
        if contents:
            methods = dict.fromkeys(str(content["method"]) for content in contents)
            seeds = sorted({int(content["seed"]) for content in contents})
            hardware = sorted({_hardware(content.get("hardware", {})) for content in contents})
            clean = sorted({str(record.content["git_revision"]) for record in records if _clean(record)})
            unclean = sum(not _clean(record) for record in records)
            commits = ", ".join([*clean, *([f"{unclean} runs not clean"] if unclean else [])])
            names = ", ".join(methods), ", ".join(map(str, seeds))
            rows.append([experiment, len(contents), *names, commits, "; ".join(hardware)])
    return _table(["Folder", "runs", "methods", "seeds", "commits", "hardware"], rows)


def _experiments(sections: Sequence[Section]) -> list[str]:
    """Return the folders that claims and plots read, each once, without those inside another one."""
    folders: dict[str, None] = {}
    for section in sections:
        for claim in section.claims:
            for source in (claim.source, claim.other):
                while source is not None:
                    folders[source.experiment] = None
                    source = source.minus
        for plot in section.plots:
            if plot.draw is None:
                folders[plot.file.rpartition("/")[0]] = None
            else:
                sources = (source for series in plot.draw["series"] for source in series["sources"])
                folders.update(dict.fromkeys(source["experiment"] for source in sources))
    return [folder for folder in folders if folder and not any(folder.startswith(f"{parent}/") for parent in folders)]


def _hardware(hardware: dict[str, Any]) -> str:
    if hardware.get("gpus"):
        return ", ".join(map(str, hardware["gpus"]))
    cores, threads = hardware.get("cores", "?"), hardware.get("torch_threads", "?")
    return f"{hardware.get('cpu', 'unknown')}, {cores} cores, {threads} threads"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *map(line, rows)]


def write_ledger(results: Path) -> str:
    """Draw the plots of the ledger, and write and return `RESULTS.md`, from `claims.yaml` and the records in `results`.

    Raises:
        DataError: The claims are invalid, or a record lacks a value that one of them names.
    """
    sections = read_claims(results / "claims.yaml")
    draw_plots(sections, results)
    text = ledger(sections, results)
    write_generated(results / "RESULTS.md", text, NOTICE.partition("`")[0])
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Write RESULTS.md: `python -m reproduction.ledger --results results`."""
    parser = argparse.ArgumentParser(description="Write RESULTS.md from claims.yaml and the records of the runs.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of claims.yaml and the records")
    options = parser.parse_args(argv)
    write_ledger(options.results)
    print(f"Written: {options.results / 'RESULTS.md'}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
