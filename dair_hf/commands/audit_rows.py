"""Rows of a paired file for its audit: unlike training, an audit also reads files with faulty rows."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dair_hf.data.view_columns import AUGMENTED_PREFIX, is_augmented, parse_column, partner_numbers, view_prefix
from dair_hf.errors import DataError
from dair_hf.io.records import load_records

JSON_KINDS = (".jsonl", ".json")
ID = "row_id"
# Columns that hold what a model answers; all other columns with partners are its input.
LABEL_NAMES = ("label", "labels", "target", "completion")
MESSAGES = "messages"
TOOLS = "tools"  # input of a chat that may be null; a partner then has the tools of its original


@dataclass(frozen=True)
class PairRows:
    """Rows of a paired file, as they are."""

    path: Path
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    inputs: Sequence[str]
    labels: Sequence[str]
    invalid_lines: Sequence[int] = field(default=())
    source: Mapping[str, str | None] = field(default_factory=dict)

    @cached_property
    def views(self) -> list[int]:
        """Views of the file, 0 for the originals."""
        return [0, *partner_numbers(self.columns)]

    def name(self, number: int) -> str:
        """Return the name of a row: its `row_id`, else its number from 0."""
        value = self.rows[number].get(ID)
        return str(number if value is None else value)

    def views_of(self, row: Mapping[str, Any]) -> list[int]:
        """Return the views that a row has: the original, and partners with a value in one of their columns."""
        names = (*self.inputs, *self.labels)
        partners = self.views[1:]
        return [0, *(v for v in partners if any(row.get(view_prefix(v) + name) is not None for name in names))]

    def pairs(self) -> Iterator[tuple[int, Mapping[str, Any], int]]:
        """Yield number and columns of the row, and the view, of every partner."""
        for number, row in enumerate(self.rows):
            for view in self.views_of(row)[1:]:
                yield number, row, view

    def value_of(self, row: Mapping[str, Any], name: str, view: int) -> Any:
        """Return the value of a column in a view; a partner without the column inherits it from the original."""
        own = view_prefix(view) + name
        is_inherited = own not in self.columns or (name == TOOLS and row.get(own) is None)
        return row.get(name if is_inherited else own)

    def input_of(self, row: Mapping[str, Any], view: int) -> tuple[Any, ...]:
        """Return the input of a view, hashable."""
        return tuple(hashable(self.value_of(row, name, view)) for name in self.inputs)

    def label_of(self, row: Mapping[str, Any], view: int) -> tuple[Any, ...]:
        """Return the label of a view, hashable."""
        return tuple(hashable(self.value_of(row, name, view)) for name in self.labels)


def read_audited(
    path: Path,
    inputs: Collection[str] | None = None,
    labels: Collection[str] | None = None,
    paired: bool = True,
    **source: Any,
) -> PairRows:
    """Read a file of pairs. JSON lines that hold no object are noted; other kinds are read as for training."""
    invalid: list[int] = []
    found: Iterable[Mapping[str, Any]]
    if path.suffix.lower() in JSON_KINDS and path.is_file() and not any(source.values()):
        found = load_records(path, invalid)
    else:
        from dair_hf.data.texts.files import read_pairs, with_row_ids

        found = with_row_ids(read_pairs(path, needs_partners=paired, **source))
    # Training takes NaN, as in a column of numbers with empty cells, for no value.
    rows = [{name: None if _is_nan(value) else value for name, value in row.items()} for row in found]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if inputs is None and labels is None and MESSAGES in columns and not set(LABEL_NAMES).intersection(columns):
        rows = list(map(_with_answers, rows))
        columns = list(dict.fromkeys(name for row in rows for name in row))
    if not rows or (paired and not any(map(is_augmented, columns))):
        raise DataError(f"{path}: expected rows with columns 'augmented_...', got {len(rows)} rows with {columns}")
    if missing := [name for name in (*(inputs or ()), *(labels or ())) if name not in columns]:
        raise DataError(f"{path}: expected the column {missing[0]!r}, got {columns}")
    chosen = list(labels) if labels is not None else [name for name in LABEL_NAMES if name in columns]
    if inputs is None:
        inputs = _inputs_among(columns, chosen)
    return PairRows(path, rows, columns, list(inputs), chosen, invalid, source)


def _with_answers(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose chats end before their last answer, which is in a column of its own: it is their label."""
    from dair_hf.data.texts.chat import ASSISTANT
    from dair_hf.data.texts.forms import COMPLETION

    for name in [name for name, value in row.items() if parse_column(name)[1] == MESSAGES and isinstance(value, list)]:
        turns = row[name]
        answers = [at for at, turn in enumerate(turns) if isinstance(turn, Mapping) and turn.get("role") == ASSISTANT]
        if answers:
            row = {**row, name: turns[: answers[-1]], name.removesuffix(MESSAGES) + COMPLETION: turns[answers[-1] :]}
    return row


def _inputs_among(columns: Sequence[str], labels: Collection[str]) -> list[str]:
    """Return the columns of the input, in the order of the file."""
    from dair_hf.data.texts.forms import FORMS, PROMPT

    read = {parse_column(name)[1] for name in columns if is_augmented(name)}
    for form in FORMS:
        if not read.isdisjoint(form.columns):
            read |= {*form.all_inputs, *([TOOLS] if form.inputs[0] in (PROMPT, MESSAGES) else [])}
    return [name for name in columns if name in read and name not in (*labels, ID)]


def refusal_of(data: PairRows) -> str | None:
    """Return the message with which training refuses the rows' file before loading a model; None if it accepts it."""
    from dair_hf.data.texts.chat import messages_to_learn
    from dair_hf.data.texts.files import pairs_from_jsonl
    from dair_hf.data.texts.forms import CHATS, COMPLETIONS, FORMS, INPUT_IDS, name_of, tools_of, view_of

    # Any data may have a column named source or text; in a form of text it has partners.
    holds_text = any(
        {name, AUGMENTED_PREFIX + name} <= set(data.columns) for name in (form.inputs[0] for form in FORMS)
    )
    if data.invalid_lines or INPUT_IDS in data.columns or ("labels" in data.columns and not holds_text):
        return None

    try:
        rows = pairs_from_jsonl(data.path, **data.source)
        forms = [form for form in FORMS if set(form.needed) <= {*rows.column_names}]
        for number, row in enumerate(rows if forms in ([CHATS], [COMPLETIONS]) else ()):
            for view in (0, *partner_numbers(rows.column_names)):
                where = name_of(row, number)
                content = view_of(row, forms[0], view, where)
                if content is not None and isinstance(content[forms[0].inputs[0]], list):
                    tools_of(row, view_prefix(view), where)
                    messages_to_learn(content, forms[0], where, view_prefix(view))
    except DataError as error:
        return str(error).removeprefix(f"{data.path}: ")
    return None


def words_in(value: Any) -> str:
    """Return a text, or the texts of a list of messages, as one text; empty for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return " ".join(filter(None, map(words_in, value)))
    return words_in(value.get("content")) if isinstance(value, Mapping) else ""


def hashable(value: Any) -> Any:
    """Return a value as it is if it is hashable, else its JSON."""
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, (list, dict)) else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
