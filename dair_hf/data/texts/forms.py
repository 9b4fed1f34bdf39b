"""Forms of text data: which columns hold input and target, and what a partner takes from its original."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.view_columns import parse_column, partner_numbers, view_prefix
from dair_hf.errors import DataError

TEXT, TEXT_PAIR, LABEL = "text", "text_pair", "label"
PROMPT, COMPLETION, MESSAGES, TOOLS = "prompt", "completion", "messages", "tools"
SOURCE, TARGET = "source", "target"
INPUT_IDS = "input_ids"


@dataclass(frozen=True)
class TextForm:
    """Columns of one form of text data.

    Attributes:
        inputs: Columns of the input; a partner has at least one of its own.
        target: Column of the target; None if it is part of the input, as in a chat.
        optional: Columns of the input that data need not have.
    """

    inputs: tuple[str, ...]
    target: str | None = None
    optional: tuple[str, ...] = ()

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

    def __str__(self) -> str:
        return " and ".join(self.needed)


CLASSES = TextForm((TEXT,), LABEL, (TEXT_PAIR,))
COMPLETIONS = TextForm((PROMPT,), COMPLETION)
CHATS = TextForm((MESSAGES,))
TARGETS = TextForm((SOURCE,), TARGET)
GENERATED = (COMPLETIONS, CHATS, TARGETS)  # forms of language models
FORMS = (CLASSES, *GENERATED)


def holds_text(columns: Collection[str]) -> bool:
    """Return whether data have columns of text in a known form, and none of token ids.

    Example:
        >>> holds_text(["prompt", "completion"]), holds_text(["text", "label", "input_ids", "labels"])
        (True, False)
    """
    return INPUT_IDS not in columns and any(set(form.needed) <= set(columns) for form in FORMS)


def form_of(columns: Collection[str], generates: bool, model: str, prompts: bool = False) -> TextForm:
    """Return the form of text data for a kind of model.

    Args:
        columns: Columns of the data.
        generates: Whether it is a language model; otherwise it gives texts a label.
        model: Name of the model, for messages.
        prompts: Whether inputs are enough, as for predictions; the form of data without targets has `target=None`.

    Raises:
        DataError: The data have columns of no form, of one for another kind of model, or of several.

    Example:
        >>> str(form_of(["row_id", "prompt", "completion", "augmented_prompt"], True, "LlamaForCausalLM"))
        'prompt and completion'
    """
    names = set(columns)
    wanted = GENERATED if generates else (CLASSES,)
    found = [form for form in wanted if set(form.needed) <= names]
    if len(found) > 1:
        other = found[1].inputs[0]
        raise DataError(
            f"has the columns {found[0]}, and also {found[1]}; which are to be trained on? Drop the others, such as "
            f"dataset.remove_columns({other!r})"
        )
    if found:
        return found[0]
    untargeted = [replace(form, target=None) for form in wanted if set(form.inputs) <= names]
    if prompts and untargeted and LABELS not in names:
        return untargeted[0]
    others = [form for form in FORMS if set(form.needed) <= names]
    needed = ", or ".join(map(str, wanted))
    if others:
        raise DataError(f"has the columns {others[0]}, but {model} needs {needed}; rename them, or name another model")
    for form in wanted:
        if LABELS in names and form.inputs[0] in names and form.target is not None:
            raise DataError(
                f"has the columns {form.inputs[0]} and {LABELS}; {form.inputs[0]} goes with {form.target}, and "
                f"{LABELS} with tokenised columns: rename it, also that of the partners"
            )
    raise DataError(
        f"has the columns {list(columns)}; give {needed}, or columns of the model with {LABELS}: rename what holds "
        "them, also in the partners"
    )


def require_partner_columns(form: TextForm, columns: Collection[str]) -> None:
    """Refuse columns of partners of which it is not clear what the partner is.

    A partner has an input of its own. Input columns that its number lacks altogether are those of the original, and so
    is the target if no partner has one.

    Args:
        form: Form of the data.
        columns: Columns of the data.

    Raises:
        DataError: A partner has a target, but no input; or only some of the partners have a target.

    Example:
        >>> require_partner_columns(CLASSES, ["text", "text_pair", "label", "augmented_text_pair"])
    """
    numbers = [
        number
        for number in partner_numbers(columns)
        if any(view_prefix(number) + column in columns for column in form.columns)
    ]
    has_target = any(view_prefix(number) + str(form.target) in columns for number in numbers)
    for prefix in map(view_prefix, numbers):
        if not any(prefix + column in columns for column in form.all_inputs):
            raise DataError(
                f"lacks the column {prefix}{form.inputs[0]}, but has {prefix}{form.target}: one input cannot "
                "have two targets; give the input of the partner, too"
            )
        if has_target and prefix + str(form.target) not in columns:
            raise DataError(
                f"lacks the column {prefix}{form.target}; found {sorted(columns)}. Give it to all "
                "partners, or to none if all have the target of their original"
            )


def view_of(row: Mapping[str, Any], form: TextForm, view: int, where: object) -> dict[str, Any] | None:
    """Return the contents of a view of a row: column of the form -> content.

    Args:
        row: The row.
        form: Form of the data.
        view: 0 for the original, p for its partner number p.
        where: Name of the row, for messages.

    Returns:
        The contents; None for an absent partner, whose own columns are all empty.

    Raises:
        DataError: Some of the columns of a partner are empty, and others not.

    Example:
        >>> row = {"text": "a", "label": 1, "augmented_text": "b", "augmented_2_text": None}
        >>> [view_of(row, CLASSES, view, "row 'x'") for view in range(3)]
        [{'text': 'a', 'label': 1}, {'text': 'b', 'label': 1}, None]
    """
    columns = [column for column in form.columns if column in row]
    if view == 0:
        return {column: row[column] for column in columns}
    prefix = view_prefix(view)
    own = {column: row[prefix + column] for column in form.columns if prefix + column in row}
    empty = [column for column, value in own.items() if is_missing(value)]
    if len(empty) == len(own):
        return None
    if empty:
        given = next(column for column in own if column not in empty)
        raise DataError(
            f"{where}, column {prefix + empty[0]!r}: is empty, but {prefix}{given} is not; give both, or leave both "
            "empty for a row without a partner"
        )
    return {column: own.get(column, row.get(column)) for column in columns}


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty; columns of numbers of CSV files hold NaN there.

    Example:
        >>> is_missing(None), is_missing(float("nan")), is_missing("")
        (True, True, False)
    """
    return value is None or (isinstance(value, float) and math.isnan(value))


def text_of(value: Any, where: object, column: str) -> str:
    """Return the text of a cell.

    Raises:
        DataError: It is empty or no text.

    Example:
        >>> text_of("w4", "row '0'", "prompt")
        'w4'
    """
    if isinstance(value, str):
        return value
    found = "is empty" if is_missing(value) else f"found {value!r:.80}"
    remedy = "give a text" if is_missing(value) else "give a text in quotes"
    raise DataError(f"{where}, column {column!r}: {found}; {remedy}")


def messages_of(value: Any, where: object, column: str) -> list[dict[str, Any]]:
    """Return the messages of a cell, without the empty fields that columns of a table have.

    Raises:
        DataError: It is no list of messages, each with a role.

    Example:
        >>> messages_of([{"role": "user", "content": "Hi", "tool_calls": None}], "row '0'", "messages")
        [{'role': 'user', 'content': 'Hi'}]
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        found = "is empty" if is_missing(value) or value == [] else f"found {value!r:.80}"
        raise DataError(
            f'{where}, column {column!r}: {found}; give a list of messages such as {{"role": "user", "content": "Hi"}}'
        )
    messages = []
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(
                f"{where}, column {column!r}: message {number} is {message!r:.80}; give a role and a content, such as "
                '{"role": "user", "content": "Hi"}'
            )
        kept = {name: part for name, part in message.items() if part is not None}
        if not any(name != "role" for name in kept):
            raise DataError(f"{where}, column {column!r}: message {number} has no content; give one, or leave it out")
        if not isinstance(kept.get("content", ""), (str, list)):
            raise DataError(
                f"{where}, column {column!r}: the content of message {number} is {kept['content']!r:.80}; give a text "
                "in quotes, or a list of parts"
            )
        messages.append(kept)
    return messages


def tools_of(row: Mapping[str, Any], prefix: str, where: object) -> list[Any] | None:
    """Return the tools that the template of a chat lists: those of the view, else those of the original.

    Args:
        row: The row; `tools` is a list of JSON schemas, or its JSON text.
        prefix: Prefix of the columns of the view.
        where: Name of the row, for messages.

    Returns:
        The tools, without the empty fields that columns of a table have; None if there are none.

    Raises:
        DataError: The cell holds anything else.

    Example:
        >>> tools_of({"tools": '[{"name": "add"}]', "augmented_tools": [{"name": "neg", "x": None}]}, "augmented_", 0)
        [{'name': 'neg'}]
    """
    column = prefix + TOOLS if not is_missing(row.get(prefix + TOOLS)) else TOOLS
    tools = row.get(column)
    if is_missing(tools):
        return None
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise DataError(f"{where}, column {column!r}: is no JSON ({error}); give a list of tools") from error
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f"{where}, column {column!r}: found {tools!r:.80}; give a list of tools, each a JSON schema")
    return _without_missing(tools)


def _without_missing(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_missing(part) for name, part in value.items() if part is not None}
    return [_without_missing(part) for part in value] if isinstance(value, list) else value


def name_of(row: Mapping[str, Any], number: int) -> str:
    """Return the name of a row for messages: its `row_id`, else its number.

    Example:
        >>> name_of({"row_id": "a/0"}, 7), name_of({}, 7)
        ("row 'a/0'", "row '7'")
    """
    return f"row {str(row.get(ROW_ID, number))!r}"


def columns_to_drop(form: TextForm, columns: Collection[str]) -> list[str]:
    """Return the columns of all views that would be mistaken beside encoded ones: labels, and those of other forms."""
    others = {column for other in FORMS for column in other.columns} - set(form.columns)
    return [name for name in columns if parse_column(name)[1] in {LABEL, *others}]
