"""The one row every dialog reader yields: a user turn with its history, its state and the names of its dialogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.errors import DataError

NAME_SLOTS = ("hotel-name", "restaurant-name", "attraction-name")
PLACE_SLOTS = ("taxi-departure", "taxi-destination", "train-departure", "train-destination")
DONTCARE = "dontcare"
USER, SYSTEM = "user", "system"

FEATURES = Features(
    {
        "row_id": Value("string"),
        "dialogue_id": Value("string"),
        "turn_id": Value("int32"),
        "history": List({"speaker": Value("string"), "text": Value("string")}),
        "state": List({"slot": Value("string"), "values": List(Value("string"))}),
        "entities": List(
            {
                "slot": Value("string"),
                "name": Value("string"),
                "turn": Value("int32"),
                "start": Value("int32"),
                "end": Value("int32"),
            }
        ),
        "names": List({"slot": Value("string"), "name": Value("string"), "forms": List(Value("string"))}),
    }
)


class Utterance(NamedTuple):
    """One turn of a dialogue: `speaker` is "user" or "system"."""

    speaker: str
    text: str


class Mention(NamedTuple):
    """A place in the text where an entity is named: `text[start:end]` of utterance `turn` is its surface form."""

    slot: str
    name: str
    turn: int
    start: int
    end: int


class NameEntry(NamedTuple):
    """A name-like entity of a dialogue: the first slot it fills, its canonical form, every spelling met."""

    slot: str
    name: str
    forms: Sequence[str]


def row_id(dialogue_id: str, turn_id: int) -> str:
    """The stable name of a row.

    Example:
        >>> row_id("MUL0003", 4)
        'MUL0003/4'
    """
    return f"{dialogue_id}/{turn_id}"


def on_word_boundary(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]` is not empty and cuts no word (run of letters and digits) in two.

    Example:
        >>> on_word_boundary("the hotels", 4, 9), on_word_boundary("the hotel.", 4, 9)
        (False, True)
    """
    if not 0 <= start < end <= len(text):
        return False
    if start > 0 and text[start - 1].isalnum() and text[start].isalnum():
        return False
    return not (end < len(text) and text[end - 1].isalnum() and text[end].isalnum())


def _check_dialogue(
    dialogue_id: str,
    utterances: Sequence[Utterance],
    states: Mapping[int, Mapping[str, Sequence[str]]],
    mentions: Sequence[Mention],
    names: Sequence[NameEntry],
) -> None:
    known = {entry.name for entry in names}
    for index in states:
        if not 0 <= index < len(utterances) or utterances[index].speaker != USER:
            raise DataError(f"dialogue {dialogue_id!r}: utterance {index} holds a state but is not a user turn")
    for mention in mentions:
        where = f"dialogue {dialogue_id!r}, utterance {mention.turn}"
        if not 0 <= mention.turn < len(utterances):
            raise DataError(f"{where}: no such utterance for the mention of {mention.name!r}")
        text = utterances[mention.turn].text
        if not on_word_boundary(text, mention.start, mention.end):
            raise DataError(
                f"{where}: span {mention.start}:{mention.end} of {mention.name!r} is empty, outside the text or cuts "
                f"a word of {text!r}; give character offsets at word boundaries"
            )
        if mention.name not in known:
            raise DataError(f"{where}: mention of {mention.name!r}, which is not among the dialogue's names")


class RowBuilder:
    """Collects dialogues column by column and turns them into one `datasets.Dataset` with `FEATURES`.

    The columns are Arrow buffers from the start: histories overlap, so as Python dicts they would cost more time
    than reading the files does.

    Example:
        >>> builder = RowBuilder()
        >>> builder.add_dialogue(
        ...     "d1",
        ...     [Utterance("user", "is the lensfield free?")],
        ...     {0: {"hotel-name": ["the lensfield"]}},
        ...     [Mention("hotel-name", "the lensfield", 0, 3, 16)],
        ...     [NameEntry("hotel-name", "the lensfield", ["the lensfield"])],
        ... )
        >>> builder.build()[0]["row_id"]
        'd1/0'
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._speakers: list[str] = []
        self._texts: list[str] = []
        self._mentions: list[Mention] = []
        self._names: list[NameEntry] = []
        self._row_ids: list[str] = []
        self._dialogue_ids: list[str] = []
        self._turn_ids: list[int] = []
        self._history: list[range] = []
        self._entities: list[range] = []
        self._row_names: list[range] = []
        self._states: list[list[tuple[str, Sequence[str]]]] = []

    def __contains__(self, dialogue_id: object) -> bool:
        return dialogue_id in self._ids

    def __len__(self) -> int:
        return len(self._row_ids)

    def add_dialogue(
        self,
        dialogue_id: str,
        utterances: Sequence[Utterance],
        states: Mapping[int, Mapping[str, Sequence[str]]],
        mentions: Iterable[Mention],
        names: Sequence[NameEntry],
    ) -> None:
        """Add one dialogue: one row per entry of `states`.

        Args:
            dialogue_id: Unique over all dialogues added.
            utterances: All turns, oldest first.
            states: Index of a user turn in `utterances` -> its cumulative state, slot -> alternatives.
            mentions: Spans in the utterances, character offsets.
            names: The name-like entities of the whole dialogue.

        Raises:
            DataError: The id was added before, a state stands at a system turn, or a mention is not a span of whole
                words of its utterance, or its name is not in `names`.
        """
        if dialogue_id in self._ids:
            raise DataError(f"dialogue {dialogue_id!r} occurs twice; dialogue ids must be unique, remove one of them")
        ordered = sorted(mentions, key=lambda mention: (mention.turn, mention.start, mention.end))
        _check_dialogue(dialogue_id, utterances, states, ordered, names)
        self._ids.add(dialogue_id)
        first_text, first_mention, first_name = len(self._texts), len(self._mentions), len(self._names)
        self._speakers.extend(utterance.speaker for utterance in utterances)
        self._texts.extend(utterance.text for utterance in utterances)
        self._mentions.extend(ordered)
        self._names.extend(names)
        seen = 0
        for turn_id, index in enumerate(sorted(states)):
            while seen < len(ordered) and ordered[seen].turn <= index:
                seen += 1
            self._row_ids.append(row_id(dialogue_id, turn_id))
            self._dialogue_ids.append(dialogue_id)
            self._turn_ids.append(turn_id)
            self._history.append(range(first_text, first_text + index + 1))
            self._entities.append(range(first_mention, first_mention + seen))
            self._row_names.append(range(first_name, len(self._names)))
            self._states.append(sorted(states[index].items()))

    def build(self) -> Dataset:
        """The rows so far, in the order in which they were added."""
        utterances = _struct(
            {"speaker": pa.array(self._speakers, pa.string()), "text": pa.array(self._texts, pa.string())}
        )
        mentions = _struct(
            {
                "slot": pa.array([mention.slot for mention in self._mentions], pa.string()),
                "name": pa.array([mention.name for mention in self._mentions], pa.string()),
                "turn": pa.array([mention.turn for mention in self._mentions], pa.int32()),
                "start": pa.array([mention.start for mention in self._mentions], pa.int32()),
                "end": pa.array([mention.end for mention in self._mentions], pa.int32()),
            }
        )
        names = _struct(
            {
                "slot": pa.array([entry.slot for entry in self._names], pa.string()),
                "name": pa.array([entry.name for entry in self._names], pa.string()),
                "forms": _strings([entry.forms for entry in self._names]),
            }
        )
        pairs = list(chain.from_iterable(self._states))
        state = _struct(
            {"slot": pa.array([slot for slot, _ in pairs], pa.string()), "values": _strings([v for _, v in pairs])}
        )
        columns = {
            "row_id": pa.array(self._row_ids, pa.string()),
            "dialogue_id": pa.array(self._dialogue_ids, pa.string()),
            "turn_id": pa.array(self._turn_ids, pa.int32()),
            "history": _slices(utterances, self._history),
            "state": pa.ListArray.from_arrays(_offsets([len(pairs) for pairs in self._states]), state),
            "entities": _slices(mentions, self._entities),
            "names": _slices(names, self._row_names),
        }
        table = pa.table(columns).cast(FEATURES.arrow_schema)
        return Dataset(InMemoryTable(table), info=DatasetInfo(features=FEATURES.copy()))


def _struct(columns: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(list(accumulate(lengths, initial=0)), pa.int32())


def _strings(lists: Sequence[Sequence[str]]) -> pa.ListArray:
    return pa.ListArray.from_arrays(
        _offsets(len(items) for items in lists), pa.array(list(chain.from_iterable(lists)), pa.string())
    )


def _slices(values: pa.Array, ranges: Sequence[range]) -> pa.ListArray:
    indices = pa.array(list(chain.from_iterable(ranges)), pa.int64())
    return pa.ListArray.from_arrays(_offsets(len(part) for part in ranges), values.take(indices))


def validate_rows(rows: Dataset, source: str = "rows") -> None:
    """Check that a dataset keeps the row contract, so that what builds on it need not.

    Args:
        rows: Any dataset, for instance one loaded from disk.
        source: Where it comes from, for the message.

    Raises:
        DataError: It is empty, lacks a column or has one of another type, repeats a row id, holds a history that
            does not end with the user, or a mention that is not a span of whole words or has an unknown name.

    Example:
        >>> validate_rows(RowBuilder().build(), "empty.json")
        Traceback (most recent call last):
        ...
        dair_hf.errors.DataError: empty.json: holds no rows; check the split
    """
    for column, feature in FEATURES.items():
        if column not in rows.features:
            raise DataError(f"{source}: column {column!r} is missing (found {sorted(rows.features)}); prepare it anew")
        if rows.features[column] != feature:
            raise DataError(
                f"{source}: column {column!r} has type {rows.features[column]}, expected {feature}; prepare it anew"
            )
    if not len(rows):
        raise DataError(f"{source}: holds no rows; check the split")
    table = rows.select_columns(["row_id", "history", "entities", "names"]).with_format(None)
    seen: set[str] = set()
    for row in table:
        where = f"{source}: row {row['row_id']!r}"
        if row["row_id"] in seen:
            raise DataError(f"{where}: the id occurs twice; row ids must be unique")
        seen.add(row["row_id"])
        history = row["history"]
        if not history or history[-1]["speaker"] != USER:
            raise DataError(f"{where}: the history does not end with a user turn")
        known = {entry["name"] for entry in row["names"]}
        for mention in row["entities"]:
            turn, start, end = mention["turn"], mention["start"], mention["end"]
            if not 0 <= turn < len(history) or not on_word_boundary(history[turn]["text"], start, end):
                raise DataError(
                    f"{where}: entities: span {start}:{end} in utterance {turn} is no span of whole words; "
                    "give character offsets at word boundaries"
                )
            if mention["name"] not in known:
                raise DataError(f"{where}: entities: {mention['name']!r} is not among the row's names")
