"""Tokens of chats: which of them the assistant wrote, against templates rendered by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dair_hf.data.texts.chat import encode_chat
from dair_hf.errors import DataError
from tests.fixtures import chats

CHAT = [
    {"role": "user", "content": "2 + 2 ?"},
    {"role": "assistant", "content": " 4, \u00e9 "},
    {"role": "user", "content": "assistant\nsays 4"},
    {"role": "assistant", "content": "5"},
]
SYSTEM = [{"role": "system", "content": "Be brief ."}, *CHAT]
TEMPLATES = {
    "chatml": chats.CHATML, "marked": chats.MARKED, "llama3": chats.LLAMA3, "mistral": chats.MISTRAL,
    "gemma": chats.GEMMA,
}  # fmt: skip


def encoded(tokenizer: Any, messages: Any, first: int = 0) -> Any:
    return encode_chat(tokenizer, messages, {tokenizer.eos_token_id}, "row 'a'", first=first)


def learned_text(tokenizer: Any, made: Any) -> str:
    return str(tokenizer.decode([token for token, counts in zip(made.ids, made.is_target, strict=True) if counts]))


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("messages", [CHAT, SYSTEM, CHAT[:3]], ids=["chat", "system", "open"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_turns_of_the_assistant(name: str, messages: list[dict[str, str]], first: int) -> None:
    template = TEMPLATES[name]
    tokenizer = chats.tokenizer(template)
    if (name == "mistral" and messages is SYSTEM) or (first and messages is CHAT[:3]) or len(messages) == first:
        with pytest.raises(DataError, match="^row 'a'"):
            encoded(tokenizer, messages, first=first)
        return
    ids: list[int] = []
    targets: list[bool] = []
    turn = 0
    skipped = sum(message["role"] == "assistant" for message in messages[:first])
    for text, learned in chats.by_hand(template, messages):
        part = tokenizer(text, add_special_tokens=False).input_ids
        turn += learned
        ids += part
        targets += [learned and turn > skipped] * len(part)
    made = encoded(tokenizer, messages, first=first)
    assert made.ids == ids and made.is_target == targets and made.has_ends and any(targets)


def test_without_the_end_token_of_the_template_answers_do_not_end() -> None:
    tokenizer = chats.tokenizer(chats.CHATML, end="</s>")
    made = encoded(tokenizer, CHAT)
    assert not made.has_ends
    # The line break after each turn is then learned, too.
    assert sum(made.is_target) == len(" 4, \u00e9 5".encode()) + 2 * 2


def test_every_turn_needs_an_end_token() -> None:
    """A template that ends all turns but the last message."""
    text = "{% generation %}{{ m['content'] + END }}{% endgeneration %}"
    template = chats.MARKED.replace(
        text.replace("END", "'<|im_end|>'"), text.replace("END", "('' if loop.last else '<|im_end|>')")
    )
    assert template != chats.MARKED
    tokenizer = chats.tokenizer(template, end="<|im_end|>")
    has_ends = {len(chat): encoded(tokenizer, chat).has_ends for chat in (CHAT, CHAT[:3])}
    assert has_ends == {4: False, 3: True}


def test_thinking_that_is_dropped_later_is_refused_and_that_of_the_last_turn_is_learned() -> None:
    tokenizer = chats.tokenizer(chats.THINKING)
    with pytest.raises(DataError, match="^row 'a': .*message 1.*'<think></think>"):
        encoded(tokenizer, CHAT)
    made = encoded(tokenizer, CHAT, first=3)
    assert learned_text(tokenizer, made) == "<think></think>5<|im_end|>"


def test_a_token_never_reaches_from_the_prompt_into_the_answer() -> None:
    """With a merge of the last byte of the prompt and the first of the answer, generation would read another prompt."""
    tokenizer = chats.tokenizer("{% for m in messages %}{{ m['role'][0] + ':' + m['content'] }}{% endfor %}"
                                "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}")  # fmt: skip
    tokenizer.add_tokens([":x"])
    messages = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "xy"}]
    one_pass = tokenizer("u:ba:xy", add_special_tokens=False).input_ids
    made = encode_chat(tokenizer, messages, set(), "row 'a'")
    prompt = tokenizer("u:ba:", add_special_tokens=False).input_ids
    assert made.ids[: len(prompt)] == prompt and len(made.ids) == len(one_pass) + 1
    assert tokenizer.decode(made.ids[len(prompt) :]) == "xy" and made.is_target == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    ("template", "messages", "place"),
    [
        (None, CHAT, "the tokenizer has no chat template"),
        (chats.CHATML, CHAT[:1], "row 'a'"),
        (chats.CHATML, [CHAT[0], {"role": "asistant", "content": "4"}], "row 'a'"),
        (chats.CHATML, CHAT[1:], "row 'a'"),
        (chats.MISTRAL, [CHAT[0], CHAT[0], CHAT[1]], "row 'a': the chat template"),
        (chats.CHATML, [CHAT[0], {"role": "assistant"}], "row 'a': the chat template"),
    ],
)
def test_chats_that_cannot_be_used(template: str | None, messages: list[dict[str, str]], place: str) -> None:
    tokenizer = chats.tokenizer(template)
    with pytest.raises(DataError, match=f"^{place}"):
        encoded(tokenizer, messages)


MARKED_OF_THINKERS = chats.MARKED.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_generation_prompt_that_opens_a_thought_takes_nothing_from_a_marked_answer(first: int) -> None:
    """Training templates of DeepSeek and others are so: the chat itself has no thought."""
    assert MARKED_OF_THINKERS != chats.MARKED
    plain, thinking = chats.tokenizer(chats.MARKED), chats.tokenizer(MARKED_OF_THINKERS, end="<|im_end|>")
    made = encoded(thinking, CHAT, first=first)
    assert made == encoded(plain, CHAT, first=first)
    assert learned_text(thinking, made) == (" 4, é <|im_end|>" if first < 3 else "") + "5<|im_end|>"


def words_tokenizer(turn: str) -> PreTrainedTokenizerFast:
    """Tokenizer of words, whose white space no token covers, with a template that writes turns of the assistant so."""
    words = ["[UNK]", "</s>", "user", "assistant", "a", "b", "c", "d"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="[UNK]")
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{{{{ m['role'] + ' ' }}}}{{% if m['role'] == 'assistant' %}}{turn}{{% else %}}"
        "{{ m['content'] + ' ' }}{% endif %}{% if not loop.last %}{{ ' ' }}{% endif %}{% endfor %}"
    )
    return tokenizer


FOUR_WORDS = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, "abcd", strict=True)]


@pytest.mark.parametrize("end", ["</s>", "</s> ", "</s>\n\n"])
def test_every_marked_turn_is_learned_whatever_it_ends_with(end: str) -> None:
    """Also if no token covers its last character, where `apply_chat_template` stops marking."""
    tokenizer = words_tokenizer(f"{{% generation %}}{{{{ m['content'] + ' {end}' }}}}{{% endgeneration %}}")
    made = encode_chat(tokenizer, FOUR_WORDS, {1}, "row 'a'")
    assert made.ids == [2, 4, 3, 5, 1, 2, 6, 3, 7, 1]
    assert made.is_target == [False, False, False, True, True, False, False, False, True, True]
    assert encode_chat(tokenizer, FOUR_WORDS, {1}, "row 'a'", first=3).is_target == [False] * 8 + [True] * 2


def test_a_template_that_marks_parts_of_turns() -> None:
    part = "{% generation %}{{ TEXT + ' ' }}{% endgeneration %}"
    tokenizer = words_tokenizer(part.replace("TEXT", "m['content']") + part.replace("TEXT", "'</s>'"))
    made = encode_chat(tokenizer, FOUR_WORDS, {1}, "row 'a'", first=3)
    assert made.ids == [2, 4, 3, 5, 1, 2, 6, 3, 7, 1] and made.is_target == [False] * 8 + [True] * 2


def test_a_template_that_marks_the_last_turn_only() -> None:
    template = chats.MARKED.replace("m['role'] == 'assistant'", "m['role'] == 'assistant' and loop.last")
    tokenizer = chats.tokenizer(template, end="<|im_end|>")
    for first in (0, 1, 3):
        made = encoded(tokenizer, CHAT, first=first)
        assert learned_text(tokenizer, made) == "5<|im_end|>"


def test_a_token_that_hides_a_space_of_the_prompt_is_split() -> None:
    """With trimmed offsets " b" seems to begin at "b"."""
    tokenizer = chats.tokenizer("{% for m in messages %}{{ m['role'][0] + ': ' + m['content'] }}{% endfor %}"
                                "{% if add_generation_prompt %}{{ 'a: ' }}{% endif %}")  # fmt: skip
    tokenizer.add_tokens([AddedToken(" b", normalized=False)])
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "bc"}]
    for trim in (False, True):
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
        made = encode_chat(tokenizer, messages, set(), "row 'a'")
        prompt = tokenizer("u: xa: ", add_special_tokens=False).input_ids
        assert made.ids[: len(prompt)] == prompt and made.is_target == [False] * len(prompt) + [True] * 2


ASKED = "<|im_start|>user\n2 + 2 ?<|im_end|>\n<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("template", "content", "learned"),
    [
        (chats.OPENING, "<think>\na 2 and a 2\n</think>\n\n4", "a 2 and a 2\n</think>\n\n4<|im_end|>"),
        (chats.OPENING, " <think>two</think> 4 \n", "two</think> 4 \n<|im_end|>"),
        (chats.OPENING, "<think>\n\n</think>\n\n4", "\n</think>\n\n4<|im_end|>"),
        (chats.OPENING, "<think>\n4</think>", "4</think><|im_end|>"),
        (chats.OPENING.replace("[-1] +", "[-1] | trim +"), "<think>two</think>\n4\n", "two</think>\n4<|im_end|>"),
        (chats.EMPTY_THOUGHT, "4", "</think>4<|im_end|>"),
        (chats.EMPTY_THOUGHT, "<think>\ntwo\n</think>\n4", "two\n</think>\n4<|im_end|>"),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_an_answer_goes_on_from_a_generation_prompt_that_opens_a_thought(
    first: int, template: str, content: str, learned: str
) -> None:
    tokenizer = chats.tokenizer(template)
    messages = [CHAT[0], {"role": "assistant", "content": content}]
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(prompt) == ASKED
    answer = tokenizer(learned, add_special_tokens=False).input_ids
    made = encoded(tokenizer, messages, first=first)
    rest = made.ids[len(prompt) + len(answer) :]
    assert made.ids == prompt + answer + rest and tokenizer.decode(rest).strip() == "" and made.has_ends
    assert made.is_target == [False] * len(prompt) + [True] * len(answer) + [False] * len(rest)


def test_an_answer_without_the_opened_thought_is_refused_and_both_remedies_help() -> None:
    tokenizer = chats.tokenizer(chats.OPENING)
    with pytest.raises(DataError, match="^row 'a', message 1: .*<think>"):
        encoded(tokenizer, CHAT[:2])
    begun = {"role": "assistant", "content": "<think>\n\n</think>\n\n4"}
    assert encoded(tokenizer, [CHAT[0], begun]).has_ends
    tokenizer.chat_template = tokenizer.chat_template.replace("<think>\n' }}", "' }}")
    made = encoded(tokenizer, CHAT)
    assert learned_text(tokenizer, made) == " 4, \u00e9 <|im_end|>5<|im_end|>"


@pytest.mark.parametrize("template", [chats.OPENING, chats.EMPTY_THOUGHT])
def test_earlier_thoughts_are_refused_and_the_last_turn_as_completion_is_learned(template: str) -> None:
    tokenizer = chats.tokenizer(template)
    turn = {"role": "assistant", "content": "<think>\ntwo\n</think>\n4"}
    messages = [CHAT[0], turn, CHAT[2], turn]
    with pytest.raises(DataError, match="message 1"):
        encoded(tokenizer, messages)
    made = encoded(tokenizer, messages, first=3)
    prompt = tokenizer.apply_chat_template(messages[:3], add_generation_prompt=True, return_dict=False)
    assert made.ids[: len(prompt)] == prompt and made.is_target.index(True) == len(prompt)
    assert learned_text(tokenizer, made) == "two\n</think>\n4<|im_end|>"


@pytest.mark.parametrize(
    ("template", "content"),
    [
        (chats.EMPTY_THOUGHT.replace("assistant\n<think>\n", "assistant\n<think></think>"), "<think>\ntwo</think>4"),
        (chats.OPENING.replace("[-1] +", "[-1] | upper +"), "<think>two</think>four"),
    ],
    ids=["ended", "rewritten"],
)
def test_an_answer_that_does_not_go_on_from_the_generation_prompt_is_refused(template: str, content: str) -> None:
    tokenizer = chats.tokenizer(template)
    with pytest.raises(DataError, match="^row 'a', message 1"):
        encoded(tokenizer, [CHAT[0], {"role": "assistant", "content": content}])
