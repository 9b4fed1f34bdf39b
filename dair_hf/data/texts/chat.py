"""Tokens of chats, and which of them the assistant wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from transformers.utils.chat_template_utils import render_jinja_template

from dair_hf.data.texts.forms import TextForm
from dair_hf.errors import DataError, explained

ASSISTANT = "assistant"
MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")  # around the assistant's turns, in some templates
OPENED = re.compile(r"<(\w+)>\s*\Z")  # what a generation prompt may open for the answer, such as <think>

Message = Mapping[str, Any]


class _ChatTokens(NamedTuple):
    """Tokens of a chat."""

    ids: list[int]
    is_target: list[bool]
    has_ends: bool


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    ends: Collection[int],
    where: str,
    *,
    first: int = 0,
    tools: Any = None,
) -> _ChatTokens:
    """Tokenize a chat by the template of the tokenizer, and find the tokens that the assistant wrote.

    A template with `{% generation %}` marks them itself. With any other template, turn i is what the rendered messages
    up to i add to the rendered messages before i with the generation prompt, if both are prefixes of the whole chat.
    The last turn always follows from the generation prompt, token by token as in generation.
    """
    with explained("the tokenizer has no chat template; set tokenizer.chat_template, or give texts", ValueError):
        template = tokenizer.get_chat_template(tools=tools)
    _require_turns(messages, where, first)
    if MARKS.search(template):
        text, spans = _marked_spans(tokenizer, messages, template, first, tools, where)
    else:
        text, spans = _assistant_spans(tokenizer, messages, where, first, tools)
    ids, turns = _tokens_of_spans(tokenizer, text, spans)
    return _until_ends(ids, turns, ends)


def _require_turns(messages: Sequence[Message], where: str, first: int) -> None:
    """Refuse a chat without a turn to learn, or whose first turn follows nothing."""
    roles = [message["role"] for message in messages]
    if ASSISTANT not in roles[first:] or roles[0] == ASSISTANT:
        raise DataError(f"{where}: expected turns of the {ASSISTANT} after other messages, got {', '.join(roles)}")


def messages_to_learn(
    content: Mapping[str, Any], form: TextForm, where: str, prefix: str
) -> tuple[list[dict[str, Any]], int]:
    """Return the messages of a view (`forms.view_of`), and the number of the first that can be a target."""
    messages, first = content[form.inputs[0]], 0
    place = f"{where}, column {prefix + (form.target or form.inputs[0])!r}"
    if form.target is None:
        _require_turns(messages, place, first)
        return messages, first
    first = len(messages)
    messages = messages + content[form.target]
    _require_turns(messages[first - 1 :], place, 1)  # the prompt ends with another role
    return messages, first


def render(
    tokenizer: Any, messages: Sequence[Message], where: str, *, tools: Any = None, add_generation_prompt: bool = False
) -> str:
    """Return a chat as text, by the template of the tokenizer."""
    # Errors of jinja2, and of any expression of the template; one may require that roles alternate.
    with explained(f"{where}: the chat template refuses its messages", Exception):
        text = tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    return str(text)


def _assistant_spans(
    tokenizer: Any, messages: Sequence[Message], where: str, first: int, tools: Any
) -> tuple[str, list[tuple[int, int]]]:
    """Return a chat as text, and the spans of characters that the assistant wrote, by differences of prefixes.

    The text leads to the last turn as the generation prompt does, also where the template writes a finished chat
    without what its generation prompt opens.
    """
    text = render(tokenizer, messages, where, tools=tools)
    turns = []
    for number, message in enumerate(messages):
        if number < first or message["role"] != ASSISTANT:
            continue
        before = render(tokenizer, messages[:number], where, tools=tools, add_generation_prompt=True)
        is_last = number + 1 == len(messages)
        after = text if is_last else render(tokenizer, messages[: number + 1], where, tools=tools)
        if not after.startswith(before):
            after = before + _continuation(before, after, message, f"{where}, message {number}")
        if is_last:
            text = after
        turns.append((number, before, after))
    for number, before, after in turns:
        if not (text.startswith(before) and text.startswith(after) and len(before) < len(after)):
            # Such as templates that drop the thinking of earlier turns.
            raise DataError(
                f"{where}: expected a chat template that writes message {number} as without later ones, or "
                f"{{% generation %}} in it; {_difference(text, before, after)}"
            )
    return text, [(len(before), len(after)) for _, before, after in turns]


def _continuation(before: str, after: str, message: Message, where: str) -> str:
    """Return what the assistant writes after a generation prompt with which the chat with its turn does not begin.

    Spaces and line breaks at the end of the prompt may be missing in the chat, and so may a thought that the prompt
    opens, if the content of the message has it.
    """
    shared = len(os.path.commonprefix([before, after]))
    if not before[shared:].strip():
        return after[shared:]
    tag, content = OPENED.search(before), message.get("content")
    if tag is not None and tag.start() <= shared and isinstance(content, str):
        begin, end = f"<{tag[1]}>", f"</{tag[1]}>"
        # The template writes the answer without its thought, and then what ends a turn.
        written, answer = after[tag.start() :].lstrip(), content.rpartition(end)[2].strip()
        if content.lstrip().startswith(begin) and end in content and written.startswith(answer):
            thought_and_answer = content.strip().removeprefix(begin).removeprefix(tag[0].removeprefix(begin))
            return thought_and_answer + written.removeprefix(answer)
    raise DataError(
        f"{where}: expected an answer that continues the generation prompt of the chat template, which ends with "
        f"{before[shared:][:30]!r}, got {after[shared:][:30]!r}"
    )


def _difference(text: str, before: str, after: str) -> str:
    """Return the words for the first place where a prefix differs from the whole text."""
    prefix = after if text.startswith(before) else before
    at = next((place for place, (a, b) in enumerate(zip(text, prefix, strict=False)) if a != b), len(text))
    return f"{prefix[at : at + 30]!r} became {text[at : at + 30]!r}"


def _marked_spans(
    tokenizer: Any, messages: Sequence[Message], template: str, first: int, tools: Any, where: str
) -> tuple[str, list[tuple[int, int]]]:
    """Return a chat as text, and the spans of characters that `{% generation %}` marks from message `first` on."""
    with explained(f"{where}: the chat template refuses its messages", Exception):
        # As `apply_chat_template` does, which keeps the spans to itself, and drops turns behind one whose last
        # character no token covers.
        texts, marked = render_jinja_template(
            conversations=[list(messages)],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
    text, spans = texts[0], [(begin, end) for begin, end in marked[0] if begin < end]
    if first:
        spans = spans[_spans_before(tokenizer, messages, first, tools, where, text, spans) :]
    if not spans:
        raise DataError(f"{where}: expected {{% generation %}} of the chat template to mark tokens")
    return text, spans


def _spans_before(
    tokenizer: Any,
    messages: Sequence[Message],
    first: int,
    tools: Any,
    where: str,
    text: str,
    spans: Sequence[tuple[int, int]],
) -> int:
    """Return how many marked spans belong to the messages before `first`.

    The generation prompt does not count: what it opens, such as a thought, the chat itself may not have.
    """
    roles = [message["role"] == ASSISTANT for message in messages]
    if len(spans) == sum(roles):  # each turn of the assistant is marked once
        return sum(roles[:first])
    prompt = render(tokenizer, messages[:first], where, tools=tools)
    if not text.startswith(prompt):
        raise DataError(
            f"{where}: expected a chat template that marks each turn of the assistant once, or writes the prompt of "
            f"message {first} as without it; {_difference(text, prompt, prompt)}"
        )
    return sum(begin < len(prompt) for begin, _ in spans)


def _tokens_of_spans(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the tokens of a text, and for each the number of its span from 1, or 0."""
    borders = [border for span in spans for border in span]
    if tokenizer.is_fast:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        if not any(_cuts_a_token(offsets, border) for border in borders if 0 < border < len(text)):
            numbers = [
                next((n for n, (begin, end) in enumerate(spans, 1) if begin <= at < end), 0) for at, _ in offsets
            ]
            return list(encoded["input_ids"]), numbers
    # A token must not reach from a prompt into an answer: generation reads the prompt alone.
    ids: list[int] = []
    turns: list[int] = []
    cuts = [0, *borders, len(text)]
    for number, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        part = tokenizer(text[begin:end], add_special_tokens=False).input_ids if begin < end else []
        ids += part
        turns += [number // 2 + 1 if number % 2 else 0] * len(part)
    return ids, turns


def _cuts_a_token(offsets: Sequence[tuple[int, int]], border: int) -> bool:
    """Return whether a token reaches over a border.

    Where spaces are trimmed from offsets, the token after the border may begin with the space before it.
    """
    return max((end for start, end in offsets if start < border), default=0) != border


def _until_ends(ids: list[int], turns: list[int], ends: Collection[int]) -> _ChatTokens:
    """Return the tokens of a chat; targets of each turn go up to its first end token."""
    ended: set[int] = set()
    is_target = []
    for token, turn in zip(ids, turns, strict=True):
        is_target.append(turn > 0 and turn not in ended)
        if turn and token in ends:
            ended.add(turn)
    return _ChatTokens(ids, is_target, ended == set(turns) - {0})
