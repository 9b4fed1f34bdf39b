"""Any JSON value anywhere in a dialogue file is read, or refused with file, dialogue and field."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dair_hf.dialog.readers.multiwoz import read_multiwoz
from dair_hf.dialog.readers.sgd import read_entity_names, read_sgd
from dair_hf.dialog.readers.woz2 import read_woz2
from dair_hf.errors import DataError
from tests.dialog.readers import test_multiwoz, test_sgd, test_woz2

REMOVED = object()
VALUES = (None, True, 5, -1, 1.5, "x", "\ud800", [], {}, [None], ["x"], [["x"]], {"a": None}, 10**30)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


TURNS = ("log", "turns", "dialogue")  # the first two have all keys
UNREAD = {"goal", "dialog_act", "turn_id"}
FOLDERS = {
    "2.1": lambda folder, document: test_multiwoz.write(folder, document),
    "2.2": lambda folder, document: test_multiwoz.write(folder, document, "dialogues_001.json"),
    "sgd": lambda folder, document: test_sgd.write(folder, "dev", document),
    "woz2": lambda folder, document: test_woz2.write(folder, document),
}
READERS = {
    "2.1": [read_multiwoz],
    "2.2": [read_multiwoz],
    "sgd": [lambda folder: read_sgd(folder, "dev"), lambda folder: read_entity_names(folder, "dev")],
    "woz2": [read_woz2],
}


def documents() -> dict[str, tuple[Any, str]]:
    schema_guided = json.loads((test_multiwoz.FIXTURES / "dev" / "dialogues_001.json").read_text())
    return {
        "2.1": ({"MUL0001.json": test_multiwoz.talk()}, "MUL0001"),
        "2.2": (schema_guided, "PMUL0001"),
        "sgd": ([test_sgd.dialogue()], "1_00000"),
        "woz2": ([test_woz2.talk()], "dialogue [0] '7'"),
    }


@pytest.mark.parametrize("version", ["2.1", "2.2", "sgd", "woz2"])
def test_any_value_anywhere_is_read_or_refused_with_its_position(tmp_path: Path, version: str) -> None:
    document, dialogue = documents()[version]
    refused = 0
    for number, path in enumerate(places(document)):
        is_later = any(key in TURNS and place > 1 for key, place in zip(path, path[1:], strict=False))
        if len(path) < 2 or is_later or UNREAD.intersection(path):
            continue
        # Every value in every place would take a minute: one in each place, all of them in turn.
        for value in (REMOVED, VALUES[number % len(VALUES)]):
            target = FOLDERS[version](tmp_path, changed(document, path, value))
            for read in READERS[version]:
                try:
                    read(target)
                except DataError as error:
                    refused += 1
                    message = str(error)
                    if "got none" in message:
                        continue
                    assert ".json" in message, (path, value, message)
                    if path[-1] not in ("dialogue_id", "log", "turns", "dialogue_idx"):
                        assert dialogue in message or "dialogue [0]" in message, (path, value, message)
                    field = next((key for key in reversed(path) if isinstance(key, str)), "")
                    assert field in message or f"{path[-2]}[" in message, (path, value, message)
    assert refused > 25


def test_any_value_in_a_schema(tmp_path: Path) -> None:
    for number, path in enumerate(places(test_sgd.SCHEMA)):
        if not path:
            continue
        schema = changed(test_sgd.SCHEMA, path, VALUES[number % len(VALUES)])
        try:
            read_sgd(test_sgd.write(tmp_path, "dev", [test_sgd.dialogue()], schema), "dev")
        except DataError as error:
            assert "schema" in str(error) or "hotels_1" in str(error) or "restaurants_2" in str(error), str(error)
