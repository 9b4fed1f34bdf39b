"""Verdicts on the claims of the paper: a value inside an interval or outside, a relation that holds or does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from dair_hf.experiments.plots import Sample
from reproduction.claims import Claim, PrintedValue, Source
from reproduction.records import Record, metric_of, read_records, select

# Printed in the ledger.
RULES = """\
**Printed values.** Let d be our mean minus the printed value, and h half a unit of its last digit. A bound on |d| comes
from a 95 % t interval, with our standard deviation s over n seeds, and the paper's s' over n' runs:

- several seeds: h + t sqrt(s^2 / n + (s' + h)^2 / n'), Welch's interval; without s' our mean's interval
- one seed: *undecided*, unless our value has the printed digits

Up to the bound a value is *inside the interval*. Then our runs do not contradict it, which does not mean that both are
equal. Beyond it the value is *better* or *worse*, or *differs* if neither side is better. Some rows have a tolerance:
they are *inside the tolerance* if the whole interval of d is, outside if no part of it is, and otherwise *undecided*.
Without an interval the tolerance is not used. Brackets show d and its bound.

**Relations.** A sentence in the column "Paper" is a relation between two of our own values. If they have at least two
seeds in common, d is their mean difference over these seeds, with the paired 95 % t interval: runs of one seed start
from the same weights and see the same batches. Otherwise d is the difference of both means, with Welch's interval.
"Above" means d > 0, "below" d < 0, "about" |d| up to the tolerance, and "not above" d up to it. The relation *holds* if
it does on the whole interval, *does not hold* if it does nowhere on it, and is *undecided* otherwise. With one seed on
either side there is no interval, and it is *undecided*.

Standard deviations are over seeds, with n - 1."""

# Kinds of verdicts on claims that do not hold here.
FAILED = ("worse", "differs", "does not hold")

# Column of the summary -> kinds of verdicts that it counts.
COLUMNS = {
    "hold": ("inside", "holds"),
    "do not hold": FAILED,
    "better": ("better",),
    "undecided": ("undecided", "undefined"),
    "not run": ("not run",),
}

# Tolerance for float64 rounding: 33.2 - 32.7 is more than 0.5.
SLACK = 1e-9


class Verdict(NamedTuple):
    """Verdict on a claim.

    Attributes:
        kind: One of the kinds in `COLUMNS`.
        ours: Our value, as shown in the ledger.
        holds: Whether the claim holds, in words.
        is_wide: Whether the interval of a printed value is wider than a tenth of it on each side.
        is_opposed: Whether our means lack the relation that the paper claims, decided or not.
    """

    kind: str
    ours: str
    holds: str
    is_wide: bool = False
    is_opposed: bool = False


def welch_half_width(*samples: tuple[float, int]) -> float:
    """Return the half-width of the 95 % t interval of a mean, or of a difference of independent means (Welch 1947).

        t_{nu} sqrt(sum_i s_i^2 / n_i),    nu = (sum_i s_i^2 / n_i)^2 / sum_i (s_i^2 / n_i)^2 / (n_i - 1)

    Args:
        *samples: For each mean the standard deviation s (with n - 1) and the number n of values, at least 2.

    Returns:
        The half-width, in the unit of s.

    Example:
        >>> round(welch_half_width((1.0, 5)), 3), round(welch_half_width((1.0, 5), (1.0, 5)), 3)
        (1.242, 1.458)
    """
    variances = [std**2 / size for std, size in samples]
    total = sum(variances)
    if total == 0:
        return 0.0
    # Shares of the total, since squares of tiny variances would underflow.
    shares = [variance / total for variance in variances]
    nu = 1 / sum(share**2 / (size - 1) for share, (_, size) in zip(shares, samples, strict=True))
    return float(stats.t.ppf(0.975, nu)) * math.sqrt(total)


def bound_of(ours: Sample, paper: PrintedValue, paper_runs: int | None) -> float:
    """Return the bound on |ours - paper| that `RULES` states, in printed units.

    Args:
        ours: Our runs, in printed units.
        paper: The printed value.
        paper_runs: Number of runs behind its standard deviation.

    Example:
        >>> round(bound_of(Sample(72.9, 0.2, 5), PrintedValue(72.58, 0.11, 2), 10), 3)
        0.249
    """
    rounding = 0.5 * 10.0**-paper.decimals
    if ours.seeds == 1:
        return rounding
    theirs = [] if paper.std is None else [(paper.std + rounding, paper_runs or 0)]
    return rounding + welch_half_width((ours.std, ours.seeds), *theirs)


def judge_value(
    ours: Sample, paper: PrintedValue, paper_runs: int | None, better: str, tolerance: float
) -> tuple[str, str]:
    """Compare our value with the printed one, by the rule stated in `RULES`.

    Args:
        ours: Our runs, in printed units.
        paper: The printed value.
        paper_runs: Number of runs behind its standard deviation.
        better: "higher", "lower" or "neither".
        tolerance: Tolerated difference, in printed units; 0: the interval alone decides.

    Returns:
        The kind of the verdict, and the verdict in words.

    Example:
        >>> judge_value(Sample(72.9, 0.2, 5), PrintedValue(72.58, 0.11, 2), 10, "higher", 0.0)
        ('better', 'better (+0.320, bound 0.249)')
    """
    difference, bound = ours.mean - paper.value, bound_of(ours, paper, paper_runs)
    has_interval = ours.seeds > 1
    low, high = abs(difference) - bound, abs(difference) + bound
    outside = "differs" if better == "neither" else "better" if (difference > 0) == (better == "higher") else "worse"
    if not has_interval:
        kind, words = ("inside", "as printed") if low <= SLACK else ("undecided", "undecided")
    elif not tolerance:
        kind, words = ("inside", "inside the interval") if low <= SLACK else (outside, outside)
    elif high <= tolerance + SLACK:
        kind, words = "inside", "inside the tolerance"
    else:
        kind = words = outside if low > tolerance + SLACK else "undecided"
    digits = paper.decimals + 1
    shown = f"{difference:+.{digits}f}, bound {bound:.{digits}f}"
    if tolerance and has_interval:
        shown += f", tolerance {tolerance:g}"
    return kind, f"{'one seed: ' if ours.seeds == 1 else ''}{words} ({shown})"


def judge_relation(
    ours: Mapping[int, float], other: Mapping[int, float], relation: str, tolerance: float, digits: int
) -> tuple[str, str]:
    """Decide whether two of our values have the relation that the paper claims.

    Args:
        ours: First value by seed.
        other: Second value by seed.
        relation: "above", "below", "near" or "not_above".
        tolerance: For "near" and "not_above": differences up to this value are ignored.
        digits: Digits after the decimal point.

    Returns:
        The kind of the verdict, and the verdict in words.

    Example:
        >>> judge_relation({0: 0.88, 1: 0.92, 2: 0.90}, {0: 0.78, 1: 0.83, 2: 0.79}, "above", 0.0, 2)
        ('holds', 'holds (+0.10, bound 0.02)')
    """
    difference, bound = difference_of(ours, other)
    if bound is None:
        return "undecided", f"one seed: undecided ({difference:+.{digits}f})"
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


def difference_of(ours: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float | None]:
    """Return the difference of two values by seed, and the half-width of its interval as `RULES` states."""
    shared = sorted(ours.keys() & other.keys())
    if len(shared) > 1:
        mean, std, size = _sample({seed: ours[seed] - other[seed] for seed in shared})
        return mean, welch_half_width((std, size))
    first, second = _sample(ours), _sample(other)
    has_interval = min(first.seeds, second.seeds) > 1
    bound = welch_half_width((first.std, first.seeds), (second.std, second.seeds)) if has_interval else None
    return first.mean - second.mean, bound


def _sample(by_seed: Mapping[int, float]) -> Sample:
    sample = Sample.of(list(by_seed.values()))
    assert sample is not None  # there are runs, and all values are defined
    return sample


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

    values: list[list[dict[int, float]]] = []  # of both sides, for each metric: by seed
    for source in (claim.source, claim.other or claim.source):
        runs = runs_of(source)
        if not runs:
            wanted = ", ".join(f"{key} = {value}" for key, value in source.where.items())
            return Verdict("not run", "-", f"not run yet: {source.experiment}{f' ({wanted})' if wanted else ''}")
        values.append([])
        for key in source.metrics:
            by_seed: dict[int, float] = {}
            for records in runs:
                measured = [metric_of(record, key, label) for record in records]
                defined = [value for value in measured if value is not None]
                if len(defined) < len(measured):
                    return Verdict("undefined", "-", f"{key} is undefined in {records[0].content['name']}")
                by_seed[records[0].content["seed"]] = claim.scale * (defined[0] - sum(defined[1:]))
            values[-1].append(by_seed)
    ours, others = values
    if claim.relation is None:
        return _judge_printed(claim, _sample(ours[0]))
    others = others * len(ours) if len(others) == 1 else others
    return _judge_relations(claim, claim.relation, list(zip(claim.source.metrics, ours, others, strict=True)))


def _judge_printed(claim: Claim, ours: Sample) -> Verdict:
    printed = claim.printed
    assert printed is not None
    kind, words = judge_value(ours, printed, claim.paper_runs, claim.better, claim.tolerance)
    is_wide = bound_of(ours, printed, claim.paper_runs) > abs(printed.value) / 10
    return Verdict(kind, _show(ours, printed.decimals), words, is_wide=is_wide)


def _judge_relations(
    claim: Claim, relation: str, pairs: Sequence[tuple[str, Mapping[int, float], Mapping[int, float]]]
) -> Verdict:
    """Judge a relation that must hold for each metric; the verdict shows the metric with the least support."""
    order = ("does not hold", "undecided", "holds")
    sign = {"above": 1, "below": -1, "near": 0, "not_above": -1}[relation]

    def support(pair: tuple[str, Mapping[int, float], Mapping[int, float]]) -> tuple[int, float]:
        _, ours, other = pair
        gap, _ = difference_of(ours, other)
        kind, _ = judge_relation(ours, other, relation, claim.tolerance, claim.digits)
        return order.index(kind), sign * gap if sign else -abs(gap)

    name, ours, other = min(pairs, key=support)
    kind, words = judge_relation(ours, other, relation, claim.tolerance, claim.digits)
    shown = f"{_show(_sample(ours), claim.digits)} against {_show(_sample(other), claim.digits)}"
    gap, _ = difference_of(ours, other)
    is_opposed = {
        "above": gap <= SLACK,
        "below": gap >= -SLACK,
        "near": abs(gap) > claim.tolerance + SLACK,
        "not_above": gap > claim.tolerance + SLACK,
    }[relation]
    return Verdict(kind, f"{name}: {shown}" if len(pairs) > 1 else shown, words, is_opposed=is_opposed)


def _show(sample: Sample, digits: int) -> str:
    mean = round(sample.mean, digits) + 0.0  # avoids -0.00
    if sample.seeds == 1:
        return f"{mean:.{digits}f}, n = 1"
    return f"{mean:.{digits}f} ± {sample.std:.{digits}f}, n = {sample.seeds}"
