"""The ledger of claims: each figure of a paper beside what our runs found, and whether it holds."""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dair_hf.evaluation.statistics import welch_half_width
from dair_hf.io.commands import exit_status
from dair_hf.io.files import write_generated
from reproduction.claims import Claim, Figure, Record, Section, Source, metric_of, read_claims, read_records, select
from reproduction.plots import draw_plots

RULES = """\
Generated from `claims.yaml` and the JSON of each run by `make results`; do not edit.

How a figure is judged, with d = ours - paper, s and n our standard deviation and number of seeds, s' and n' those of
the paper: *inside the interval* where |d| <= t sqrt(s^2 / n + s'^2 / n'), the 95 % interval of Welch's t-test. A figure
printed without s' counts as exact, and any figure as known to half a unit of its last digit. With one seed s' stands in
for s: |d| <= t s' sqrt(1 + 1 / n'), the 95 % interval of one more run of the paper's; where s' is not printed either,
the row is *undecided* unless it gives the printed digits. One seed is always said. A row with a tolerance of its own
says so. Outside, a row says *better* or *worse*, or *differs* where neither side is better. In brackets: d and its
bound.

A sentence instead of a figure is a relation between two of our own values. Their difference d has the 95 % t interval
d - b to d + b, with b as above; "above" is any d > 0, "below" any d < 0, "about" any |d| up to the row's tolerance,
"not above" any d up to it. The relation *holds* where the whole interval says so, *does not hold* where none of it
does, and is *undecided* in between, as it is with one seed on either side: one run has no interval. Standard deviations
are over seeds, with n - 1."""

# What the summary counts, in its order.
KINDS = ("inside", "better", "worse", "differs", "holds", "undecided", "does not hold", "undefined", "not run")

# Decimal fractions are not exact in float64: 33.2 - 32.7 is more than 0.5.
SLACK = 1e-9


class Sample(NamedTuple):
    """Values of one quantity over seeds.

    Attributes:
        mean: Their mean.
        std: Their standard deviation with n - 1; 0 for one value, which has none.
        seeds: How many.
    """

    mean: float
    std: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """The sample of some values, at least one.

        Example:
            >>> Sample.of([1.0, 3.0])
            Sample(mean=2.0, std=1.4142135623730951, seeds=2)
        """
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


class Verdict(NamedTuple):
    """What a row of the ledger says.

    Attributes:
        kind: One of `KINDS`.
        ours: Our value.
        holds: Whether the claim holds, in words.
    """

    kind: str
    ours: str
    holds: str


def judge_figure(ours: Sample, paper: Figure, paper_runs: int | None, better: str, tolerance: float) -> tuple[str, str]:
    """Whether our value is the printed one, by the rule that `RULES` writes out.

    Args:
        ours: Our runs, in printed units.
        paper: The printed figure.
        paper_runs: Runs behind its standard deviation.
        better: "higher", "lower" or "neither".
        tolerance: A difference up to this one counts as none.

    Returns:
        The kind of the verdict, and the verdict in words.

    Example:
        >>> judge_figure(Sample(72.9, 0.2, 5), Figure(72.58, 0.11, 2), 10, "higher", 0.0)
        ('better', 'better (+0.320, bound 0.243)')
    """
    difference = ours.mean - paper.value
    one = ours.seeds == 1
    theirs = [] if paper.std is None else [(paper.std, paper_runs or 0)]
    if not one:
        bound = welch_half_width((ours.std, ours.seeds), *theirs)
    elif theirs:
        bound = welch_half_width(*theirs) * math.sqrt(1 + theirs[0][1])  # of one more run: t s' sqrt(1 + 1 / n')
    else:
        bound = 0.0
    interval = not one or paper.std is not None
    least = 0.5 * 10.0**-paper.decimals
    inside = "inside the interval" if interval else "as printed"
    if tolerance > max(bound, least):
        bound, inside = tolerance, "inside the tolerance"
    bound = max(bound, least)
    if abs(difference) <= bound + SLACK:
        kind, words = "inside", inside
    elif not interval:
        kind = words = "undecided"
    elif better == "neither":
        kind = words = "differs"
    else:
        kind = words = "better" if (difference > 0) == (better == "higher") else "worse"
    digits = paper.decimals + 1
    return kind, f"{'one seed: ' if one else ''}{words} ({difference:+.{digits}f}, bound {bound:.{digits}f})"


def judge_relation(ours: Sample, other: Sample, relation: str, tolerance: float, digits: int) -> tuple[str, str]:
    """Whether one of our values stands to another as the paper says.

    Args:
        ours: The one.
        other: The other.
        relation: "above", "below", "near" or "not_above".
        tolerance: For "near" and "not_above": a difference up to this one counts as none.
        digits: Digits after the point.

    Returns:
        The kind of the verdict, and the verdict in words.

    Example:
        >>> judge_relation(Sample(0.9, 0.02, 3), Sample(0.8, 0.03, 3), "above", 0.0, 2)
        ('holds', 'holds (+0.10, bound 0.06)')
    """
    difference = ours.mean - other.mean
    if min(ours.seeds, other.seeds) == 1:
        return "undecided", f"one seed: undecided ({difference:+.{digits}f})"
    bound = welch_half_width((ours.std, ours.seeds), (other.std, other.seeds))
    low, high = difference - bound, difference + bound
    margin = tolerance + SLACK
    holds, refuted = {
        "above": (low > SLACK, high <= SLACK),
        "below": (high < -SLACK, low >= -SLACK),
        "near": (-margin <= low and high <= margin, low > margin or high < -margin),
        "not_above": (high <= margin, low > margin),
    }[relation]
    kind = "holds" if holds else "does not hold" if refuted else "undecided"
    return kind, f"{kind} ({difference:+.{digits}f}, bound {bound:.{digits}f})"


def verdict(claim: Claim, results: Path, records: Callable[[Path], list[Record]] = read_records) -> Verdict:
    """A claim against the records.

    Args:
        claim: The claim.
        results: Folder with one folder of records for each experiment.
        records: Reads those of a folder.

    Returns:
        The verdict.

    Raises:
        DataError: A record lacks what the claim names; the message holds its file and the claim's id.
    """
    if claim.source is None:
        return Verdict("not run", "-", f"not run: {claim.not_run}")

    def chosen(source: Source) -> list[tuple[Record, ...]]:
        """The records of a source, each with the one of its seed that is subtracted, if any."""
        runs = select(records(results / source.experiment), source.where, claim.id)
        if source.minus is None:
            return [(run,) for run in runs]
        subtracted = {run.content["seed"]: run for (run,) in chosen(source.minus)}
        return [(run, subtracted[seed]) for run in runs if (seed := run.content["seed"]) in subtracted]

    second = claim.other or claim.source
    samples: list[list[Sample]] = []
    for source in (claim.source, second):
        runs = chosen(source)
        if not runs:
            wanted = ", ".join(f"{key} = {value}" for key, value in source.where.items())
            return Verdict("not run", "-", f"not run yet: {source.experiment}{f' ({wanted})' if wanted else ''}")
        samples.append([])
        for key in source.metrics:
            values = []
            for run, *subtracted in runs:
                measured = [metric_of(record, key, claim.id) for record in (run, *subtracted)]
                known = [value for value in measured if value is not None]
                if len(known) < len(measured):
                    return Verdict("undefined", "-", f"{key} is undefined in {run.content['name']}")
                values.append(claim.scale * (known[0] - sum(known[1:])))
            samples[-1].append(Sample.of(values))
    mine, theirs = samples
    theirs = theirs * len(mine) if len(theirs) == 1 else theirs
    found = list(zip(claim.source.metrics, mine, theirs, strict=True))
    return _verdict_on(claim, found)


def _verdict_on(claim: Claim, found: Sequence[tuple[str, Sample, Sample]]) -> Verdict:
    figure = claim.figure
    if figure is not None or claim.relation is None:
        ours = found[0][1]
        kind, words = judge_figure(ours, figure or Figure(0, None, 0), claim.paper_runs, claim.better, claim.tolerance)
        return Verdict(kind, _show(ours, claim.decimals), words)
    # Several metrics: the relation holds where it holds for each. The row shows the one that speaks most against it.
    order = ("does not hold", "undecided", "holds")
    sign = {"above": 1, "below": -1, "near": 0, "not_above": -1}[claim.relation]

    def support(entry: tuple[str, Sample, Sample]) -> tuple[int, float]:
        gap = entry[1].mean - entry[2].mean
        kind, _ = judge_relation(entry[1], entry[2], claim.relation or "", claim.tolerance, claim.digits)
        return order.index(kind), sign * gap if sign else -abs(gap)

    name, ours, other = min(found, key=support)
    kind, words = judge_relation(ours, other, claim.relation, claim.tolerance, claim.digits)
    shown = f"{_show(ours, claim.digits)} against {_show(other, claim.digits)}"
    return Verdict(kind, f"{name}: {shown}" if len(found) > 1 else shown, words)


def _show(sample: Sample, digits: int) -> str:
    sample = sample._replace(mean=round(sample.mean, digits) + 0.0)  # no -0.00
    if sample.seeds == 1:
        return f"{sample.mean:.{digits}f}, n = 1"
    return f"{sample.mean:.{digits}f} ± {sample.std:.{digits}f}, n = {sample.seeds}"


def ledger(sections: Sequence[Section], results: Path) -> str:
    """The ledger in Markdown: a summary, a table for each section, and the runs behind it.

    The same claims and records give the same text, byte for byte.

    Args:
        sections: From `read_claims`.
        results: Folder with one folder of records for each experiment.

    Returns:
        Markdown.

    Raises:
        DataError: A record lacks what a claim names.
    """
    records = functools.cache(read_records)
    judged = [[(claim, verdict(claim, results, records)) for claim in section.claims] for section in sections]
    counts = [Counter(found.kind for _, found in rows) for rows in judged]
    kinds = [kind for kind in KINDS if any(count[kind] for count in counts)]
    lines = ["# The ledger of claims", "", RULES, "", _row(["Section", "claims", *kinds]), _rule(2 + len(kinds))]
    for section, count in zip(sections, counts, strict=True):
        lines.append(_row([section.title, str(count.total()), *(str(count[kind]) for kind in kinds)]))
    for section, rows in zip(sections, judged, strict=True):
        lines += ["", f"## {section.title}", ""]
        for note in section.notes:
            lines += [note.strip(), ""]
        lines += [_row(["Claim", "Paper", "Ours (mean ± std, n seeds)", "Holds", "Deviations"]), _rule(5)]
        for claim, found in rows:
            name = f"{claim.setup}: {claim.method}, {claim.quantity}"
            lines.append(_row([name, claim.paper.replace("+-", "±"), found.ours, found.holds, claim.deviations]))
        for plot in section.plots:
            if (results / plot.file).exists():
                lines += ["", f"![{plot.caption}]({plot.file})"]
    lines += ["", "## The runs behind it", "", *_runs_table(sections, results, records)]
    return "\n".join(lines) + "\n"


def _runs_table(sections: Sequence[Section], results: Path, records: Callable[[Path], list[Record]]) -> list[str]:
    named = [claim.source.experiment for section in sections for claim in section.claims if claim.source is not None]
    lines = [_row(["Folder", "runs", "methods", "seeds", "hardware"]), _rule(5)]
    for experiment in dict.fromkeys(named):
        contents = [record.content for record in records(results / experiment)]
        if contents:
            methods = dict.fromkeys(str(content["method"]) for content in contents)
            seeds = sorted({int(content["seed"]) for content in contents})
            hardware = sorted({_hardware(content.get("hardware", {})) for content in contents})
            cells = [
                experiment,
                str(len(contents)),
                ", ".join(methods),
                ", ".join(map(str, seeds)),
                "; ".join(hardware),
            ]
            lines.append(_row(cells))
    return lines


def _hardware(found: dict[str, object]) -> str:
    if found.get("gpus"):
        return ", ".join(map(str, found["gpus"]))  # type: ignore[call-overload]
    return f"{found.get('cpu', 'unknown')}, {found.get('cores', '?')} cores, {found.get('torch_threads', '?')} threads"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def write_ledger(results: Path) -> str:
    """Read `claims.yaml` and the records in `results`; draw the plots and write `RESULTS.md` beside them.

    Args:
        results: The folder.

    Returns:
        The text that was written.

    Raises:
        DataError: The claims are faulty, or a record lacks what one names.
    """
    sections = read_claims(results / "claims.yaml")
    draw_plots(sections, results)
    text = ledger(sections, results)
    write_generated(results / "RESULTS.md", text, RULES.partition("`")[0])
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Regenerate RESULTS.md: `python -m reproduction.ledger --results results`."""
    parser = argparse.ArgumentParser(description="Write RESULTS.md from claims.yaml and the records of the runs.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of claims.yaml and the records")
    options = parser.parse_args(argv)
    write_ledger(options.results)
    print(f"Written: {options.results / 'RESULTS.md'}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
