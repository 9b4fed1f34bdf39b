"""Files of pairs and of predictions on them: what is refused before a model is loaded, without slow imports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError
from dair_hf.io.files import FilePath, decode_json, parse_json, read_bytes, require_file

PAIR_KINDS = (".jsonl", ".json", ".csv", ".parquet")
PREDICTION_KEYS = ("row_id", "variant", "prediction", "reference", "correct")  # of a line of a predictions file
CLUSTER_KEY = "cluster"  # optional last key
PREDICTIONS_FILE = "predictions.jsonl"  # in the folder of a run, or of an evaluation


def require_pairs_file(path: Path) -> None:
    """Refuse a path without a file of pairs.

    Args:
        path: A file, or a folder of `datasets`.

    Raises:
        DataError: There is nothing, or a file of another kind.

    Example:
        >>> require_pairs_file(Path("no/such/pairs.csv"))
        Traceback (most recent call last):
        dair_hf.errors.DataError: no/such/pairs.csv: no such file; check the path
    """
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_dir() and path.suffix.lower() not in PAIR_KINDS:
        raise DataError(f"{path}: is of an unknown kind; give {', '.join(PAIR_KINDS)}, or a folder of datasets")


def require_predictions_file(path: FilePath) -> None:
    """Refuse a file for predictions if writing it would replace anything but earlier predictions.

    Args:
        path: The file.

    Raises:
        DataError: `path` is a folder, a block device or a socket, or an existing file whose first line is no
            prediction of `PairIndex.write`.
    """
    file = require_file(path)
    if not file.is_file() or not file.stat().st_size:
        return
    begin = f'{{"{PREDICTION_KEYS[0]}": '.encode()
    try:
        with file.open("rb") as lines:
            # A large file of another kind may be a single line.
            first = decode_json(begin + lines.readline()) if lines.read(len(begin)) == begin else None
    except (json.JSONDecodeError, UnicodeDecodeError):
        first = None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); name another file") from error
    if not isinstance(first, dict) or tuple(first) not in (PREDICTION_KEYS, (*PREDICTION_KEYS, CLUSTER_KEY)):
        raise DataError(f"{path}: is no file of predictions, which could be replaced; name another file, or move it")


def read_predictions(path: FilePath) -> Iterator[dict[str, Any]]:
    """Read the lines of a file that `PairIndex.write` wrote.

    Raises:
        DataError: The file cannot be read, or a line is no JSON object with the keys of a prediction, or its `correct`
            is neither true nor false.
    """
    # Not with splitlines, which also splits at characters that JSON strings may contain, such as U+2028.
    for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        if line.strip():
            view = parse_json(line, f"{path}:{number}", "evaluate again")
            is_view = isinstance(view, dict) and view.keys() >= set(PREDICTION_KEYS)
            if not is_view or not isinstance(view["correct"], bool):
                raise DataError(f"{path}:{number}: is no prediction of a view; evaluate again")
            yield view
