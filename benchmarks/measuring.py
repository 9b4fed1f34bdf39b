"""Timing, results and options shared by the benchmarks."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich
from rich.table import Table
from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.experiments.run_records import run_record
from dair_hf.io.files import explain_write_errors, read_json, require_file, write_json

FOLDER = Path("results/benchmarks")
HEADINGS = ("figure", "value", "quartiles", "target", "holds", "by arithmetic")


def benchmark_parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with `--output` and, if a default is given, `--rounds`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        parser.add_argument("--rounds", type=at_least(1), default=rounds, help="measured rounds, after the warm-up")
    parser.add_argument("--output", type=_output_file, help="JSON file to write, in place of the default")
    return parser


def at_least(lowest: int) -> Callable[[str], int]:
    """Return a type of options: integers that are not below a bound."""

    def integer(text: str) -> int:
        if (value := int(text)) < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, found {value}")
        return value

    return integer


def _output_file(text: str) -> Path:
    """Refuse a file that cannot be written before anything is measured."""
    try:
        with explain_write_errors(text):
            path = require_file(text)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise DataError(f"{text}: cannot be written; name another file")
        require_own(Path(text))
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)


def require_own(path: Path, name: str | None = None) -> None:
    """Refuse to replace a file that the named benchmark did not write.

    Raises:
        DataError: The file exists and is not the record of such a benchmark.
    """
    before = read_json(path) if path.is_file() and path.stat().st_size else None
    if before is None:
        return
    if not isinstance(before, dict) or before.get("method") != "benchmark" or name not in (None, before.get("name")):
        raise DataError(f"{path}: was not written by this benchmark; name another file to write")


def interleaved(variants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Time every variant once per round, so that a slow minute of the machine affects all of them.

    Args:
        variants: Name -> function to time, without arguments.
        rounds: Measured rounds.
        warmup: Rounds before them that are not measured.

    Returns:
        Name -> seconds, one number per measured round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in tqdm(range(warmup + rounds), desc="Timing", unit="round"):
        # Each round starts with another variant, so that no variant always runs on a cold cache.
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            variants[name]()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True)
class Measure:
    """One figure of a benchmark.

    Attributes:
        name: Name in the table.
        value: The figure, a ratio of medians unless the name says otherwise.
        low: Lower quartile; None if measured once.
        high: Upper quartile.
        target: Value to reach; None if there is none.
        at_least: Whether the target is a lower bound.
        arithmetic: Expected value from counting operations, tokens or bytes, in words.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    target: float | None = None
    at_least: bool = False
    arithmetic: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table, one cell for each of `HEADINGS`."""
        quartiles = "" if self.low is None else f"{self.low:.3f} to {self.high:.3f}"
        if self.target is None:
            return self.name, f"{self.value:.3f}", quartiles, "", "", self.arithmetic
        holds = self.value >= self.target if self.at_least else self.value <= self.target
        bound = f"{'at least' if self.at_least else 'at most'} {self.target:g}"
        return self.name, f"{self.value:.3f}", quartiles, bound, "yes" if holds else "no", self.arithmetic


def ratio(
    name: str, seconds: Mapping[str, Sequence[float]], numerator: str, denominator: str, **settings: Any
) -> Measure:
    """Return the ratio of two medians, with the quartiles of the ratios within the rounds.

    Args:
        name: Name of the measure.
        seconds: Output of `interleaved`.
        numerator: A variant.
        denominator: Another variant.
        **settings: Target and arithmetic of the measure.
    """
    by_round = [a / b for a, b in zip(seconds[numerator], seconds[denominator], strict=True)]
    low, _, high = statistics.quantiles(by_round, n=4, method="inclusive") if len(by_round) > 1 else by_round * 3
    value = statistics.median(seconds[numerator]) / statistics.median(seconds[denominator])
    return Measure(name, value, low, high, **settings)


def conclude(
    name: str,
    title: str,
    measures: Sequence[Measure],
    settings: Mapping[str, Any],
    seconds: Mapping[str, Sequence[float]],
    data: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> Path:
    """Print the measures as a table and write them as JSON, which `performance.py` reads.

    Args:
        name: Name of the benchmark and of its file in `results/benchmarks/`.
        title: Heading of the table.
        measures: The figures.
        settings: Model, batch size, rounds and the like.
        seconds: Variant -> seconds of each round.
        data: Fingerprints of the data.
        output: File to write, in place of the default.

    Returns:
        The file.
    """
    table = Table(*HEADINGS, title=title)
    for measure in measures:
        table.add_row(*measure.cells())
    rich.print(table)
    metrics = {
        "title": title,
        "measures": [asdict(measure) for measure in measures],
        "seconds": {variant: [round(value, 4) for value in values] for variant, values in seconds.items()},
    }
    total = {variant: sum(values) for variant, values in seconds.items()}
    record = run_record(name, "benchmark", 0, settings, metrics, total, data or {}, "")
    path = output or FOLDER / f"{name}.json"
    require_own(path, name)
    write_json(path, record)
    rich.print(f"Written to {path}")
    return path
