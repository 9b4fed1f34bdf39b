"""Dialog rows: builder, validation and text of a history."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from dair_hf.dialog.text.rows import (
    FEATURES,
    Mention,
    NameEntry,
    RowBuilder,
    Utterance,
    history_to_text,
    validate_rows,
)
from dair_hf.dialog.text.spans import contains_name, on_word_boundary, without_overlap
from dair_hf.errors import DataError

TALK = [Utterance("user", "is oak house free?"), Utterance("system", "Oak House is."), Utterance("user", "ok")]
NAMES = [NameEntry("hotel-name", "oak house", ["oak house", "Oak House"])]
MENTIONS = [Mention("hotel-name", "oak house", 1, 0, 9), Mention("hotel-name", "oak house", 0, 3, 12)]
STATES: dict[int, dict[str, list[str]]] = {0: {}, 2: {"hotel-name": ["oak house", "oak"], "hotel-area": ["east"]}}


def build(**changes: Any) -> Dataset:
    args: dict[str, Any] = {"utterances": TALK, "states": STATES, "mentions": MENTIONS, "names": NAMES} | changes
    builder = RowBuilder()
    builder.add_dialogue("d", **args)
    return builder.build()


def test_rows_are_exactly_these() -> None:
    rows = build()
    assert rows.features == FEATURES
    first = {"slot": "hotel-name", "name": "oak house", "turn": 0, "start": 3, "end": 12}
    names = [{"slot": "hotel-name", "name": "oak house", "forms": ["oak house", "Oak House"]}]
    history = [{"speaker": speaker, "text": text} for speaker, text in TALK]
    assert rows.to_list() == [
        {
            "row_id": "d/0",
            "dialogue_id": "d",
            "turn_id": 0,
            "history": history[:1],
            "state": [],
            "entities": [first],
            "names": names,
        },
        {
            "row_id": "d/1",
            "dialogue_id": "d",
            "turn_id": 1,
            "history": history,
            "state": [
                {"slot": "hotel-area", "values": ["east"]},
                {"slot": "hotel-name", "values": ["oak house", "oak"]},
            ],
            "entities": [first, first | {"turn": 1, "start": 0, "end": 9}],
            "names": names,
        },
    ]
    validate_rows(rows)


def test_rows_of_two_dialogues_do_not_mix() -> None:
    builder = RowBuilder()
    builder.add_dialogue("a", TALK, STATES, MENTIONS, NAMES)
    builder.add_dialogue("b", [Utterance("user", "hello")], {0: {}}, [], [])
    last = builder.build()[2]
    assert (last["row_id"], last["history"]) == ("b/0", [{"speaker": "user", "text": "hello"}])
    assert last["entities"] == last["names"] == last["state"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mentions": [Mention("hotel-name", "oak house", 0, 3, 11)]}, "cuts a word"),
        ({"mentions": [Mention("hotel-name", "oak house", 0, 3, 3)]}, "span 3:3"),
        ({"mentions": [Mention("hotel-name", "oak house", 0, 3, 99)]}, "span 3:99"),
        ({"mentions": [Mention("hotel-name", "oak house", 7, 0, 1)]}, "mention of 'oak house' in utterance 7 of 3"),
        ({"mentions": [Mention("hotel-name", "elm", 0, 3, 12)]}, "'elm', which is not among"),
        ({"states": {1: {}}}, "utterance 1 holds a state but is not a user turn"),
    ],
)
def test_builder_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(**changes)


def test_duplicate_dialogue_ids_are_refused() -> None:
    builder = RowBuilder()
    builder.add_dialogue("d", TALK, STATES, [], NAMES)
    with pytest.raises(DataError, match="'d' occurs twice"):
        builder.add_dialogue("d", TALK, STATES, [], NAMES)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"row_id": "d/0"}, "the id occurs twice"),
        ({"history": [{"speaker": "system", "text": "hi"}]}, "does not end with a user turn"),
        (
            {"entities": [{"slot": "s", "name": "oak house", "turn": 0, "start": 4, "end": 12}]},
            "cuts a word",
        ),
        ({"entities": [{"slot": "s", "name": "elm", "turn": 0, "start": 3, "end": 12}]}, "'elm', which is not among"),
    ],
)
def test_validate_refuses(row: dict[str, Any], message: str) -> None:
    rows = build().to_list()
    rows[1] |= row
    with pytest.raises(DataError, match=f"file.json: row .*{message}"):
        validate_rows(Dataset.from_list(rows, features=FEATURES), "file.json")


def test_validate_refuses_columns() -> None:
    with pytest.raises(DataError, match="column 'names' is missing"):
        validate_rows(build().remove_columns("names"))
    with pytest.raises(DataError, match="column 'turn_id' has type"):
        validate_rows(build().remove_columns("turn_id").add_column("turn_id", ["0", "1"]))
    with pytest.raises(DataError, match="has no rows"):
        validate_rows(build().select([]))


def test_word_boundaries() -> None:
    text = "St. John's (café)"
    whole = [(0, 2), (4, 8), (4, 10), (12, 16)]
    assert all(on_word_boundary(text, *span) for span in whole)
    assert not any(on_word_boundary(text, *span) for span in [(1, 2), (4, 7), (12, 15), (5, 5), (-1, 2), (0, 99)])


def test_the_longest_of_overlapping_spans_remains() -> None:
    spans = [(4, 9, "first"), (6, 11, "second"), (0, 3, "third"), (5, 6, "fourth"), (9, 12, "fifth")]
    assert without_overlap(spans) == [(0, 3, "third"), (4, 9, "first"), (9, 12, "fifth")]
    assert contains_name("the cowboy met a cow", "cow") and not contains_name("the cowboy", "cow")


def test_history_text() -> None:
    history = [{"speaker": "user", "text": "hi"}, {"speaker": "system", "text": "yes ?"}]
    assert history_to_text(history) == "<user> hi <system> yes ?"
    assert history_to_text([]) == ""
