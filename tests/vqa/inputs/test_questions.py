"""The question tokenizer: vocabulary, splitting, saving, and encoding of rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.questions import (
    PAD,
    UNKNOWN,
    build_question_tokenizer,
    count_words,
    encode_batch,
    encode_questions,
)

QUESTIONS = ["What is this?", "What's the man's hat?", "Is the man in the hat?", "how many hats?"]
# the 3; what, 's, man, hat, is: 2, in alphabetical order ("'" comes before letters); the others once.
WORDS = ["the", "'s", "hat", "is", "man", "what"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_question_tokenizer(QUESTIONS)


def test_ids_by_count_then_alphabet(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == [PAD, UNKNOWN, *WORDS]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 1)
    assert tokenizer("What is the zebra?").input_ids == [7, 5, 2, 1]
    everything = build_question_tokenizer(QUESTIONS, min_count=1)
    assert len(everything) == 2 + 6 + 5
    assert everything.convert_ids_to_tokens(list(range(8, 13))) == ["hats", "how", "in", "many", "this"]


def test_order_of_questions_does_not_matter(tokenizer: PreTrainedTokenizerFast) -> None:
    assert build_question_tokenizer(QUESTIONS[::-1]).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("question", "words"),
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
def test_words_of_a_question(question: str, words: str) -> None:
    assert sorted(count_words([question]).elements()) == sorted(words.split())
    known = build_question_tokenizer([question, "x"], min_count=1)
    assert known.tokenize(question) == words.split()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abCD 019'?-_.,\n\t\"", max_size=30))
def test_ascii_words_match_a_regular_expression(text: str) -> None:
    expected = re.findall(r"[a-z0-9]+|(?<=[a-z0-9])'[a-z]+", text.lower())
    assert sorted(count_words([text]).elements()) == sorted(expected)


def test_names_of_special_tokens_are_words(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert one("is <pad> the").input_ids == [5, 1, 2]
        assert one("<unk>").input_ids == [1]


def test_saved_and_loaded(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    for question in [*QUESTIONS, "What\u2019s a zebra's hat? <pad>", ""]:
        assert loaded(question).input_ids == tokenizer(question).input_ids
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.model_max_length) == (0, 1, 64)
    batch = loaded(["the hat", "is"], padding=True)
    assert batch["input_ids"] == [[2, 4], [5, 0]]
    assert batch["attention_mask"] == [[1, 1], [1, 0]]


def test_rows_get_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Dataset.from_dict({"row_id": ["a", "b", "c", "d"], "question": ["What is it?", "?", None, "The hat"]})
    encoded = encode_questions(rows, tokenizer)
    assert encoded["input_ids"][:] == [[7, 5, 1], [1], None, [2, 4]]
    assert encoded.features["input_ids"].feature.dtype == "int32"
    assert encoded.column_names == ["row_id", "question", "input_ids"]
    without = rows.select([2]).cast_column("question", rows.features["question"])
    assert encode_questions(without, tokenizer)["input_ids"][:] == [None]


def test_long_question_is_truncated() -> None:
    short = build_question_tokenizer(QUESTIONS, model_max_length=3)
    assert encode_batch({"question": ["the man is the hat", "the"]}, short) == {"input_ids": [[2, 6, 5], [2]]}


def test_fingerprint_of_the_encoding(tokenizer: PreTrainedTokenizerFast) -> None:
    """Encoding leaves the tokenizer unchanged, so that `Dataset.map` finds its cached result."""
    before = Hasher.hash(tokenizer)
    encode_batch({"question": ["the man " * 100]}, tokenizer)
    assert Hasher.hash(tokenizer) == before


def test_errors(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError, match="none of 2 words occurs at least 2 times"):
        build_question_tokenizer(["is it?"])
    with pytest.raises(DataError, match="none of 0 words occurs at least 1 times; give the training questions"):
        build_question_tokenizer([], min_count=1)
    for setting in ({"min_count": 0}, {"model_max_length": 0}):
        with pytest.raises(DataError, match="must be at least 1"):
            build_question_tokenizer(QUESTIONS, **setting)
    with pytest.raises(DataError, match=r"column 'question' is missing; the data has \['text'\]"):
        encode_questions(Dataset.from_dict({"text": ["what"]}), tokenizer)
