"""Records of finished runs below `results/`, selected by their content, and Markdown tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import read_json


class Record(NamedTuple):
    """Record of a finished run, and its file."""

    path: Path
    content: Mapping[str, Any]


def read_records(folder: Path) -> list[Record]:
    """Read all records below the folder of an experiment, sorted by path; other JSON files are skipped.

    Raises:
        DataError: A file is not valid JSON.
    """
    records = []
    for path in sorted(folder.rglob("*.json")):
        # Hidden folders are temporary ones of an interrupted write.
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            content = read_json(path)
            if isinstance(content, dict) and {"name", "method", "seed", "metrics"} <= content.keys():
                records.append(Record(path, content))
    return records


def matches(record: Record, where: Mapping[str, Any], label: str) -> bool:
    """Return whether a record has the values of a filter.

    The keys are compared in order, up to the first mismatch. A record that mismatches need not have the later keys.

    Args:
        record: The record.
        where: Dotted path -> value.
        label: Name of the claim or plot, for messages.
    """
    return all(value_at(record, path, label) == value for path, value in where.items())


def select(records: Sequence[Record], where: Mapping[str, Any], label: str) -> list[Record]:
    """Return the records that match a filter, by ascending seed; refuse two records of the same seed."""
    selected: dict[int, Record] = {}
    for record in records:
        if matches(record, where, label):
            seed = record.content["seed"]
            if seed in selected:
                raise DataError(
                    f"{label}: {selected[seed].path} and {record.path} both have seed {seed} for {dict(where)}; "
                    "narrow `where`"
                )
            selected[seed] = record
    return [selected[seed] for seed in sorted(selected)]


def value_at(record: Record, path: str, label: str) -> Any:
    """Return the value at a dotted path of a record, which must have it."""
    value: Any = record.content
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(f"{label}: {record.path} has no {path!r} ({part!r} is missing); correct `where`")
        value = value[part]
    return value


def metric_of(record: Record, key: str, label: str) -> float | None:
    """Return a metric of a record, which must have it; None if it is undefined."""
    metrics = record.content["metrics"]
    if key not in metrics:
        raise DataError(f"{label}: {record.path} has no metric {key!r}; it has {', '.join(sorted(metrics))}")
    return metrics[key]


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table; a line break in a cell becomes a space."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|" + "---|" * len(header), *map(line, rows)]
