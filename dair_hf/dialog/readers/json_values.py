"""Checked access to parsed JSON, with errors that name file, position and field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dair_hf.errors import DataError


def member(value: Any, key: str, kind: type[Any], where: str) -> Any:
    """Return a required member of a JSON object.

    Example:
        >>> member({"log": None}, "log", list, "data.json: dialogue 'A'")
        Traceback (most recent call last):
        ...
        dair_hf.errors.DataError: data.json: dialogue 'A': 'log' is NoneType, expected list (found None)
    """
    if not isinstance(value, dict) or key not in value:
        raise DataError(f"{where}: {key!r} is missing (found {value!r:.60}); check data set and version of the file")
    item = value[key]
    if type(item) is kind and (kind is not str or item.isascii()):
        return item  # the usual case
    if not isinstance(item, kind) or isinstance(item, bool):
        raise DataError(f"{where}: {key!r} is {type(item).__name__}, expected {kind.__name__} (found {item!r:.60})")
    if kind is str:
        check_text(str(item), f"{where}: {key!r}")
    return item


def optional_list(value: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """Return a list as `member` does; an empty one if the key is absent."""
    return member(value, key, list, where) if key in value else []


def objects(value: Mapping[str, Any], key: str, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object of an optional list with its position."""
    for index, item in enumerate(optional_list(value, key, where)):
        position = f"{where}, {key}[{index}]"
        if not isinstance(item, dict):
            raise DataError(f"{position}: expected an object, found {item!r:.60}")
        yield item, position


def strings(value: Any, where: str) -> list[str]:
    """Return a value that must be a list of strings."""
    for item in value if isinstance(value, list) else (None,):
        if not isinstance(item, str):
            raise DataError(f"{where}: expected a list of strings, found {value!r:.60}")
        check_text(item, where)
    return value


def check_text(text: str, where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: character {error.start} of {text!r:.60} is half of a surrogate pair; repair the file"
        ) from error
