"""Spelling tokenizer: whole words or characters, lossless decoding, saving and loading."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dair_hf.dialog.tokenizer import DELIMITERS, END, PAD, SPEAKERS, build_tokenizer

TEXTS = [
    "<user> is oak house free at 12:30 ? <system> yes , it's free .",
    "hotel-name = oak house ; hotel-area = east",
    "<user> is it cheap ? <system> yes , oak house is .",
    "<user> is oak house cheap at 12:30 ?",
    "hotel-name = oak house ; hotel-area = west",
]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TEXTS, ["oak house"])


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)


def test_words_are_one_token_and_names_and_rare_words_are_spelled(tokenizer):
    assert tokenizer.tokenize("is oak cheap at 12:30") == ["▁is", "▁o", "a", "k", "▁cheap", "▁at", "▁12:30"]
    assert tokenizer.tokenize("elm west") == ["▁e", "l", "m", "▁w", "e", "s", "t"]  # "west" was met once
    assert tokenizer.tokenize("hotel-name = oak") == ["▁hotel-name", "▁=", "▁o", "a", "k"]


def test_spelled_words_have_only_single_characters(tokenizer):
    # "is" and "it" are words of the vocabulary, but not pieces of other words.
    assert tokenizer.tokenize("isit") == ["▁i", "s", "i", "t"]
    assert tokenizer.tokenize("isitzz?") == ["▁i", "s", "i", "t", "z", "z", "?"]


def test_a_name_word_in_the_text_is_spelled_unless_kept():
    texts = ["the oak and the house"] * 3
    assert build_tokenizer(texts, ["The OAK"]).tokenize("the house") == ["▁t", "h", "e", "▁house"]
    assert build_tokenizer(texts, ["the oak"], keep_words=["the"]).tokenize("the oak") == ["▁the", "▁o", "a", "k"]


def test_speakers_and_delimiters_are_single_tokens(tokenizer):
    assert tokenizer.tokenize("<user> ; = | \\ <system>") == ["▁<user>", "▁;", "▁=", "▁|", "▁\\", "▁<system>"]
    for marker in (*SPEAKERS, *DELIMITERS):
        assert len(tokenizer(marker, add_special_tokens=False).input_ids) == 1
    assert tokenizer("is").input_ids[-1] == tokenizer.eos_token_id
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD, END)
    assert tokenizer.pad_token_id == 0


@pytest.mark.parametrize(
    ("text", "restored"),
    [
        *((text, text) for text in ("zoë 日本語 ресторан 😀 e\u0301 i̇", "<0x41> <user>text <unk> ##a")),
        ("  Is\tOAK \n House  free ", "is oak house free"),
        ("is▁it", "is it"),  # the space marker
        ("is </s> it <pad>", "is it"),  # the names of special tokens
    ],
)
def test_decoding_restores_the_text(tokenizer, text, restored):
    assert round_trip(tokenizer, text) == restored


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_restored_in_lower_case_with_single_spaces(tokenizer, text):
    # Without the documented exceptions: the space marker, and the names of special tokens.
    for exception in ("▁", *tokenizer.all_special_tokens):
        text = text.replace(exception, "")
    assume(not any(token in text for token in tokenizer.all_special_tokens))
    # The normalizer of `tokenizers` and `str.lower` differ on a few letters.
    expected = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert round_trip(tokenizer, text) == expected
    if text.isascii() and text.isprintable():
        assert expected == " ".join(text.lower().split())


def test_saving_and_loading_changes_nothing(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "Zoë 日本 \\; elm"]:
        assert loaded(text).input_ids == tokenizer(text).input_ids
        assert round_trip(loaded, text) == round_trip(tokenizer, text)
    for name in ("vocab_size", "pad_token_id", "eos_token_id", "model_max_length"):
        assert getattr(loaded, name) == getattr(tokenizer, name)


def test_vocab_size_and_min_count_limit_the_whole_words():
    texts = ["cc cc cc bb bb aa"]
    small = build_tokenizer(texts, vocab_size=1, min_count=1)
    assert small.tokenize("cc bb aa") == ["▁cc", "▁b", "b", "▁a", "a"]
    assert build_tokenizer(texts, min_count=2).tokenize("cc bb aa") == ["▁cc", "▁bb", "▁a", "a"]
    assert build_tokenizer(texts, min_count=1).tokenize("cc bb aa") == ["▁cc", "▁bb", "▁aa"]


def test_the_vocabulary_does_not_depend_on_the_order_of_the_texts():
    assert build_tokenizer(TEXTS).get_vocab() == build_tokenizer(reversed(TEXTS)).get_vocab()
