"""Forms of text data: which columns hold input and target, and what a partner takes from its original."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datasets import ClassLabel

from dair_hf.data.checks import columns_of
from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.held_rows import without_format
from dair_hf.data.view_columns import columns_of_views, partner_numbers, view_prefix
from dair_hf.errors import DataError, explained
from dair_hf.losses.per_sample import IGNORE_INDEX

TEXT, TEXT_PAIR, LABEL = "text", "text_pair", "label"
PROMPT, COMPLETION, MESSAGES, TOOLS = "prompt", "completion", "messages", "tools"
SOURCE, TARGET = "source", "target"
INPUT_IDS = "input_ids"


@dataclass(frozen=True)
class TextForm:
    """Columns of one form of text data."""

    inputs: tuple[str, ...]  # a partner has at least one of its own, or of the optional ones
    target: str | None = None  # None if it is part of the input, as in a chat
    optional: tuple[str, ...] = ()  # of the input

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that data of this form have."""
        return self.inputs if self.target is None else (*self.inputs, self.target)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the form."""
        return (*self.needed, *self.optional)

    @property
    def all_inputs(self) -> tuple[str, ...]:
        """Columns of the input, with the optional ones."""
        return (*self.inputs, *self.optional)

    def text_of(self, answer: Any, feature: Any = None) -> str:
        """Return an answer as text; a label in one spelling: its name in a `ClassLabel`, else as in JSON, 1 for 1.0."""
        text = str(answer)
        if self.target != LABEL:
            return text
        if isinstance(feature, ClassLabel):
            is_number = text.isdecimal() and (isinstance(answer, int) or text not in feature.names)
            return str(feature.names[int(text)]) if is_number and int(text) < len(feature.names) else text
        return text.lower() if text in ("True", "False") else re.sub(r"^(-?\d+)\.0$", r"\1", text)

    def __str__(self) -> str:
        return " and ".join(self.needed)


CLASSES = TextForm((TEXT,), LABEL, (TEXT_PAIR,))
COMPLETIONS = TextForm((PROMPT,), COMPLETION)
CHATS = TextForm((MESSAGES,))
TARGETS = TextForm((SOURCE,), TARGET)
GENERATED = (COMPLETIONS, CHATS, TARGETS)  # forms of language models
FORMS = (CLASSES, *GENERATED)


def holds_text(columns: Collection[str]) -> bool:
    """Return whether data have columns of text in a known form, and none of token ids."""
    return INPUT_IDS not in columns and any(set(form.needed) <= set(columns) for form in FORMS)


def form_of(columns: Collection[str], generates: bool, model: str, prompts: bool = False) -> TextForm:
    """Return the form of text data for a model that generates, or gives texts a label; `prompts`: inputs are enough.

    It refuses partners that lack a column of the form. The form of data without targets has `target=None`.
    """
    names = set(columns)
    wanted = GENERATED if generates else (CLASSES,)
    found = [form for form in wanted if set(form.needed) <= names]
    if not found and prompts and LABELS not in names:
        found = [replace(form, target=None) for form in wanted if set(form.inputs) <= names][:1]
    if len(found) != 1:
        needed = ", or ".join(map(str, wanted))
        raise DataError(f"has the columns {list(columns)}: expected {needed} for {model}, one form")
    require_partner_columns(found[0], columns)
    return found[0]


def require_partner_columns(form: TextForm, columns: Collection[str], where: str = "") -> None:
    """Refuse a partner with a target, but no input of its own, and targets of only some partners."""
    prefixes = list(map(view_prefix, partner_numbers(columns)))
    with_target = {prefix for prefix in prefixes if prefix + str(form.target) in columns}
    with_input = {prefix for prefix in prefixes if any(prefix + column in columns for column in form.all_inputs)}
    if with_target and (differing := with_target ^ with_input):
        expected = " and ".join(min(differing) + column for column in form.needed)
        raise DataError(f"{where}has the columns {list(columns)}: expected {expected}")


def view_of(row: Mapping[str, Any], form: TextForm, view: int, where: object) -> dict[str, Any] | None:
    """Return the checked contents of a view of a row: column of the form -> text, list of messages, or label.

    None for an absent partner, whose own columns are all empty.

    Example:
        >>> row = {"text": "a", "label": 1, "augmented_text": "b", "augmented_2_text": None}
        >>> [view_of(row, CLASSES, view, "row 'x'") for view in range(3)]
        [{'text': 'a', 'label': 1}, {'text': 'b', 'label': 1}, None]
    """
    prefix = view_prefix(view)
    own = {column: row[prefix + column] for column in form.columns if prefix + column in row}
    if view:
        empty = [column for column, value in own.items() if is_missing(value)]
        if len(empty) == len(own):
            return None
        if empty:
            expected = "a value as in the other columns of the partner"
            raise DataError(f"{where}, column {prefix + empty[0]!r}: expected {expected}, got nothing")
        own = {column: own.get(column, row.get(column)) for column in form.columns if column in row}
    content = {column: _checked(value, column, where, prefix) for column, value in own.items()}
    if len({isinstance(content.get(column), list) for column in (PROMPT, COMPLETION) if column in content}) > 1:
        raise DataError(f"{where}, column {prefix + COMPLETION!r}: expected texts or messages in both columns, got one")
    return content


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty; columns of numbers of CSV files hold NaN there."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _checked(value: Any, column: str, where: object, prefix: str) -> Any:
    """Return the content of a cell; messages without the empty fields that columns of a table have."""
    wrong, expected = value, "a text"
    if column == LABEL:
        if not is_missing(value):
            return value  # `label_of` knows which labels the model has
        expected = "a label"
    elif column == MESSAGES or (column in (PROMPT, COMPLETION) and isinstance(value, list)):
        expected = "messages with a role and a content"
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            kept = [_without_missing(message) for message in value]
            wrong = next((message for message in kept if not _is_message(message)), None)
            if wrong is None:
                return kept
    elif isinstance(value, str):
        return value
    raise DataError(f"{where}, column {prefix + column!r}: expected {expected}, got {wrong!r:.80}")


def _is_message(message: Any) -> bool:
    """Return whether a message has a role and a content, or calls of tools; a template would write "None"."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or len(message) < 2:
        return False
    return isinstance(message.get("content", ""), (str, list))


def tools_of(row: Mapping[str, Any], prefix: str, where: object) -> list[Any] | None:
    """Return the tools that the template of a chat lists, JSON schemas of the view, else of the original.

    The empty fields that columns of a table have are left out.
    """
    column = prefix + TOOLS if not is_missing(row.get(prefix + TOOLS)) else TOOLS
    tools = row.get(column)
    if is_missing(tools):
        return None
    if isinstance(tools, str):
        with explained(f"{where}, column {column!r}", ValueError):
            tools = json.loads(tools)
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f"{where}, column {column!r}: expected a list of JSON schemas, got {tools!r:.80}")
    return [_without_missing(tool) for tool in tools]


def _without_missing(value: Any) -> Any:
    """Return a value without the fields of dictionaries that are None."""
    if isinstance(value, Mapping):
        return {name: _without_missing(part) for name, part in value.items() if part is not None}
    return [_without_missing(part) for part in value] if isinstance(value, list) else value


def label_of(
    value: Any, loss: str | None, label2id: Mapping[str, int], num_labels: int, where: str, column: str
) -> Any:
    """Return the label of a view as the model needs it: the number of a class, a number, or a list of them in [0, 1].

    Whole numbers may be floats, as in a column of a CSV file with empty cells; `num_labels=0`: unknown.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if loss == "classification":
        expected = f"a class, {', '.join(label2id)} or its number below {num_labels}"
        if isinstance(value, str) and value in label2id:
            return label2id[value]
        if is_number and float(value).is_integer():
            is_class = not num_labels or 0 <= value < num_labels or value == IGNORE_INDEX
            # A number may be the name of a class that has another number.
            if is_class and label2id.get(str(int(value)), value) == value:
                return int(value)
    elif loss == "multi_label":
        expected = f"a list of {num_labels} numbers in [0, 1]"
        if isinstance(value, list) and len(value) == num_labels:
            if all(isinstance(item, (int, float)) and 0 <= item <= 1 for item in value):
                return [float(item) for item in value]
    else:
        expected = "a number"
        if is_number and math.isfinite(value):
            return float(value)
    raise DataError(f"{where}, column {column!r}: expected {expected}, got {value!r:.80}")


def classes_of(data: Any) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return the classes in the rows: column of a view -> labels, and all labels, numbers before names.

    Labels are numbers or names; None for an absent partner. Whole numbers may be floats.
    """
    data, columns = without_format(data), dict[str, list[Any]]()
    for name in columns_of_views(LABEL, columns_of(data) or ()).values():
        feature = (getattr(data, "features", None) or {}).get(name)
        labels = [None if is_missing(row.get(name)) else row.get(name) for row in data]
        for number, label in enumerate(labels):
            if isinstance(feature, ClassLabel) and label is not None:
                labels[number] = feature.int2str(label)
            elif isinstance(label, float) and label.is_integer():
                labels[number] = int(label)
            elif not isinstance(label, str | int | None):
                where = f"{name_of(data[number], number)}, column {name!r}"
                raise DataError(f"{where}: expected the name or the number of a class, got {label!r:.80}")
        columns[name] = labels
    found = set().union(*columns.values()) - {None}
    return columns, sorted(found, key=lambda label: (isinstance(label, str), label))


def name_of(row: Mapping[str, Any], number: int) -> str:
    """Return the name of a row for messages: its `row_id`, else its number."""
    return f"row {str(row.get(ROW_ID, number))!r}"
