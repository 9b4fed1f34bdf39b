"""The ledger of claims: each result of the paper beside ours, and whether it holds."""

from __future__ import annotations

from dair_hf.io.commands import exit_status

import argparse
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from dair_hf.errors import DataError
from dair_hf.experiments.samples import Sample
from dair_hf.io.files import write_generated
from reproduction.claims import Claim, PrintedValue, Section, Source, read_claims
from reproduction.plots import draw_plots
from reproduction.records import Record, metric_of, read_records, select

RULES = """\
Generated from `claims.yaml` and the JSON of each run by `make results`; do not edit.

**Printed values.** Let d = ours - paper, let s and n be our standard deviation and number of seeds, and s' and n' those
of the paper. A row is *inside the interval* if |d| <= t sqrt(s^2 / n + s'^2 / n'), the 95 % interval of Welch's t-test.
A value printed without s' counts as exact, and every value is known to half a unit of its last digit. With one seed, s'
is used for s: |d| <= t s' sqrt(1 + 1 / n'), the 95 % interval of one more run of the paper. If s' is not printed
either, the row is *undecided* unless our value has the printed digits. Rows with one seed, and rows with a tolerance of
their own, say so. Outside the interval a row is *better* or *worse*, or *differs* if neither side is better. Brackets
show d and its bound.

**Relations.** A sentence in place of a value is a relation between two of our own values. Their difference d has the
95 % t interval from d - b to d + b, with the bound b as above. "above" means d > 0, "below" d < 0, "about" |d| up to
the row's tolerance, and "not above" d up to it. The relation *holds* if it does on the whole interval, *does not hold*
if it does nowhere on it, and is *undecided* otherwise. With one seed on either side there is no interval, and it is
*undecided*.

Standard deviations are over seeds, with n - 1."""

# Kinds of verdicts, in the order of the summary.
KINDS = ("inside", "better", "worse", "differs", "holds", "undecided", "does not hold", "undefined", "not run")

# Kinds listed at the top, under "What does not hold here, and why".
FAILED = ("worse", "differs", "does not hold")
UNKNOWN = "not known"

# Tolerance for float64 rounding: 33.2 - 32.7 is more than 0.5.
SLACK = 1e-9


class Verdict(NamedTuple):
    """Verdict on a claim.

    Attributes:
        kind: One of `KINDS`.
        ours: Our value, as shown in the ledger.
        holds: Whether the claim holds, in words.
    """

    kind: str
    ours: str
    holds: str


def welch_half_width(*samples: tuple[float, int]) -> float:
    """Return the half-width of the 95 % t interval of a mean, or of a difference of independent means (Welch 1947).

        t_{nu} sqrt(sum_i s_i^2 / n_i),    nu = (sum_i s_i^2 / n_i)^2 / sum_i (s_i^2 / n_i)^2 / (n_i - 1)

    Args:
        *samples: For each mean the standard deviation s (with n - 1) and the number n of values, at least 2.

    Returns:
        The half-width, in the unit of s.

    Raises:
        DataError: A mean has fewer than two values.

    Example:
        >>> round(welch_half_width((1.0, 5)), 3), round(welch_half_width((1.0, 5), (1.0, 5)), 3)
        (1.242, 1.458)
    """
    if any(size < 2 for _, size in samples):
        raise DataError(f"an interval needs at least two values per mean, found {[size for _, size in samples]}")
    variances = [std**2 / size for std, size in samples]
    total = sum(variances)
    if total == 0:
        return 0.0
    # Shares of the total, since squares of tiny variances would underflow.
    shares = [variance / total for variance in variances]
    nu = 1 / sum(share**2 / (size - 1) for share, (_, size) in zip(shares, samples, strict=True))
    return float(stats.t.ppf(0.975, nu)) * math.sqrt(total)


def judge_value(
    ours: Sample, paper: PrintedValue, paper_runs: int | None, better: str, tolerance: float
) -> tuple[str, str]:
    """Compare our value with the printed one, by the rule stated in `RULES`.

    Args:
        ours: Our runs, in printed units.
        paper: The printed value.
        paper_runs: Number of runs behind its standard deviation.
        better: "higher", "lower" or "neither".
        tolerance: Differences up to this value are ignored.

    Returns:
        The kind of the verdict, and the verdict in words.

    Example:
        >>> judge_value(Sample(72.9, 0.2, 5), PrintedValue(72.58, 0.11, 2), 10, "higher", 0.0)
        ('better', 'better (+0.320, bound 0.243)')
    """
    difference = ours.mean - paper.value
    one_seed = ours.seeds == 1
    theirs = [] if paper.std is None else [(paper.std, paper_runs or 0)]
    if not one_seed:
        bound = welch_half_width((ours.std, ours.seeds), *theirs)
    elif theirs:
        bound = welch_half_width(*theirs) * math.sqrt(1 + theirs[0][1])  # t s' sqrt(1 + 1 / n')
    else:
        bound = 0.0
    has_interval = not one_seed or paper.std is not None
    rounding = 0.5 * 10.0**-paper.decimals
    inside = "inside the interval" if has_interval else "as printed"
    if tolerance > max(bound, rounding):
        bound, inside = tolerance, "inside the tolerance"
    bound = max(bound, rounding)
    if abs(difference) <= bound + SLACK:
        kind, words = "inside", inside
    elif not has_interval:
        kind = words = "undecided"
    elif better == "neither":
        kind = words = "differs"
    else:
        kind = words = "better" if (difference > 0) == (better == "higher") else "worse"
    digits = paper.decimals + 1
    return kind, f"{'one seed: ' if one_seed else ''}{words} ({difference:+.{digits}f}, bound {bound:.{digits}f})"


def judge_relation(ours: Sample, other: Sample, relation: str, tolerance: float, digits: int) -> tuple[str, str]:
    """Decide whether two of our values have the relation that the paper claims.

    Args:
        ours: First value.
        other: Second value.
        relation: "above", "below", "near" or "not_above".
        tolerance: For "near" and "not_above": differences up to this value are ignored.
        digits: Digits after the decimal point.

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


def judge(claim: Claim, results: Path, read: Callable[[Path], list[Record]] = read_records) -> Verdict:
    """Return the verdict on a claim, from the records below `results`."""
    if claim.source is None:
        return Verdict("not run", "-", f"not run: {claim.not_run}")
    label = f"claim {claim.id}"

    def runs_of(source: Source) -> list[tuple[Record, ...]]:
        """Return the records of a source, each with the record to subtract, if any."""
        runs = select(read(results / source.experiment), source.where, label)
        if source.minus is None:
            return [(run,) for run in runs]
        subtracted = {run.content["seed"]: run for (run,) in runs_of(source.minus)}
        return [(run, subtracted[seed]) for run in runs if (seed := run.content["seed"]) in subtracted]

    samples: list[list[Sample]] = []
    for source in (claim.source, claim.other or claim.source):
        runs = runs_of(source)
        if not runs:
            wanted = ", ".join(f"{key} = {value}" for key, value in source.where.items())
            return Verdict("not run", "-", f"not run yet: {source.experiment}{f' ({wanted})' if wanted else ''}")
        samples.append([])
        for key in source.metrics:
            values = []
            for records in runs:
                measured = [metric_of(record, key, label) for record in records]
                defined = [value for value in measured if value is not None]
                if len(defined) < len(measured):
                    return Verdict("undefined", "-", f"{key} is undefined in {records[0].content['name']}")
                values.append(claim.scale * (defined[0] - sum(defined[1:])))
            samples[-1].append(Sample.of(values))
    ours, others = samples
    if claim.relation is None:
        return _judge_printed(claim, ours[0])
    others = others * len(ours) if len(others) == 1 else others
    return _judge_relations(claim, claim.relation, list(zip(claim.source.metrics, ours, others, strict=True)))


def _judge_printed(claim: Claim, ours: Sample) -> Verdict:
    printed = claim.printed
    assert printed is not None
    kind, words = judge_value(ours, printed, claim.paper_runs, claim.better, claim.tolerance)
    return Verdict(kind, _show(ours, printed.decimals), words)


def _judge_relations(claim: Claim, relation: str, pairs: Sequence[tuple[str, Sample, Sample]]) -> Verdict:
    """Judge a relation that must hold for each metric; the verdict shows the metric with the least support."""
    order = ("does not hold", "undecided", "holds")
    sign = {"above": 1, "below": -1, "near": 0, "not_above": -1}[relation]

    def support(pair: tuple[str, Sample, Sample]) -> tuple[int, float]:
        _, ours, other = pair
        gap = ours.mean - other.mean
        kind, _ = judge_relation(ours, other, relation, claim.tolerance, claim.digits)
        return order.index(kind), sign * gap if sign else -abs(gap)

    name, ours, other = min(pairs, key=support)
    kind, words = judge_relation(ours, other, relation, claim.tolerance, claim.digits)
    shown = f"{_show(ours, claim.digits)} against {_show(other, claim.digits)}"
    return Verdict(kind, f"{name}: {shown}" if len(pairs) > 1 else shown, words)


def _show(sample: Sample, digits: int) -> str:
    mean = round(sample.mean, digits) + 0.0  # avoids -0.00
    if sample.seeds == 1:
        return f"{mean:.{digits}f}, n = 1"
    return f"{mean:.{digits}f} ± {sample.std:.{digits}f}, n = {sample.seeds}"


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
    lines = ["# The ledger of claims", "", *_what_fails(judged, behind), "", "## How it is judged", "", RULES, ""]
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


def _baselines(rows: Sequence[tuple[Claim, Verdict]]) -> int:
    return sum(verdict.kind == "better" and not claim.method.startswith("DAIR") for claim, verdict in rows)


def _clean(record: Record) -> bool:
    """Return whether a run names a commit whose files nobody had changed."""
    revision = record.content.get("git_revision")
    return bool(revision) and "dirty" not in str(revision)


def _unclean(records: Sequence[Record]) -> list[str]:
    """Return the sentence on runs whose code no commit holds, if there are any."""
    count = sum(not _clean(record) for record in records)
    if not count:
        return []
    return [
        f"{count} of the {len(records)} runs behind these figures were made from a tree with changes that were not "
        "committed, or from no repository: the commit in their record is not exactly their code. The table at the end "
        "counts them."
    ]


def _what_fails(judged: Sequence[Sequence[tuple[Claim, Verdict]]], records: Sequence[Record]) -> list[str]:
    """Return the section on the claims that fail, and on those that nothing here decides."""
    rows = [(claim, verdict) for section in judged for claim, verdict in section]
    failed = [(claim, verdict) for claim, verdict in rows if verdict.kind in FAILED]
    counts = Counter(verdict.kind for _, verdict in rows)
    undefined = f"; {counts['undefined']} have no defined value" if counts["undefined"] else ""
    lines = [
        "## What does not hold here, and why",
        "",
        f"Of {len(rows)} claims {len(failed)} fail here; {counts['undecided']} are undecided, for want of seeds or "
        f"because the paper prints no deviation; {counts['not run']} were not run{undefined}. "
        f"{counts['inside'] + counts['holds']} hold: they lie inside the interval, or their relation does. "
        f"{counts['better']} lie outside on the better side; {_baselines(rows)} of these are of other methods than "
        "DAIR, and weaken the paper's comparison.",
        "",
        *_unclean(records),
    ]
    reasons: dict[str, list[list[str]]] = {}
    for claim, verdict in failed:
        row = [f"{claim.setup}: {claim.method}, {claim.quantity}", claim.paper.replace("+-", "±"), verdict.ours]
        reasons.setdefault(claim.why or UNKNOWN, []).append(row)
    for why, of_reason in reasons.items():
        lines += ["", f"**{why}**" if why == UNKNOWN else why.strip(), ""]
        lines += _table(["Claim", "Paper", "Ours"], of_reason)
    if not_run := dict.fromkeys(claim.not_run or verdict.holds for claim, verdict in rows if verdict.kind == "not run"):
        lines += ["", "Not run:", "", *(f"- {reason}" for reason in not_run)]
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
    """Return the folders that claims read, each once."""
    return list(
        dict.fromkeys(claim.source.experiment for section in sections for claim in section.claims if claim.source)
    )


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
    write_generated(results / "RESULTS.md", text, RULES.partition("`")[0])
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
