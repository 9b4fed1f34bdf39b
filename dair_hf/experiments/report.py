"""Tables and bar charts that compare the methods of finished runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.evaluation.statistics import CM_MIN_PAIRS, is_cm
from dair_hf.experiments.plots import Sample, save_figure
from dair_hf.experiments.run_records import records_by_method
from dair_hf.io.files import write_json, write_text


class Column(NamedTuple):
    """Column of a comparison.

    Attributes:
        key: Key in the metrics of a record.
        title: Heading.
        counts: Keys of numerator and denominator of a CM; None: `<key>_numerator` and `<key>_denominator`. Both are
            shown if a method has one run, else the denominator n. A CM of fewer than `CM_MIN_PAIRS` pairs is undefined.
        optional: Whether a comparison leaves the column out if no run has the metric.
    """

    key: str
    title: str
    counts: tuple[str, str] | None = None
    optional: bool = False


def _comparison_table(records: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Return a Markdown table, one row per method and lambda: mean and standard deviation of each column.

    A metric that is undefined in some of a method's runs has no mean: the cell states in how many.
    """
    lines = [
        "| method | runs | " + " | ".join(column.title for column in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for method, runs in _metrics_by_method(records).items():
        cells = " | ".join(_cell(runs, column) for column in columns)
        lines.append(f"| {method} | {len(runs)} | {cells} |")
    return "\n".join(lines)


def write_comparison(
    folder: Path, title: str, records: Sequence[Mapping[str, Any]], columns: Sequence[Column], notes: Sequence[str] = ()
) -> str:
    """Write `comparison.md`, `comparison.json` and `comparison.png` into `folder`."""
    columns = [c for c in columns if not c.optional or any(c.key in record["metrics"] for record in records)]
    table = _comparison_table(records, columns)
    several = len(records_by_method(records)) < len(records)
    spread = ["Mean ± standard deviation over the runs."] if several else []
    write_text(folder / "comparison.md", "\n".join([f"# {title}", "", table, "", *spread, *notes]).rstrip() + "\n")
    write_json(folder / "comparison.json", {"title": title, "notes": list(notes), "runs": list(records)})
    _plot_comparison(folder / "comparison.png", title, records, columns)
    return table


def _plot_comparison(path: Path, title: str, records: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """Draw grouped bars: the mean of each column for each method, and a dot for every run where it is defined.

    A metric that is undefined in any run of a method has no bar, but the label "-".
    """
    from matplotlib.figure import Figure

    methods = _metrics_by_method(records)
    # Each bar is wide enough for its two-digit label; the legend below wraps to as many lines as it needs.
    inches = 2.2 + max(1.5, 0.3 * len(methods)) * len(columns)
    legend_columns = max(1, min(len(methods), int(inches / 1.6)))
    height = 3.4 + 0.2 * math.ceil(len(methods) / legend_columns)
    figure = Figure(figsize=(inches, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(methods)
    for index, (method, runs) in enumerate(methods.items()):
        values = [_defined(runs, column) for column in columns]
        samples = [Sample.of([_value(run, column) for run in runs]) for column in columns]
        centers = [column + (index - (len(methods) - 1) / 2) * width for column in range(len(columns))]
        heights = [sample.mean if sample else 0.0 for sample in samples]
        bars = axes.bar(centers, heights, width * 0.92, label=method, color=f"C{index}")
        labels = [f"{sample.mean:.2f}" if sample else "-" for sample in samples]
        texts = axes.bar_label(bars, labels, fontsize=7, padding=2)
        for center, points, text in zip(centers, values, texts, strict=True):
            if len(runs) > 1:
                axes.plot([center] * len(points), points, ".", color="black", markersize=3)
                # Beyond the dots, which would hide the label.
                beyond = max if text.xy[1] >= 0 else min
                text.xy = (text.xy[0], beyond([text.xy[1], *points]))
    axes.set_xticks(range(len(columns)), [column.title for column in columns])
    everything = [run["metrics"] for run in records]
    drawn = [value for column in columns for value in _defined(everything, column)]
    axes.set_ylim(1.12 * min([0.0, *drawn]), 1.12 * max([1.0, *drawn]))
    axes.axhline(0.0, color="black", linewidth=0.5)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=legend_columns, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    save_figure(figure, path)


def _metrics_by_method(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    return {name: [run["metrics"] for run in runs] for name, runs in records_by_method(records).items()}


def _defined(runs: Sequence[Mapping[str, Any]], column: Column) -> list[float]:
    return [value for run in runs if (value := _value(run, column)) is not None]


def _value(run: Mapping[str, Any], column: Column) -> float | None:
    """Return a metric of a run; None if it is undefined, or a CM over too few pairs."""
    return None if any(bottom < CM_MIN_PAIRS for _, bottom in _counts([run], column)) else run.get(column.key)


def _counts(runs: Sequence[Mapping[str, Any]], column: Column) -> list[tuple[int, int]]:
    """Return numerator and denominator of a CM in each run that has them."""
    top, bottom = column.counts or (f"{column.key}_numerator", f"{column.key}_denominator")
    return [(run[top], run[bottom]) for run in runs if is_cm(column.key) and top in run and bottom in run]


def _cell(runs: Sequence[Mapping[str, Any]], column: Column) -> str:
    values = [_value(run, column) for run in runs]
    sample, undefined = Sample.of(values), values.count(None)
    if sample is None:
        return "-" if undefined == len(runs) else f"- (undefined in {undefined} of {len(runs)} runs)"
    counts = _counts(runs, column)
    if sample.seeds == 1:
        return f"{sample.mean:.3f}" + "".join(f" ({top}/{bottom})" for top, bottom in counts)
    rows = sorted({bottom for _, bottom in counts})
    n = " to ".join(map(str, rows[:: max(1, len(rows) - 1)]))
    return f"{sample.mean:.3f} ± {sample.std:.3f}" + (f" (n = {n})" if n else "")
