"""Texts of all views as columns of a model: what is kept up to a limit, and what is noted of it."""

from __future__ import annotations

from typing import Any

import pytest

from dair_hf import DataError
from dair_hf.data.texts.encoder import CUT_INPUT, NOTES, ModelNeeds, TextEncoder
from dair_hf.data.texts.forms import CHATS, form_of
from tests.fixtures import chats, tiny

CHAT = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "bc"}]


def encoded_chat(limit: int | None, side: str = "right", answers: bool = False) -> dict[str, Any]:
    tokenizer = chats.tokenizer()
    tokenizer.truncation_side = side
    needs = ModelNeeds("causal", "LlamaForCausalLM", limit, ends=frozenset({tokenizer.eos_token_id}))
    return TextEncoder(CHATS, tokenizer, needs, ["messages"], answers=answers)({"messages": CHAT})


@pytest.mark.parametrize(("prompt", "kept"), [("w4 w5 w6", [5, 6]), ("w5 w6", [5, 6]), ("w6", [6])])
def test_prompts_leave_room_for_an_answer(prompt: str, kept: list[int]) -> None:
    form = form_of(["prompt"], True, "LlamaForCausalLM", prompts=True)
    note = CUT_INPUT if len(prompt.split()) > len(kept) else 0
    for before in ((), (1,)):  # such as a token at the beginning
        needs = ModelNeeds("causal", "LlamaForCausalLM", limit=3 + len(before), before_prompt=before)
        found = TextEncoder(form, tiny.tokenizer(), needs, ["prompt"], prompts=True)({"prompt": prompt})
        ids = [*before, *kept]
        assert found == {"input_ids": ids, "attention_mask": [1] * len(ids), NOTES: note}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_chat_as_long_as_the_limit_is_whole(side: str) -> None:
    whole = encoded_chat(None)
    length = len(whole["input_ids"])
    assert whole[NOTES] == 0
    assert encoded_chat(length, side) == encoded_chat(length + 1, side) == whole
    cut = encoded_chat(length - 1, side)
    assert cut[NOTES] == CUT_INPUT and len(cut["input_ids"]) == length - 1


def test_the_first_token_of_a_chat_is_not_learned() -> None:
    """It follows nothing, so a chat that keeps one target needs a token before it."""
    labels = encoded_chat(None)["labels"]
    last = max(place for place, label in enumerate(labels) if label != -100)
    enough = len(labels) - last + 1
    found = encoded_chat(enough, "left")["labels"]
    assert found == labels[-enough:] and sum(label != -100 for label in found[1:]) == 1
    with pytest.raises(DataError, match="max_length"):
        encoded_chat(enough - 1, "left")


def test_a_token_of_the_prompt_stays_before_an_answer_that_fills_the_limit() -> None:
    whole = encoded_chat(None, answers=True)["labels"]
    answer = [label for label in whole if label != -100]
    for limit, left in ((len(answer) + 2, answer), (len(answer), answer[:-1])):
        found = encoded_chat(limit, answers=True)["labels"]
        assert len(found) == limit and found[0] == -100 and [label for label in found if label != -100] == left


@pytest.mark.parametrize(
    "columns", [["augmented_completion"], ["augmented_prompt", "augmented_completion", "augmented_2_prompt"]]
)
def test_partners_have_an_input_and_all_or_none_a_target(columns: list[str]) -> None:
    for partners in ([], ["augmented_prompt"]):
        assert str(form_of(["prompt", "completion", *partners], True, "Llama")) == "prompt and completion"
    with pytest.raises(DataError, match="augmented_"):
        form_of(["prompt", "completion", *columns], True, "Llama")
