"""Predictions and references as JSON: files of JSON lines, strict parsing, pairing by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

from dair_hf.errors import DataError
from dair_hf.io.files import decode_json_texts, decode_utf8, read_bytes

_GZIP = b"\x1f\x8b"


def read_text(path: str) -> str:
    """Read a UTF-8 text file, with or without a byte order mark.

    Raises:
        DataError: The file cannot be read, is compressed or is not UTF-8.
    """
    content = read_bytes(path)
    if content.startswith(_GZIP):
        raise DataError(f"{path}: this file is compressed; unpack it first, for example with gunzip")
    return decode_utf8(content, path).replace("\r\n", "\n").replace("\r", "\n")


def parse_lines(text: str, path: str) -> list[tuple[str, Any]]:
    r"""Parse JSON lines; blank lines are skipped."""
    # str.splitlines would also split at characters that JSON strings may contain.
    lines = [(f"{path}:{number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise DataError(f"{path}: contains no lines; expected one JSON value per line")
    return [(where, parse_item(line, where, "write one JSON value per line")) for where, line in lines]


def parse_item(text: str, where: str, remedy: str) -> Any:
    """Parse JSON strictly: repeated keys, NaN and half of a surrogate pair are errors.

    Args:
        text: The JSON text.
        where: Position of the text, for the message.
        remedy: Advice at the end of the message.

    Raises:
        DataError: The text is not valid JSON.

    Example:
        >>> parse_item('{"hotel-area": "east", "hotel-area": "west"}', "p.jsonl:3", "give every slot once")
        Traceback (most recent call last):
        dair_hf.errors.DataError: p.jsonl:3: invalid JSON at column 1 ('hotel-area' is repeated); give every slot once
    """
    try:
        return decode_json_texts(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: invalid JSON at column {error.colno} ({error.msg}); {remedy}") from None


def encode_items(items: Iterable[Any], name: str) -> list[str]:
    """Return items as JSON text; text is returned unchanged.

    Args:
        items: JSON values; numbers may be scalars of numpy or torch.
        name: Name of the items in messages, such as "predictions".

    Raises:
        DataError: An item contains something that JSON does not have.

    Example:
        >>> encode_items([{"hotel-area": ["east"]}, "[1]"], "predictions")
        ['{"hotel-area": ["east"]}', '[1]']
    """
    return [item if isinstance(item, str) else _encode(item, f"{name}[{i}]") for i, item in enumerate(items)]


def _encode(item: Any, where: str) -> str:
    try:
        return json.dumps(item, default=_number)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be written as JSON ({error}); use strings and lists of strings") from None


def _number(value: Any) -> Any:
    """Convert a scalar of numpy or torch."""
    if getattr(value, "shape", None) != ():
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value.item()


def read_name(value: Any, key: str, where: str) -> str:
    """Return an id, or a part of one, as text.

    Raises:
        DataError: The value is neither an integer nor a non-empty string.
    """
    if isinstance(value, bool) or not isinstance(value, str | Integral) or value == "":
        raise DataError(f"{where}: {key} must be a string or an integer, found {short(value)}")
    return str(value)


def short(value: Any) -> str:
    """Return at most 60 characters of a value's representation, for messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def pair_items(
    predictions: Sequence[Any],
    references: Sequence[Any],
    item_id: Callable[[Any], str | None],
    key: str,
    hint: str = "",
) -> list[tuple[Any, Any]]:
    """Pair predictions with references: by id if they have ids, else by position.

    Args:
        predictions: Items with an attribute `where`, their position in messages.
        references: Likewise, in the order of the result.
        item_id: Function from an item to its id, or to None if it has none.
        key: Name of the id in an item, such as "row_id", for messages.
        hint: Advice for repeated ids.

    Raises:
        DataError: Only some items have ids, an id is repeated, an id occurs on one side only, or the numbers of items
            without ids differ.
    """
    sides = {"predictions": predictions, "references": references}
    for name, items in sides.items():
        without_id = [item for item in items if item_id(item) is None]
        if 0 < len(without_id) < len(items):
            raise DataError(
                f"{name}: {len(without_id)} of {len(items)} items have no id, the first at {without_id[0].where}; "
                f"give every item a {key}, or none"
            )
        require_unique_ids(((item_id(item), item.where) for item in items), hint)
    have_ids = {name: item_id(items[0]) is not None for name, items in sides.items() if items}
    if len(set(have_ids.values())) == 2:
        with_ids, without = sorted(have_ids, key=have_ids.__getitem__, reverse=True)
        raise DataError(f"{with_ids} have ids and {without} have none; give both a {key}, or neither")
    if not any(have_ids.values()):
        if len(predictions) != len(references):
            raise DataError(
                f"found {len(predictions)} predictions for {len(references)} references; "
                f"give one for each, or give both a {key} to match by"
            )
        return list(zip(predictions, references, strict=True))
    predicted = {item_id(prediction): prediction for prediction in predictions}
    expected = {item_id(reference): reference for reference in references}
    missing, surplus = [i for i in expected if i not in predicted], [i for i in predicted if i not in expected]
    if missing or surplus:
        positions = [expected[i].where for i in missing[:1]] + [predicted[i].where for i in surplus[:1]]
        raise DataError(
            f"ids of predictions and references differ: {_count(missing)} without prediction, {_count(surplus)} "
            f"without reference; give every reference exactly one prediction (see {' and '.join(positions)})"
        )
    return [(predicted[i], reference) for i, reference in expected.items()]


def require_unique_ids(ids: Iterable[tuple[str | None, str]], hint: str = "") -> None:
    """Raise DataError if an id is repeated, given (id or None, position) of each item and advice for the message."""
    seen: dict[str, str] = {}
    for item_id, where in ids:
        if item_id in seen:
            raise DataError(f"{where}: the id {item_id} was already used at {seen[item_id]}; ids must be unique{hint}")
        if item_id is not None:
            seen[item_id] = where


def _count(ids: Sequence[Any]) -> str:
    return f"{len(ids)} (e.g. {', '.join(ids[:3])})" if ids else "0"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is repeated")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed in JSON")
