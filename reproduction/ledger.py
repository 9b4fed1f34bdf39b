"""Pages of results: each claim of the paper next to our runs, and tables of the experiments beyond it."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError
from dair_hf.io.commands import exit_status
from dair_hf.io.files import require_output_file, write_text
from reproduction import auto_lambda, few_pairs, tracker_errors
from reproduction.claims import Claim, Section, read_claims
from reproduction.plots import draw_plots
from reproduction.records import Record, markdown_table, read_records
from reproduction.verdicts import COLUMNS, FAILED, RULES, Verdict, judge

NOTICE = "Generated from `claims.yaml` and the JSON of each run by `make results`; do not edit."

# Folder -> table of its runs; any other folder has the table that its recipe wrote.
TABLES: Mapping[str, Callable[[Path], str]] = {
    few_pairs.REVIEWS: functools.partial(few_pairs.text_table, task=few_pairs.REVIEWS),
    few_pairs.INFERENCE: functools.partial(few_pairs.text_table, task=few_pairs.INFERENCE),
    few_pairs.PRETRAINED: functools.partial(few_pairs.text_table, task=few_pairs.PRETRAINED),
    **{folder: functools.partial(few_pairs.planned_table, experiment=folder) for folder in few_pairs.PLANS},
    tracker_errors.FOLDER: tracker_errors.errors_table,
    few_pairs.DIALOGS: few_pairs.dialog_table,
    "auto_lambda": auto_lambda.table,
}

Judged = Sequence[tuple[Claim, Verdict]]


def ledger(sections: Sequence[Section], results: Path) -> dict[str, str]:
    """Return the pages in Markdown by their path below `results`: the index, and one for each section.

    The pages depend on claims and records only.

    Raises:
        DataError: A record lacks a value that a claim names; the message contains its file and the claim's id.
    """
    read = functools.cache(read_records)
    judged = [[(claim, judge(claim, results, read)) for claim in section.claims] for section in sections]
    paths = [f"pages/{re.sub(r'[^a-z0-9]+', '_', section.title.lower()).strip('_')}.md" for section in sections]
    rows = [
        [f"[{section.title}]({path})", *(count or "-" for count in (len(of_section), *_counts(of_section).values()))]
        for section, path, of_section in zip(sections, paths, judged, strict=True)
    ]
    together = [pair for of_section in judged for pair in of_section]
    total = ["All", len(together), *_counts(together).values()]
    records = [record for experiment in _experiments(sections) for record in read(results / experiment)]
    index = [
        "# The paper's claims and our runs",
        "",
        *markdown_table(["Experiment", "claims", *COLUMNS], [*rows, total]),
    ]
    index += ["", _totals(together), "", _provenance(records), "", "## How it is judged", "", RULES, "", NOTICE]
    pages = {"RESULTS.md": "\n".join(index) + "\n"}
    for section, path, of_section in zip(sections, paths, judged, strict=True):
        pages[path] = "\n".join(_page(section, of_section, results, read)) + "\n"
    return pages


def _counts(judged: Judged) -> dict[str, int]:
    """Return the number of claims for each column of the summary."""
    kinds = Counter(verdict.kind for _, verdict in judged)
    return {column: sum(kinds[kind] for kind in of_column) for column, of_column in COLUMNS.items()}


def _totals(judged: Judged) -> str:
    """Return the paragraph on what the counts do not say."""
    kinds = Counter(verdict.kind for _, verdict in judged)
    wide = sum(verdict.kind == "inside" and verdict.is_wide for _, verdict in judged)
    opposed = sum(verdict.kind == "undecided" and verdict.is_opposed for _, verdict in judged)
    baselines = sum(verdict.kind == "better" and not claim.method.startswith("DAIR") for claim, verdict in judged)
    return (
        f'"Hold" counts {kinds["inside"]} printed values that our runs do not contradict, {wide} of them with a bound '
        f"wider than a tenth of the value, and {kinds['holds']} relations. {kinds['better']} values are outside on the "
        f"better side. These are not reproduced either, and {baselines} of them belong to methods other than DAIR, "
        f"which weakens the paper's comparison. For {opposed} of the undecided claims, our means contradict the claim. "
        "Even if all printed values were reproduced exactly, up to one in twenty would lie outside by chance. Rows "
        "without claims are experiments beyond the paper."
    )


def _clean(record: Record) -> bool:
    """Return whether a run names a commit whose files nobody had changed."""
    revision = record.content.get("git_revision")
    return bool(revision) and "dirty" not in str(revision)


def _provenance(records: Sequence[Record]) -> str:
    """Return the sentence on the commits of the runs."""
    count = sum(not _clean(record) for record in records)
    if not count:
        return f"All {len(records)} runs behind these pages were made from commits that the pages name."
    return (
        f"{count} of the {len(records)} runs behind these pages were made from a tree with uncommitted changes, or "
        "outside a repository: the commit in their record is not exactly their code. The pages count them."
    )


def _page(section: Section, judged: Judged, results: Path, read: Callable[[Path], list[Record]]) -> list[str]:
    """Return the page of a section: what it says, its tables, the claims, plots, and the runs behind them."""
    lines = [f"# {section.title}", ""]
    for note in section.notes:
        lines += [note.strip(), ""]
    for folder in section.tables:
        table = _folder_table(folder, results).splitlines()
        if len(table) > 1:  # a note that an earlier table has is not repeated
            table = [line for line in table if line[:1] in ("", "|") or line not in lines]
        name = f"[{folder}](../{folder})" if (results / folder).is_dir() else folder
        lines += [f"Runs in {name}:", "", *table, ""]
    if judged:
        counts = ", ".join(f"{count} {column}" for column, count in _counts(judged).items() if count)
        lines += ["## Claims", "", f"{len(judged)} claims: {counts} ([rules](../RESULTS.md)).", ""]
        reasons = dict.fromkeys(reason for pair in judged if (reason := _reason(*pair)))
        numbers = {reason: f" ({number})" for number, reason in enumerate(reasons, start=1)}
        lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)] + [""] * bool(reasons)
        rows = []
        for claim, verdict in judged:
            name, paper = f"{claim.setup}: {claim.method}, {claim.quantity}", claim.paper.replace("+-", "±")
            words = _words(claim, verdict) + numbers.get(_reason(claim, verdict), "")
            rows.append([name, paper, verdict.ours, words, claim.deviations])
        lines += [*markdown_table(["Claim", "Paper", "Ours (mean ± std, n seeds)", "Holds", "Deviations"], rows), ""]
    for plot in section.plots:
        if (results / plot.file).exists():
            lines += [f"![{plot.caption}](../{plot.file})", ""]
    return [*lines, *_runs_table(section, results, read), NOTICE]


def _reason(claim: Claim, verdict: Verdict) -> str:
    """Return why a claim fails or was not run, as far as known."""
    reason = claim.why if verdict.kind in FAILED else claim.not_run
    return " ".join(reason.split())


def _words(claim: Claim, verdict: Verdict) -> str:
    if verdict.kind in FAILED:
        return f"**{verdict.holds}**"
    if verdict.kind == "undecided" and verdict.is_opposed:
        return f"{verdict.holds}; our means contradict the claim"
    return "not run" if claim.not_run else verdict.holds


def _folder_table(folder: str, results: Path) -> str:
    """Return the table of the runs in a folder; without one, the reason."""
    try:
        if folder in TABLES:
            return TABLES[folder](results)
        return (results / folder / "comparison.md").read_text(encoding="utf-8").partition("\n\n")[2].strip()
    except FileNotFoundError:
        return "Not run yet."
    except (DataError, OSError) as error:
        return f"No table: {error}"


def _runs_table(section: Section, results: Path, read: Callable[[Path], list[Record]]) -> list[str]:
    rows = []
    for experiment in _experiments([section]):
        records = read(results / experiment)
        contents = [record.content for record in records]
        if contents:
            methods = dict.fromkeys(str(content["method"]) for content in contents)
            seeds = sorted({int(content["seed"]) for content in contents})
            hardware = sorted({_hardware(content.get("hardware", {})) for content in contents})
            commits = ", ".join(sorted({str(content.get("git_revision")) for content in contents}))
            names = ", ".join(methods), ", ".join(map(str, seeds))
            rows.append([experiment, len(contents), *names, commits, "; ".join(hardware)])
    header = ["Folder", "runs", "methods", "seeds", "commits", "hardware"]
    return ["## Runs", "", *markdown_table(header, rows), ""] if rows else []


def _experiments(sections: Sequence[Section]) -> list[str]:
    """Return the folders that claims, plots and tables read, each once, without those inside another one."""
    folders: dict[str, None] = {}
    for section in sections:
        folders.update(dict.fromkeys(section.tables))
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


def write_ledger(results: Path) -> dict[str, str]:
    """Draw the plots, and write and return `RESULTS.md` and `pages/`, from `claims.yaml` and the records in `results`.

    Raises:
        DataError: The claims are invalid, or a record lacks a value that one of them names.
    """
    sections = read_claims(results / "claims.yaml")
    draw_plots(sections, results)
    pages, mark = ledger(sections, results), NOTICE.partition("`")[0].encode()
    for path in pages:
        require_output_file(results / path, overwrite=True, is_own=lambda file: mark in file.read_bytes())
    for path, text in pages.items():
        write_text(results / path, text)
    return pages


def main(argv: Sequence[str] | None = None) -> None:
    """Write RESULTS.md and pages/: `python -m reproduction.ledger --results results`."""
    parser = argparse.ArgumentParser(description="Write RESULTS.md and pages/ from claims.yaml and the records.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of claims.yaml and the records")
    options = parser.parse_args(argv)
    write_ledger(options.results)
    print(f"Written: {options.results / 'RESULTS.md'}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
