"""Dialog rows: one row per user turn, with its history, its state and the names of its dialogue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.dialog.text.spans import on_word_boundary
from dair_hf.errors import DataError

PLACE_SLOTS = ("taxi-departure", "taxi-destination", "train-departure", "train-destination")
USER, SYSTEM = "user", "system"

FEATURES = Features(
    {
        "row_id": Value("string"),
        "dialogue_id": Value("string"),
        "turn_id": Value("int32"),
        "history": List({"speaker": Value("string"), "text": Value("string")}),
        "state": List({"slot": Value("string"), "values": List(Value("string"))}),
        "entities": List(  # mentions of names in the history
            {
                "slot": Value("string"),
                "name": Value("string"),
                "turn": Value("int32"),
                "start": Value("int32"),
                "end": Value("int32"),
            }
        ),
        # Names of the whole dialogue, with all their spellings.
        "names": List({"slot": Value("string"), "name": Value("string"), "forms": List(Value("string"))}),
    }
)


class Utterance(NamedTuple):
    """One turn of a dialogue: `speaker` is "user" or "system"."""

    speaker: str
    text: str


class Mention(NamedTuple):
    """Span that names an entity: `text[start:end]` of utterance `turn`."""

    slot: str
    name: str
    turn: int
    start: int
    end: int


class NameEntry(NamedTuple):
    """Named entity of a dialogue: the first slot it fills, its canonical name, and all its spellings."""

    slot: str
    name: str
    forms: Sequence[str]


class RowBuilder:
    """Collector of dialogues, which it turns into one `datasets.Dataset` with `FEATURES`.

    Each utterance is stored once and repeated by Arrow: the histories of a dialogue overlap, and as Python dicts they
    would take more time than reading the files.

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
        self._records: dict[str, list[Any]] = {"history": [], "state": [], "entities": [], "names": []}
        # One value per column; nested columns hold ranges of records.
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_dialogue(
        self,
        dialogue_id: str,
        utterances: Sequence[Utterance],
        states: Mapping[int, Mapping[str, Sequence[str]]],
        mentions: Iterable[Mention],
        names: Sequence[NameEntry],
    ) -> None:
        """Add one row per entry of `states`.

        Args:
            dialogue_id: Unique id of the dialogue.
            utterances: All turns, oldest first.
            states: Index of a user turn in `utterances` -> its cumulative state, slot -> alternatives.
            mentions: Spans in the utterances, in characters.
            names: The named entities of the whole dialogue.

        Raises:
            DataError: The id was added before, a state belongs to a system turn, a mention is not a span of whole
                words, or its name is not in `names`.
        """
        where = f"dialogue {dialogue_id!r}"
        if dialogue_id in self._ids:
            raise DataError(f"{where} occurs twice; dialogue ids must be unique, remove one of them")
        for index in states:
            if not 0 <= index < len(utterances) or utterances[index].speaker != USER:
                raise DataError(f"{where}: utterance {index} holds a state but is not a user turn")
        mentions = sorted(mentions, key=lambda mention: mention[2:])
        _check_mentions([utterance.text for utterance in utterances], mentions, {entry.name for entry in names}, where)
        self._ids.add(dialogue_id)
        first = {column: len(records) for column, records in self._records.items()}
        self._records["history"].extend(utterances)
        self._records["entities"].extend(mentions)
        self._records["names"].extend(names)
        state_entries = self._records["state"]
        for turn_id, index in enumerate(sorted(states)):
            mentioned = sum(mention.turn <= index for mention in mentions)
            first_entry = len(state_entries)
            state_entries.extend(sorted(states[index].items()))
            self._rows.append(
                (
                    f"{dialogue_id}/{turn_id}",
                    dialogue_id,
                    turn_id,
                    range(first["history"], first["history"] + index + 1),
                    range(first_entry, len(state_entries)),
                    range(first["entities"], first["entities"] + mentioned),
                    range(first["names"], len(self._records["names"])),
                )
            )

    def build(self) -> Dataset:
        """Return the rows in the order in which they were added."""
        columns = []
        for index, field in enumerate(FEATURES.arrow_schema):
            values = [row[index] for row in self._rows]
            records = self._records.get(field.name)
            columns.append(pa.array(values, field.type) if records is None else _slices(records, values, field.type))
        table = pa.table(columns, names=list(FEATURES)).cast(FEATURES.arrow_schema)
        return Dataset(InMemoryTable(table), info=DatasetInfo(features=FEATURES.copy()))


def _slices(records: Sequence[tuple[Any, ...]], ranges: Sequence[range], kind: pa.ListType) -> pa.ListArray:
    fields = list(kind.value_type)
    columns = [pa.array([record[i] for record in records], field.type) for i, field in enumerate(fields)]
    values = pa.StructArray.from_arrays(columns, fields=fields)
    offsets = pa.array(list(accumulate(map(len, ranges), initial=0)), pa.int32())
    indices = pa.array(list(chain.from_iterable(ranges)), pa.int64())
    return pa.ListArray.from_arrays(offsets, values.take(indices))


def _check_mentions(texts: Sequence[str], mentions: Iterable[Mention], names: Collection[str], where: str) -> None:
    for _, name, turn, start, end in mentions:
        if not 0 <= turn < len(texts):
            raise DataError(
                f"{where}: mention of {name!r} in utterance {turn} of {len(texts)}; give an index into the history"
            )
        if not on_word_boundary(texts[turn], start, end):
            raise DataError(
                f"{where}: span {start}:{end} of {name!r} in utterance {turn} is empty, outside the text or cuts a "
                f"word of {texts[turn]!r}; give character offsets at word boundaries"
            )
        if name not in names:
            raise DataError(f"{where}: mention of {name!r}, which is not among the names of the dialogue; add it")


def validate_rows(rows: Dataset, source: str = "rows") -> None:
    """Check that a dataset has the columns and contents of dialog rows."""
    for column, feature in FEATURES.items():
        if column not in rows.features:
            raise DataError(f"{source}: column {column!r} is missing (found {sorted(rows.features)}); prepare it anew")
        if rows.features[column] != feature:
            raise DataError(
                f"{source}: column {column!r} has type {rows.features[column]}, expected {feature}; prepare it anew"
            )
    if not len(rows):
        raise DataError(f"{source}: has no rows; check the split")
    row_ids: set[str] = set()
    for row in rows.select_columns(["row_id", "history", "entities", "names"]).with_format(None):
        where = f"{source}: row {row['row_id']!r}"
        if row["row_id"] in row_ids:
            raise DataError(f"{where}: the id occurs twice; row ids must be unique")
        row_ids.add(row["row_id"])
        history = row["history"]
        if not history or history[-1]["speaker"] != USER:
            raise DataError(f"{where}: the history does not end with a user turn")
        mentions = [Mention(**mention) for mention in row["entities"]]
        _check_mentions([turn["text"] for turn in history], mentions, {entry["name"] for entry in row["names"]}, where)


def history_to_text(history: Sequence[Mapping[str, str]]) -> str:
    """Join a history into the one string that a model reads.

    Args:
        history: Column `history` of a row.

    Example:
        >>> history_to_text([{"speaker": "user", "text": "hi"}, {"speaker": "system", "text": "hello"}])
        '<user> hi <system> hello'
    """
    return " ".join(f"<{turn['speaker']}> {turn['text']}" for turn in history)
