"""Results of runs: one JSON each, and from those a table in Markdown, a summary in JSON and a plot."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dair_hf.io.files import atomic_path, write_json, write_text

PACKAGES = ("dair-hf", "torch", "transformers", "datasets", "accelerate", "evaluate", "peft", "numpy")
SECRETS = ("hub_token", "push_to_hub_token")


class Column(NamedTuple):
    """A column of a comparison.

    Attributes:
        key: Key in the metrics of a record.
        title: Heading.
        counts: Keys of numerator and denominator, printed where a method has one run.
    """

    key: str
    title: str
    counts: tuple[str, str] | None = None


def run_record(
    name: str,
    method: str,
    seed: int,
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    seconds: Mapping[str, float],
    data: Mapping[str, str],
    settings_fingerprint: str,
) -> dict[str, Any]:
    """What is kept of a finished run: enough to repeat it and to judge it.

    Args:
        name: Name of the run.
        method: Its method's name in the comparison.
        seed: Its seed.
        config: Resolved settings; dataclasses are written field by field, tokens are left out.
        metrics: Its figures. NaN becomes null.
        seconds: Wall time of its parts, in seconds.
        data: Fingerprint of each data set.
        settings_fingerprint: What tells whether a later call may reuse it.

    Returns:
        A dictionary that JSON can hold.
    """
    return {
        "name": name,
        "method": method,
        "seed": seed,
        "metrics": {key: _finite(value) for key, value in metrics.items()},
        "seconds": {key: round(value, 2) for key, value in seconds.items()},
        "config": plain_config(config),
        "data": dict(data),
        "settings_fingerprint": settings_fingerprint,
        "versions": {"python": platform.python_version(), **_versions()},
        "git_revision": git_revision(),
        "hardware": _hardware(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a record holds them: dataclasses field by field, without tokens."""
    return {key: _plain(value) for key, value in config.items()}


def comparison_table(records: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """A Markdown table: one row a method, mean (and standard deviation over the seeds) of each column.

    Args:
        records: Records of runs, in the order in which the methods shall stand.
        columns: What to show.

    Returns:
        Markdown.

    Example:
        >>> print(comparison_table([{"method": "erm", "metrics": {"cm": 0.5}}], [Column("cm", "CM")]))
        | method | runs | CM |
        |---|---|---|
        | erm | 1 | 0.500 |
    """
    methods = list(dict.fromkeys(record["method"] for record in records))
    lines = [
        "| method | runs | " + " | ".join(column.title for column in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for method in methods:
        runs = [record["metrics"] for record in records if record["method"] == method]
        cells = " | ".join(_cell(runs, column) for column in columns)
        lines.append(f"| {method} | {len(runs)} | {cells} |")
    return "\n".join(lines)


def write_comparison(
    folder: Path, title: str, records: Sequence[Mapping[str, Any]], columns: Sequence[Column], notes: Sequence[str] = ()
) -> str:
    """Write `comparison.md`, `comparison.json` and `comparison.png` of some runs into `folder`.

    Args:
        folder: Where to.
        title: Heading of the table and the plot.
        records: Records of runs.
        columns: What to show.
        notes: Lines below the table, such as deviations; the first says what "±" is, where a method has several runs.

    Returns:
        The Markdown table.
    """
    table = comparison_table(records, columns)
    several = len({record["method"] for record in records}) < len(records)
    spread = ["Mean ± standard deviation over the runs."] if several else []
    write_text(folder / "comparison.md", "\n".join([f"# {title}", "", table, "", *spread, *notes]).rstrip() + "\n")
    write_json(folder / "comparison.json", {"title": title, "notes": list(notes), "runs": list(records)})
    plot_comparison(folder / "comparison.png", title, records, columns)
    return table


def plot_comparison(path: Path, title: str, records: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """Grouped bars: the mean of each column for each method, a dot for every run.

    Args:
        path: Where the PNG goes.
        title: Heading.
        records: Records of runs.
        columns: Shares, or errors from 0 on.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(record["method"] for record in records))
    # A bar is as wide as its figure of two digits; the legend takes as many lines as it needs below that.
    inches = 2.2 + max(1.5, 0.3 * len(methods)) * len(columns)
    entries = max(1, min(len(methods), int(inches / 1.6)))
    figure = Figure(figsize=(inches, 3.4 + 0.2 * math.ceil(len(methods) / entries)), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        runs = [record["metrics"] for record in records if record["method"] == method]
        values = [[v for run in runs if (v := run.get(column.key)) is not None] for column in columns]
        places = [place + (index - (len(methods) - 1) / 2) * width for place in range(len(columns))]
        heights = [statistics.fmean(found) if found else 0.0 for found in values]
        bars = axes.bar(places, heights, width * 0.92, label=method, color=f"C{index}")
        labels = [f"{height:.2f}" if found else "-" for height, found in zip(heights, values, strict=True)]
        axes.bar_label(bars, labels, fontsize=7, padding=2)
        for place, found in zip(places, values, strict=True):
            if len(found) > 1:
                axes.plot([place] * len(found), found, ".", color="black", markersize=3)
    axes.set_xticks(range(len(columns)), [column.title for column in columns])
    shown = [run["metrics"].get(column.key) for run in records for column in columns]
    axes.set_ylim(0, 1.12 * max([1.0, *(value for value in shown if value is not None)]))
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=entries, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    with atomic_path(path) as scratch:
        FigureCanvasAgg(figure).print_png(scratch)


def _cell(runs: Sequence[Mapping[str, Any]], column: Column) -> str:
    defined = [run for run in runs if run.get(column.key) is not None]
    if not defined:
        return "-"
    values = [run[column.key] for run in defined]
    text = f"{statistics.fmean(values):.3f}"
    if len(values) > 1:
        return f"{text} ± {statistics.stdev(values):.3f}"
    if column.counts is not None:
        text += f" ({defined[0][column.counts[0]]}/{defined[0][column.counts[1]]})"
    return text


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return {key: item for key, item in value.to_dict().items() if key not in SECRETS}
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


@functools.cache
def git_revision() -> str | None:
    """Revision of the checkout the library runs from, as it stood at the first call; None outside one."""
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.strip()


def _hardware() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpus,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }
