"""Files of pairs and of predictions on them: what is refused before a model is loaded, without slow imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError
from dair_hf.io.files import FilePath, parse_json, require_output_file
from dair_hf.io.records import load_records

PAIR_KINDS = (".jsonl", ".json", ".csv", ".parquet")
PREDICTION_KEYS = ("row_id", "variant", "prediction", "reference", "correct")  # of a line of a predictions file
CLUSTER_KEY = "cluster"  # optional last key
PREDICTIONS_FILE = "predictions.jsonl"  # in the folder of a run, or of an evaluation


def require_pairs_file(path: Path) -> None:
    """Refuse a path without a file of pairs or a folder of `datasets`."""
    if not path.exists() or (path.is_file() and path.suffix.lower() not in PAIR_KINDS):
        raise DataError(f"{path}: no such file of pairs; expected {', '.join(PAIR_KINDS)}, or a folder of datasets")


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
