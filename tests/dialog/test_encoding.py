"""Encoding of dialog rows: both views, truncation, and labels of decoder-only models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.errors import DataError
from tests.fixtures import tiny

WORDS = (
    "<pad> <s> </s> <unk> <user> <system> <belief> = ; | hotel-name hotel-area a inn oak house free ? yes east"
).split()
ID = {word: index for index, word in enumerate(WORDS)}
COLUMNS = ["input_ids", "attention_mask", "labels"]


def tokenizer(specials: bool = False, known: dict[str, int] = ID, **tokens: Any) -> PreTrainedTokenizerFast:
    """Words at white space; with `specials` as BART has it: `<s> ... </s>`."""
    inner = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if specials:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[(mark, known[mark]) for mark in ("<s>", "</s>")]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, **{"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", **tokens}
    )


def ids(text: str) -> list[int]:
    return [ID[word] for word in text.split()]


def history(*texts: str) -> list[dict[str, str]]:
    return [{"speaker": ("user", "system")[index % 2], "text": text} for index, text in enumerate(texts)]


def state(**slots: str | list[str]) -> list[dict[str, Any]]:
    return [
        {"slot": f"hotel-{name}", "values": value if isinstance(value, list) else [value]}
        for name, value in slots.items()
    ]


def batch(histories: list[Any], states: list[Any], augmented: tuple[list[Any], list[Any]] | None = None) -> Any:
    columns = {"history": histories, "state": states}
    if augmented is not None:
        columns |= {"augmented_history": augmented[0], "augmented_state": augmented[1]}
    return columns


TALK = history("oak house free ?", "yes", "a inn ?")
STATE = state(area="east", name="oak house")
SOURCE = "<user> oak house free ? <system> yes <user> a inn ?"
TARGET = "hotel-area = east ; hotel-name = oak house"


@pytest.mark.parametrize("specials", [False, True])
def test_source_and_target_by_hand(specials: bool) -> None:
    source = ids(f"<s> {SOURCE} </s>" if specials else SOURCE)
    # Encoder-decoder models shift the labels themselves, so the labels have no start token.
    assert DialogEncoder(tokenizer(specials))(batch([TALK], [STATE])) == {
        "input_ids": [source],
        "attention_mask": [[1] * len(source)],
        "labels": [ids(TARGET + " </s>")],
    }


@pytest.mark.parametrize("specials", [False, True])
def test_truncation_keeps_the_newest_words(specials: bool) -> None:
    encoder = DialogEncoder(tokenizer(specials), max_source_tokens=8)
    (encoded,) = encoder(batch([TALK], [STATE]))["input_ids"]
    assert encoded == ids("<s> <system> yes <user> a inn ? </s>" if specials else "free ? <system> yes <user> a inn ?")
    assert len(encoded) == 8


def test_long_targets_lose_their_end_and_keep_the_end_token() -> None:
    (encoded,) = DialogEncoder(tokenizer(), max_target_tokens=8)(batch([TALK], [STATE]))["labels"]
    assert encoded == ids("hotel-area = east ; hotel-name = oak </s>")
    (whole,) = DialogEncoder(tokenizer(), max_target_tokens=9)(batch([TALK], [STATE]))["labels"]
    assert whole == ids(TARGET + " </s>")


def test_causal_labels_are_the_target_only() -> None:
    encoded = DialogEncoder(tokenizer(specials=True), causal=True)(batch([TALK], [STATE]))
    # With the start token of the tokenizer, but without its end token: the target follows.
    prompt, target = ids("<s> " + SOURCE + " <belief>"), ids(TARGET + " </s>")
    assert encoded == {
        "input_ids": [prompt + target],
        "attention_mask": [[1] * len(prompt + target)],
        "labels": [[-100] * len(prompt) + target],
    }


def test_causal_truncation_keeps_the_belief_token_and_the_target() -> None:
    encoded = DialogEncoder(tokenizer(), max_source_tokens=8, max_target_tokens=8, causal=True)(batch([TALK], [STATE]))
    prompt, target = ids("? <system> yes <user> a inn ? <belief>"), ids("hotel-area = east ; hotel-name = oak </s>")
    assert encoded["input_ids"] == [prompt + target]
    assert encoded["labels"] == [[-100] * 8 + target]


def test_alternatives_are_written_as_the_preset_demands() -> None:
    states = [state(name=["a inn", "oak house"])]
    (encoded,) = DialogEncoder(tokenizer(), preset="parlai_v22")(batch([TALK], states))["labels"]
    assert encoded == ids("hotel-name = a inn | oak house </s>")
    with pytest.raises(DataError, match="^preset: "):
        DialogEncoder(tokenizer(), preset="best")


def test_lower_case_applies_to_source_and_target_of_both_views() -> None:
    shouted, states = history("OAK house Free ?"), [state(name=["A Inn"])]
    data = batch([TALK, shouted], states * 2, ([shouted, None], [states[0], None]))
    encoded = DialogEncoder(tokenizer(), lower_case=True)(data)
    assert encoded["input_ids"][1] == encoded["augmented_input_ids"][0] == ids("<user> oak house free ?")
    assert encoded["labels"][0] == encoded["augmented_labels"][0] == ids("hotel-name = a inn </s>")
    as_written = DialogEncoder(tokenizer())(data)
    assert as_written["input_ids"][1] == ids("<user> <unk> house <unk> ?")
    assert as_written["labels"][0] == ids("hotel-name = <unk> <unk> </s>")


@pytest.mark.parametrize("causal", [False, True])
def test_rows_without_partner_have_none_in_every_column(causal: bool) -> None:
    other = history("a inn free ?")
    encoder = DialogEncoder(tokenizer(), causal=causal)
    encoded = encoder(batch([TALK] * 3, [STATE] * 3, ([None, other, None], [None, state(name="a inn"), None])))
    assert sorted(encoded) == sorted([*COLUMNS, *(f"augmented_{name}" for name in COLUMNS)])
    for name in COLUMNS:
        assert [value is None for value in encoded[f"augmented_{name}"]] == [True, False, True]
        (alone,) = encoder(batch([other], [state(name="a inn")]))[name]
        assert encoded[f"augmented_{name}"][1] == alone
    nobody = encoder(batch([TALK], [STATE], ([None], [None])))
    assert [nobody[f"augmented_{name}"] for name in COLUMNS] == [[None]] * 3


def test_a_tokenizer_without_end_is_refused() -> None:
    with pytest.raises(DataError, match="end token"):
        DialogEncoder(tokenizer(eos_token=None))


@pytest.mark.parametrize(("kind", "causal"), [("t5", False), ("gpt2", True)])
def test_encoder_of_a_model(kind: str, causal: bool) -> None:
    limits, known = DialogConfig(max_source_tokens=19, max_target_tokens=13), tokenizer()
    assert DialogEncoder.for_model(tiny.model(kind), known, limits) == DialogEncoder(known, 19, 13, causal)


def test_encoder_of_a_model_with_forced_tokens_and_few_positions() -> None:
    bart, known = tiny.model("bart"), tokenizer()
    bart.generation_config.forced_bos_token_id = ID["<s>"]
    settings = DialogConfig(max_source_tokens=32, max_target_tokens=32, preset="parlai_v22", lower_case=True)
    encoder = DialogEncoder.for_model(bart, known, settings)
    assert encoder == DialogEncoder(known, 32, 32, False, (ID["<s>"],), preset="parlai_v22", lower_case=True)
    (found,) = encoder(batch([TALK], [STATE]))["labels"]
    assert found == ids(f"<s> {TARGET} </s>")
    (cut,) = replace(encoder, max_target_tokens=9)(batch([TALK], [STATE]))["labels"]
    assert cut == ids("<s> hotel-area = east ; hotel-name = oak </s>")
    with pytest.raises(DataError, match="max_target_tokens=33.* 32 positions"):
        DialogEncoder.for_model(bart, known, replace(settings, max_target_tokens=33))
    with pytest.raises(DataError, match="max_target_tokens=8.* 32 positions"):
        DialogEncoder.for_model(tiny.model("gpt2"), known, replace(settings, max_target_tokens=8))
