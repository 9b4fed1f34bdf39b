"""Files of paired rows, as the commands read them."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import datasets

from dair_hf.data.collator import ROW_ID
from dair_hf.data.view_columns import AUGMENTED_PREFIX, is_augmented
from dair_hf.errors import DataError, is_out_of_memory
from dair_hf.io.files import decode_json, decode_utf8, parse_json, read_bytes

JSON_LINES = ".jsonl"
READERS: dict[str, Callable[..., datasets.Dataset]] = {
    JSON_LINES: datasets.Dataset.from_json,
    ".json": datasets.Dataset.from_json,
    # Only empty cells are missing, not texts such as "None" and "NA".
    ".csv": functools.partial(datasets.Dataset.from_csv, keep_default_na=False, na_values=[""]),
    ".parquet": datasets.Dataset.from_parquet,
}


def read_pairs(path: Path) -> datasets.Dataset:
    """Read paired rows; rows without a `row_id` get their number.

    Args:
        path: JSON lines, CSV or Parquet file, or a folder written by `Dataset.save_to_disk`.

    Raises:
        DataError: The file is missing, of another kind, empty, damaged, or has no columns of partners.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_dir() and path.suffix.lower() not in READERS:
        raise DataError(f"{path}: is of an unknown kind; give {', '.join(READERS)}, or a folder of datasets")
    rows = _read(path)
    if isinstance(rows, datasets.DatasetDict):
        splits = list(rows)
        raise DataError(f"{path}: holds the splits {splits}; name the folder of one of them")
    if path.suffix.lower() == ".csv" and len(rows.column_names) == 1 and AUGMENTED_PREFIX in rows.column_names[0]:
        raise DataError(
            f"{path}: its columns are not separated by commas (found one, {rows.column_names[0]!r:.80}); write it "
            "anew, with commas"
        )
    if not len(rows) or not any(map(is_augmented, rows.column_names)):
        raise DataError(
            f"{path}: found {len(rows)} rows with the columns {rows.column_names}; partners have the columns of their "
            f"originals with the prefix {AUGMENTED_PREFIX!r}"
        )
    if ROW_ID not in rows.column_names:
        rows = rows.add_column(ROW_ID, [str(number) for number in range(len(rows))])
    return rows


def _read(path: Path) -> datasets.Dataset | datasets.DatasetDict:
    is_text = path.is_file() and path.suffix.lower() != ".parquet"
    if is_text:
        _text_of(path)  # pyarrow may notice other encodings only when a cell is read
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs the errors that it raises
    try:
        if path.is_dir():
            return datasets.load_from_disk(path)
        with tempfile.TemporaryDirectory() as cache:
            return READERS[path.suffix.lower()](str(path), cache_dir=cache, keep_in_memory=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if is_text and path.suffix.lower() != ".csv":
            _check_json(path, _text_of(path))
        cause: BaseException = error
        while isinstance(cause, datasets.exceptions.DatasetGenerationError) and cause.__cause__ is not None:
            cause = cause.__cause__
        text = " ".join(str(cause).split())
        raise DataError(f"{path}: cannot be read ({text[:400] or type(cause).__name__}); check the file") from error
    finally:
        datasets.logging.set_verbosity(verbosity)


def _text_of(path: Path) -> str:
    """Return the content of a file; raise a `DataError` if it is empty or not UTF-8."""
    text = decode_utf8(read_bytes(path), str(path))
    if not text.strip():
        raise DataError(f"{path}: is empty; give paired rows")
    return text


def _check_json(path: Path, text: str) -> None:
    """Raise a `DataError` that names the first line that is no JSON object, if there is one."""
    if text.lstrip().startswith("["):
        parse_json(text, str(path), "write it anew")
        return
    for number, line in enumerate(text.split("\n"), 1):
        try:
            row = decode_json(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}: line {number}, column {error.colno}: not valid JSON ({error.msg}); give one object in each "
                "line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number}: found {row!r:.80}; give one object in each line")
