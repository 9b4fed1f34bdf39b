"""Files of an evaluation, by name and content, without slow imports."""

from __future__ import annotations

from typing import Any

RECORD_FILE = "evaluation.json"
RECORD_KEYS = {"model", "pairs", "settings", "metrics", "seconds"}


def is_record(value: Any) -> bool:
    """Return whether the content of a file is a record of `dair-hf evaluate`.

    Example:
        >>> is_record({"model": {}, "metrics": {}})
        False
    """
    return isinstance(value, dict) and value.keys() >= RECORD_KEYS
