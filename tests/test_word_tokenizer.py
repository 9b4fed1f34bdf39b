"""The word tokenizer: vocabulary, splitting, pairs of texts, and saving."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dair_hf.errors import DataError
from dair_hf.word_tokenizer import END, PAD, START, UNKNOWN, build_word_tokenizer

TEXTS = ["What is this?", "What's the man's hat?", "Is the man in the hat?", "how many hats?"]
# the 3; what, 's, man, hat, is: 2, in alphabetical order ("'" comes before letters); the others once.
WORDS = ["the", "'s", "hat", "is", "man", "what"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_word_tokenizer(TEXTS)


def test_ids_by_count_then_alphabet(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == [PAD, UNKNOWN, *WORDS]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 1)
    assert tokenizer("What is the zebra?").input_ids == [7, 5, 2, 1]
    everything = build_word_tokenizer(TEXTS, min_count=1)
    assert len(everything) == 2 + 6 + 5
    assert everything.convert_ids_to_tokens(list(range(8, 13))) == ["hats", "how", "in", "many", "this"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What's the MAN'S hat?!", "what 's the man 's hat"),
        ("what\u2019s", "what 's"),
        ("isn't it", "isn 't it"),
        ("the men's and 'his' hats'", "the men 's and his hats"),
        ("a t-shirt/hat_band, or 3.5", "a t shirt hat band or 3 5"),
        ("Caf\u00e9 \u00c9T\u00c9", "caf\u00e9 \u00e9t\u00e9"),
        ("cafe\u0301", "caf\u00e9"),
        ("\u4ec0\u4e48 \u2014 \U0001f600?", "\u4ec0\u4e48"),
        ("? ! ...", ""),
        ("", ""),
        ("'", ""),
    ],
)
def test_words_of_a_text(text: str, words: str) -> None:
    assert build_word_tokenizer([text, "x"], min_count=1).tokenize(text) == words.split()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abCD 019'?-_.,\n\t\"", max_size=30))
def test_ascii_words_match_a_regular_expression(text: str) -> None:
    expected = re.findall(r"[a-z0-9]+|(?<=[a-z0-9])'[a-z]+", text.lower())
    assert build_word_tokenizer([text, "x"], min_count=1).tokenize(text) == expected


def test_names_of_special_tokens_are_words(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert one("is <pad> the").input_ids == [5, 1, 2]
        assert one("<unk>").input_ids == [1]


def test_saved_and_loaded(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    for text in [*TEXTS, "What\u2019s a zebra's hat? <pad>", ""]:
        assert loaded(text).input_ids == tokenizer(text).input_ids
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.model_max_length) == (0, 1, 64)
    batch = loaded(["the hat", "is"], padding=True)
    assert batch["input_ids"] == [[2, 4], [5, 0]]
    assert batch["attention_mask"] == [[1, 1], [1, 0]]


def test_two_texts_are_told_apart(tmp_path: Path) -> None:
    plain, delimited = (build_word_tokenizer(["is it"], min_count=1, delimiters=given) for given in (False, True))
    assert plain("is it", "it").input_ids == [2, 3, 3]
    assert plain("is it", "it").token_type_ids == [0, 0, 1]
    assert delimited.convert_ids_to_tokens([0, 1, 2, 3]) == [PAD, UNKNOWN, START, END]
    delimited.save_pretrained(tmp_path)
    for one in (delimited, AutoTokenizer.from_pretrained(tmp_path)):
        assert one("It is").input_ids == [2, 5, 4, 3]
        assert one("is it", "it").input_ids == [2, 4, 5, 3, 5, 3]
        assert one("is it", "it").token_type_ids == [0, 0, 0, 0, 1, 1]
        assert (one.cls_token, one.sep_token) == (START, END)
        assert one("<s>").input_ids == [2, 1, 3]  # the letter s, not the delimiter
    assert plain.cls_token is None


@pytest.mark.parametrize(("texts", "count"), [(["is it?"], 2), ([], 1)])
def test_texts_without_frequent_words_are_refused(texts: list[str], count: int) -> None:
    with pytest.raises(DataError, match="texts"):
        build_word_tokenizer(texts, min_count=count)
