"""Readers of records, of pairs and predictions among them: JSON lines, JSON, CSV, TSV, Parquet. A text stays a text."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError, explained
from dair_hf.io.files import FilePath, decode_json, decode_utf8, parse_json, read_bytes, require_output_file

COMMA, TAB = ",", "\t"
DELIMITERS = {".csv": COMMA, ".tsv": TAB}
PARQUET = ".parquet"
PAIR_KINDS = (".jsonl", ".json", ".csv", ".parquet")
PREDICTION_KEYS = ("row_id", "variant", "prediction", "reference", "correct")  # of a line of a predictions file
CLUSTER_KEY = "cluster"  # optional last key
PREDICTIONS_FILE = "predictions.jsonl"  # in the folder of a run, or of an evaluation
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)  # of a data set
# An escape in JSON: a surrogate pair, half of one, or another.
_ESCAPE = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<half>\\ud[89a-f][0-9a-f]{2})|\\.", re.I)


class _TableRow(NamedTuple):
    """Row of a table: its place, for messages, and its cells by column."""

    where: str
    cells: dict[str, str]


def load_records(path: FilePath, faulty: list[int] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a file, as stored; lines of JSON that hold no object are added to `faulty`, or an error."""
    kind = Path(path).suffix.lower()
    if kind in DELIMITERS:
        return [row.cells for row in read_table(read_bytes(path), str(path), DELIMITERS[kind])]
    if kind == PARQUET:
        import pyarrow.parquet

        with explained(f"{path}: cannot be read", OSError, pyarrow.ArrowException):
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
            return rows
    return _read_json_rows(path, faulty)


def _read_json_rows(path: FilePath, faulty: list[int] | None) -> list[dict[str, Any]]:
    text, unit = decode_utf8(read_bytes(path), str(path)), "line"
    if text.lstrip().startswith("["):
        with explained(f"{path}: not valid JSON", ValueError):
            array = _decode_texts(text)
        values, unit = list(enumerate(array, 1)), "row"
    else:
        values = []
        # Not with splitlines, which also splits at characters that JSON strings may contain, such as U+2028.
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            value, place = None, f"{path}: line {number}: not valid JSON"
            with explained(place, ValueError) if faulty is None else contextlib.suppress(ValueError):
                value = _decode_texts(line)
            values.append((number, value))
    rows = []
    for number, value in values:
        if isinstance(value, dict):
            rows.append(value)
        elif faulty is None:
            raise DataError(f"{path}: {unit} {number}: expected a JSON object, got {value!r:.80}")
        else:
            faulty.append(number)
    return rows


def _decode_texts(content: str) -> Any:
    """As `decode_json` with distinct keys; refuse half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    value = decode_json(content, distinct=True)
    for escape in _ESCAPE.finditer(content):
        if escape["half"]:
            raise json.JSONDecodeError(f"{escape['half']} is half of a surrogate pair", content, escape.start())
    return value


def read_table(content: bytes, label: str, delimiter: str, columns: Sequence[str] = ()) -> list[_TableRow]:
    """Read a table in UTF-8 with one header line, whose cells are texts; an unnamed column is `Unnamed: NUMBER`."""
    # pandas would fill short rows, rename repeated columns and take the first cell of longer rows for an index.
    csv.field_size_limit(sys.maxsize)  # Python's own limit is 131,072 characters a cell
    lines = csv.reader(io.StringIO(decode_utf8(content, label), newline=""), delimiter=delimiter, strict=True)
    with explained(label, csv.Error):
        table = [(f"{label}: line {lines.line_num}", cells) for cells in lines if cells]
    header = [name or f"Unnamed: {number}" for number, name in enumerate(table[0][1])] if table else []
    uneven = [f"{where} has {len(cells)} cells" for where, cells in table if len(cells) != len(header)]
    missing = [name for name in columns if name not in header]
    if uneven or missing or len(set(header)) < len(header):
        where = next(iter(uneven), label)
        raise DataError(f"{where}: expected the columns {missing or header}, each once and in every row, got {header}")
    rows = ((where, dict(zip(header, cells, strict=True))) for where, cells in table[1:])
    return [_TableRow(where, {name: cells[name] for name in columns or header}) for where, cells in rows]


def is_hub_id(path: Path) -> bool:
    """Return whether a path is an id on the Hub, `user/name`, and not that of a file, be it there or not."""
    is_file_name = path.suffix.lower() in (*PAIR_KINDS, *DELIMITERS)
    return not is_file_name and HUB_ID.fullmatch(path.as_posix()) is not None and not path.exists()


def require_pairs_file(path: Path) -> None:
    """Refuse a path that is neither a file of pairs, nor a folder of `datasets`, nor the id of a data set."""
    if not is_hub_id(path) and (not path.exists() or (path.is_file() and path.suffix.lower() not in PAIR_KINDS)):
        expected = f"expected {', '.join(PAIR_KINDS)}, a folder of datasets, or user/name of a data set on the Hub"
        raise DataError(f"{path}: no such file of pairs; {expected}")


def require_predictions_file(path: FilePath) -> None:
    """Refuse a file for predictions if writing it would replace anything but earlier predictions."""
    require_output_file(path, overwrite=True, is_own=_begins_with_prediction)


def _begins_with_prediction(path: Path) -> bool:
    begin = f'{{"{PREDICTION_KEYS[0]}": '.encode()
    with path.open("rb") as lines:
        # A large file of another kind may be a single line.
        line = begin + lines.readline() if lines.read(len(begin)) == begin else b""
    try:
        return tuple(parse_json(line, str(path))) in (PREDICTION_KEYS, (*PREDICTION_KEYS, CLUSTER_KEY))
    except DataError:
        return False


def read_predictions(path: FilePath) -> Iterator[dict[str, Any]]:
    """Read the lines of a file that `PairIndex.write` wrote."""
    for number, view in enumerate(load_records(path), start=1):
        if not view.keys() >= set(PREDICTION_KEYS) or not isinstance(view["correct"], bool):
            raise DataError(f"{path}: row {number}: expected a prediction with {', '.join(PREDICTION_KEYS)}")
        yield view


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Disable garbage collection while rows are read, of which it takes half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
