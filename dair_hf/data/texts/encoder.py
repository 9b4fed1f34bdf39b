"""Encoding of the texts of all views of a row as the columns of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.texts.chat import ASSISTANT, encode_chat, messages_to_learn, render
from dair_hf.data.texts.forms import (
    COMPLETIONS,
    INPUT_IDS,
    LABEL,
    TEXT,
    TEXT_PAIR,
    TOOLS,
    TextForm,
    label_of,
    name_of,
    tools_of,
    view_of,
)
from dair_hf.data.view_columns import partner_numbers, view_prefix
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

NOTES = "_text_notes"  # column of what happened to the texts of a row, dropped after it was read
CUT_INPUT, CUT_TARGET, NO_END, EMPTY_INPUT, EMPTY_TARGET = 1, 2, 4, 8, 16  # bits of a note


@dataclass(frozen=True)
class ModelNeeds:
    """Requirements of a model on encoded texts."""

    loss: str | None
    name: str
    limit: int | None = None
    label2id: Mapping[str, int] = field(default_factory=dict)
    num_labels: int = 0
    before_prompt: tuple[int, ...] = ()
    before_target: tuple[int, ...] = ()
    after_target: tuple[int, ...] = ()
    ends: frozenset[int] = frozenset()
    limit_option: str = "max_length"

    @property
    def limit_setting(self) -> str:
        """The limit as the user sets it: `max_length=512`, or `--max-tokens 512`."""
        return f"{self.limit_option}{' ' if self.limit_option.startswith('-') else '='}{self.limit}"


class TextEncoder:
    """Function for `Dataset.map(with_indices=True)` that turns the texts of all views into the columns of a model.

    - A classifier or a regression: the tokens of `text`, or of `text` and `text_pair`; the label.
    - An encoder-decoder: the tokens of the prompt; as labels the completion with its end token.
    - A decoder-only model: one sequence of both, with the prompt masked in the labels.
    - A chat: one sequence by the chat template, of which the turns of the assistant are labels.

    Texts longer than `needs.limit` are cut: a prompt of a decoder-only model on the left, since its end leads to the
    answer; a target on the right, before its end token; others on `tokenizer.truncation_side`.

    A note says which texts are cut, empty or white space. An empty target is learned as the end of the answer alone.
    """

    revision = 6  # part of the fingerprint by which `Dataset.map` finds earlier results

    def __init__(
        self,
        form: TextForm,
        tokenizer: Any,
        needs: ModelNeeds,
        columns: Sequence[str],
        *,
        answers: bool = False,
        prompts: bool = False,
        names_rows: bool = False,
    ) -> None:
        self.form, self.tokenizer, self.needs, self.answers = form, tokenizer, needs, answers
        self.names_rows = names_rows and ROW_ID not in columns
        self.made_by = self.revision
        self.views = [0, *partner_numbers(columns)]
        self.prompts = prompts
        self.has_target = [not prompts] * len(self.views)
        self.names = [INPUT_IDS, "attention_mask"]
        if TEXT in form.inputs:
            self.has_target = [view_prefix(view) + LABEL in columns for view in self.views]
            if TEXT_PAIR in columns and "token_type_ids" in tokenizer.model_input_names:
                self.names.append("token_type_ids")

    def __call__(self, row: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
        """Return the columns of the model for all views; None for an absent partner."""
        columns: dict[str, Any] = {}
        where, notes = name_of(row, number), 0
        for view, has_target in zip(self.views, self.has_target, strict=True):
            prefix = view_prefix(view)
            content = view_of(row, self.form, view, where)
            encoded: dict[str, Any] = {}
            if content is not None:
                encoded, note = self._encoded(content, row, where, prefix)
                notes |= note | _empty_texts(content, self.form)
            names = [*self.names, LABELS] if has_target else self.names
            columns |= {prefix + name: encoded.get(name) for name in names}
        if self.names_rows:
            columns[ROW_ID] = str(number)
        return {**columns, NOTES: notes}

    def _encoded(
        self, content: Mapping[str, Any], row: Mapping[str, Any], where: str, prefix: str
    ) -> tuple[dict[str, Any], int]:
        """Return the columns of a view, and a note on its texts."""
        form, needs = self.form, self.needs
        if TEXT in form.inputs:
            encoded, note = self._input(*(content[name] for name in (TEXT, TEXT_PAIR) if name in content))
            if not self.prompts:
                column = prefix + LABEL
                label = label_of(content[LABEL], needs.loss, needs.label2id, needs.num_labels, where, column)
                encoded[LABELS] = label
            return encoded, note
        source = content[form.inputs[0]]
        if isinstance(source, list):
            if needs.loss != "causal":
                expected = f"texts, since {needs.name} is not decoder-only"
                raise DataError(f"{where}, column {prefix + form.inputs[0]!r}: expected {expected}, got messages")
            return self._messages(content, where, prefix, tools_of(row, prefix, where))
        return self._prompt(source) if self.prompts else self._completion(source, content[str(form.target)])

    def _prompt(self, text: str) -> tuple[dict[str, Any], int]:
        """Encode a prompt without an answer."""
        if self.needs.loss == "seq2seq":
            return self._input(text)
        return self._cut_prompt(self._ids(text), self.needs.before_prompt)

    def _cut_prompt(self, ids: list[int], before: Sequence[int] = ()) -> tuple[dict[str, Any], int]:
        room = len(ids) if self.needs.limit is None else max(1, self.needs.limit - 1 - len(before))  # for an answer
        kept = [*before, *ids[-room:]]
        return {INPUT_IDS: kept, "attention_mask": [1] * len(kept)}, CUT_INPUT * (len(ids) > room)

    def _messages(self, content: Mapping[str, Any], where: str, prefix: str, tools: Any) -> tuple[dict[str, Any], int]:
        """Encode messages: of a prompt without an answer, a prompt and a completion, or a chat."""
        if self.prompts:
            messages = content[self.form.inputs[0]]
            messages = messages[: len(messages) - (messages[-1]["role"] == ASSISTANT)]
            text = render(self.tokenizer, messages, where, tools=tools, add_generation_prompt=True)
            return self._cut_prompt(self._ids(text))
        messages, first = messages_to_learn(content, self.form, where, prefix)
        if self.answers:
            last = max(number for number, message in enumerate(messages) if message["role"] == ASSISTANT)
            return self._fitted(messages[: last + 1], last, where, tools)
        if self.form is COMPLETIONS:
            return self._fitted(messages, first, where, tools)
        chat = encode_chat(self.tokenizer, messages, self.needs.ends, where, tools=tools)
        limit, note = self.needs.limit, 0 if chat.has_ends else NO_END
        if limit is None or len(chat.ids) <= limit:
            return _sequence(chat.ids, chat.is_target), note
        kept = slice(-limit, None) if self.tokenizer.truncation_side == "left" else slice(limit)
        if not any(chat.is_target[kept][1:]):  # the first token is predicted from nothing
            raise DataError(
                f"{where}: expected a token of the assistant within {self.needs.limit_setting}, got none; raise it, or "
                "leave the row out"
            )
        is_cut = CUT_TARGET if sum(chat.is_target[kept]) < sum(chat.is_target) else CUT_INPUT
        return _sequence(chat.ids[kept], chat.is_target[kept]), note | is_cut

    def _input(self, *texts: str) -> tuple[dict[str, Any], int]:
        limit = self.needs.limit
        encoded = self.tokenizer(*texts, truncation=limit is not None, max_length=limit)
        is_cut = limit is not None and len(encoded[INPUT_IDS]) == limit and self._is_longer(limit, *texts)
        return {name: list(encoded[name]) for name in self.names if name in encoded}, CUT_INPUT * is_cut

    def _is_longer(self, limit: int, *texts: str) -> bool:
        return len(self.tokenizer(*texts, truncation=False, verbose=False)[INPUT_IDS]) > limit

    def _completion(self, prompt: str, target: str) -> tuple[dict[str, Any], int]:
        needs = self.needs
        around = len(needs.before_target) + len(needs.after_target)
        prompt_ids = [] if needs.loss == "seq2seq" else self._ids(prompt)
        ids = self._ids(prompt + target) if prompt_ids else []
        # Tokenized alone, a target would begin with a space where a tokenizer puts one before each text.
        follows = bool(prompt_ids) and ids[: len(prompt_ids)] == prompt_ids
        ids = ids[len(prompt_ids) :] if follows else self._ids(target)
        if needs.after_target and ids[-len(needs.after_target) :] == list(needs.after_target):
            ids = ids[: -len(needs.after_target)]  # the text has its end token
        if needs.loss == "seq2seq":
            room = len(ids) if needs.limit is None else max(0, needs.limit - around)
            encoded, note = self._input(prompt)
            encoded[LABELS] = [*needs.before_target, *ids[:room], *needs.after_target]
            return encoded, note | CUT_TARGET * (len(ids) > room)
        start = list(needs.before_prompt)
        # Prompt and target share the sequence; at least one token of the prompt is kept.
        room = len(ids) if needs.limit is None else max(0, needs.limit - len(start) - 1 - around)
        labels = [*needs.before_target, *ids[:room], *needs.after_target]
        kept = len(prompt_ids) if needs.limit is None else max(0, needs.limit - len(start) - len(labels))
        cut = CUT_INPUT * (len(prompt_ids) > kept) | CUT_TARGET * (len(ids) > room)
        left = [*start, *prompt_ids[max(0, len(prompt_ids) - kept) :]]
        return _sequence([*left, *labels], [False] * len(left) + [True] * len(labels)), cut

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def _fitted(self, messages: list[dict[str, Any]], first: int, where: str, tools: Any) -> tuple[dict[str, Any], int]:
        """Encode messages of which those from `first` on are the answer: too long, the prompt is cut on its left."""
        chat = encode_chat(self.tokenizer, messages, self.needs.ends, where, first=first, tools=tools)
        ids, is_target = chat.ids, chat.is_target
        begin, end = is_target.index(True), len(ids) - is_target[::-1].index(True)
        ids, is_target = ids[:end], is_target[:end]  # what follows the last target has no effect
        note = 0 if chat.has_ends else NO_END
        limit = self.needs.limit
        if limit is None or end <= limit:
            return _sequence(ids, is_target), note
        kept = max(1, limit - (end - begin))
        note |= CUT_INPUT if end - begin < limit else CUT_INPUT | CUT_TARGET
        cut = slice(begin - kept, begin - kept + limit)
        return _sequence(ids[cut], is_target[cut]), note


def _empty_texts(content: Mapping[str, Any], form: TextForm) -> int:
    """Return a note on the empty texts of a view; in a chat, on turns of the user and of the assistant."""
    note = 0
    for column, value in content.items():
        bit = EMPTY_TARGET if column == form.target else EMPTY_INPUT
        if isinstance(value, str):
            note |= bit * (not value.strip())
        elif isinstance(value, list) and column not in (LABEL, TOOLS):
            for message in value:
                text = message.get("content") or ""
                # A turn of the assistant may consist of calls of tools, and the system message may be empty.
                if isinstance(text, str) and not text.strip() and set(message) <= {"role", "content"}:
                    note |= {ASSISTANT: EMPTY_TARGET, "user": EMPTY_INPUT}.get(message["role"], 0)
    return note


def _sequence(ids: list[int], is_target: list[bool]) -> dict[str, Any]:
    labels = [token if counts else IGNORE_INDEX for token, counts in zip(ids, is_target, strict=True)]
    return {INPUT_IDS: ids, "attention_mask": [1] * len(ids), LABELS: labels}
