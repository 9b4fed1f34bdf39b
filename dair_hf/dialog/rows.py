"""Dialog rows: one row per user turn, with its history, its state and the names of its dialogue, and their texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable

from dair_hf.errors import DataError
from dair_hf.metrics.state.belief_text import state_to_text
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.matching import compare_states
from dair_hf.metrics.state.normalizers import normalize

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

# Values of a name slot that name nothing.
NO_NAME = frozenset(
    {"", "?", "none", "not mentioned", "dontcare", "don't care", "do n't care", "dont care", "do not care"}
)

# Values that dialogues say in other words ("free parking").
UNSPOKEN = NO_NAME | {"yes", "no"}
# "not(x)" is how some states of MultiWOZ 2.1 exclude x.
_EXCLUSION = re.compile(r"not\((.+)\)")

Span = TypeVar("Span", bound=tuple[Any, ...])
State = dict[str, list[str]]


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

    def add_dialogue(
        self,
        dialogue_id: str,
        utterances: Sequence[Utterance],
        states: Mapping[int, Mapping[str, Sequence[str]]],
        mentions: Iterable[Mention],
        names: Sequence[NameEntry],
        where: str = "",
    ) -> None:
        """Add one row per entry of `states`.

        Args:
            dialogue_id: Unique id of the dialogue.
            utterances: All turns, oldest first.
            states: Index of a user turn in `utterances` -> its cumulative state, slot -> alternatives.
            mentions: Spans in the utterances, in characters.
            names: The named entities of the whole dialogue.
            where: Origin of the dialogue, for messages.

        Raises:
            DataError: The id was added before, or a mention is not a span of whole words with a name of `names`.
        """
        where = where or f"dialogue {dialogue_id!r}"
        if dialogue_id in self._ids:
            raise DataError(f"{where}: dialogue {dialogue_id!r} occurs twice; expected unique ids")
        mentions = sorted(mentions, key=lambda mention: mention[2:])
        known, texts = {entry.name for entry in names}, [utterance.text for utterance in utterances]
        for mention in mentions:
            in_text = 0 <= mention.turn < len(texts) and on_word_boundary(texts[mention.turn], *mention[3:])
            if not in_text or mention.name not in known:
                raise DataError(f"{where}: expected a span of whole words with a name of {known}, got {mention}")
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
            if records is None:
                columns.append(pa.array(values, field.type))
                continue
            # A column of ranges of records.
            parts = list(field.type.value_type)
            fields = [pa.array([record[i] for record in records], part.type) for i, part in enumerate(parts)]
            offsets = pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())
            indices = pa.array(list(chain.from_iterable(values)), pa.int64())
            struct = pa.StructArray.from_arrays(fields, fields=parts).take(indices)
            columns.append(pa.ListArray.from_arrays(offsets, struct))
        table = pa.table(columns, names=list(FEATURES)).cast(FEATURES.arrow_schema)
        return Dataset(InMemoryTable(table), info=DatasetInfo(features=FEATURES.copy()))


def history_to_text(history: Sequence[Mapping[str, str]]) -> str:
    """Join the column `history` of a row into the one string that a model reads.

    Example:
        >>> history_to_text([{"speaker": "user", "text": "hi"}, {"speaker": "system", "text": "hello"}])
        '<user> hi <system> hello'
    """
    return " ".join(f"<{turn['speaker']}> {turn['text']}" for turn in history)


def target_text(state: Mapping[str, Sequence[str]], preset: str = "any_of", *, lower_case: bool = False) -> str:
    """Write a state as the training target: for each slot the shortest answer that a preset scores as right.

    That is the first alternative that the preset accepts by itself, else all alternatives, else no answer: `mwzeval`
    removes a gold "dontcare", so that any value is wrong. Values are normalized if the preset accepts only normalized
    ones. A slot that the preset does not compare is written like any other. If every answer is wrong, which happens
    with `lower_case` and values with capitals, the first alternative is written; the `Ceiling` of an audit counts such
    targets.

    Args:
        state: Slot -> alternatives.
        preset: A name in `dair_hf.metrics.state.conventions.PRESETS`.
        lower_case: Write the values in lower case.

    Example:
        >>> target_text({"hotel-area": ["centre", "center"], "hotel-name": []})
        'hotel-area = centre'
        >>> target_text({"hotel-area": ["centre", "center"]}, "parlai_v22")
        'hotel-area = centre | center'
    """
    written = {slot: _written(slot, tuple(values), preset, lower_case) for slot, values in state.items()}
    return state_to_text({slot: values for slot, values in written.items() if values})


@lru_cache(maxsize=1 << 16)
def _written(slot: str, alternatives: tuple[str, ...], preset: str, lower_case: bool) -> tuple[str, ...]:
    """Return the shortest prediction that scores as correct: one alternative, all, or none; otherwise the first."""
    _, convention = resolve_convention(preset)
    # Some evaluators normalize the gold values only, so that nothing but the normalized value is right.
    normalized = tuple(normalize(convention.normalizer, slot, value) for value in alternatives)
    spelled = [
        tuple(value.lower() for value in values) if lower_case else values for values in (alternatives, normalized)
    ]
    answers = [answer for values in spelled for answer in (*((value,) for value in values), values)]
    for answer in (*answers, ()):
        if compare_states({slot: answer}, {slot: alternatives}, convention).score >= 1.0:
            return answer
    return spelled[0][:1]


def state_from_row(column: Iterable[Mapping[str, Any]]) -> State:
    """Convert the column `state` of a row into slot -> alternatives."""
    return {entry["slot"]: list(entry["values"]) for entry in column}


@lru_cache(maxsize=50_000)
def normalize_name(name: str) -> str:
    """Fold case and reduce white space to single spaces."""
    return " ".join(name.split()).casefold()


def excluded_value(value: str) -> str | None:
    """Return x of a value "not(x)", which excludes x; None for any other value."""
    match = _EXCLUSION.fullmatch(value)
    return None if match is None else match[1]


def on_word_boundary(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is not empty and cuts no word (run of letters and digits)."""
    if not 0 <= start < end <= len(text):
        return False
    if start > 0 and text[start - 1].isalnum() and text[start].isalnum():
        return False
    return not (end < len(text) and text[end - 1].isalnum() and text[end].isalnum())


def contains_name(text: str, name: str) -> bool:
    """Return whether `name` occurs in `text` as whole words."""
    start = text.find(name)
    while start >= 0:
        if on_word_boundary(text, start, start + len(name)):
            return True
        start = text.find(name, start + 1)
    return False


def without_overlap(spans: Iterable[Span]) -> list[Span]:
    """Keep the longest of spans (start, end, ...) that overlap, of equally long ones the first; sort them by start."""
    remaining: list[Span] = []
    for span in sorted(spans, key=lambda span: span[0] - span[1]):
        if all(span[1] <= other[0] or other[1] <= span[0] for other in remaining):
            remaining.append(span)
    return sorted(remaining, key=lambda span: span[0])
