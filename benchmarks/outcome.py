"""What a benchmark found: printed as a table, written as JSON that `performance.py` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich
from rich.table import Table

from dair_hf.errors import DataError
from dair_hf.experiments.report import run_record
from dair_hf.io.files import read_json, write_json

FOLDER = Path("results/benchmarks")


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        name: What it is.
        value: The figure: a ratio of medians, or whatever its name says.
        low: Lower quartile; None where it was measured once.
        high: Upper quartile.
        target: What it should reach; None: it is only told.
        at_least: Whether the target is a lower bound.
        arithmetic: What counting operations, tokens or bytes asks for, in words.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    target: float | None = None
    at_least: bool = False
    arithmetic: str = ""

    def cells(self) -> tuple[str, ...]:
        """Name, figure, quartiles, target, whether it holds, arithmetic."""
        quartiles = "" if self.low is None else f"{self.low:.3f} to {self.high:.3f}"
        if self.target is None:
            return self.name, f"{self.value:.3f}", quartiles, "", "", self.arithmetic
        holds = self.value >= self.target if self.at_least else self.value <= self.target
        bound = f"{'at least' if self.at_least else 'at most'} {self.target:g}"
        return self.name, f"{self.value:.3f}", quartiles, bound, "yes" if holds else "no", self.arithmetic


HEADINGS = ("figure", "value", "quartiles", "target", "holds", "by arithmetic")


def measured(name: str, ratio: Mapping[str, float], **rest: Any) -> Measure:
    """A ratio of `timing.ratio` as a measure."""
    return Measure(name, ratio["ratio"], ratio["quartile_low"], ratio["quartile_high"], **rest)


def conclude(
    name: str,
    title: str,
    measures: Sequence[Measure],
    settings: Mapping[str, Any],
    seconds: Mapping[str, Sequence[float]],
    data: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> Path:
    """Print the table and write the JSON.

    Args:
        name: Name of the benchmark and of its file in `results/benchmarks/`.
        title: One line that says what was measured.
        measures: The figures.
        settings: What was run: model, batch, rounds.
        seconds: Variant -> seconds of each round.
        data: Fingerprints of the data.
        output: Where to write instead.

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
    before = read_json(path) if path.exists() else record
    if not isinstance(before, dict) or (before.get("name"), before.get("method")) != (name, "benchmark"):
        raise DataError(f"{path}: was not written by this benchmark; name another file to write")
    write_json(path, record)
    rich.print(f"Written to {path}")
    return path
