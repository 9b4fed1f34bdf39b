"""Encoding of questions as word ids."""

from __future__ import annotations

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerFast

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.questions import encode_batch, encode_questions
from dair_hf.word_tokenizer import build_word_tokenizer

QUESTIONS = ["What is this?", "What's the man's hat?", "Is the man in the hat?", "how many hats?"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_word_tokenizer(QUESTIONS)


def test_rows_get_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Dataset.from_dict({"row_id": ["a", "b", "c", "d"], "question": ["What is it?", "?", None, "The hat"]})
    encoded = encode_questions(rows, tokenizer)
    assert encoded["input_ids"][:] == [[7, 5, 1], [1], None, [2, 4]]
    assert encoded.features["input_ids"].feature.dtype == "int32"
    assert encoded.column_names == ["row_id", "question", "input_ids"]
    without = rows.select([2]).cast_column("question", rows.features["question"])
    assert encode_questions(without, tokenizer)["input_ids"][:] == [None]


def test_long_question_is_truncated() -> None:
    short = build_word_tokenizer(QUESTIONS, model_max_length=3)
    assert encode_batch({"question": ["the man is the hat", "the"]}, short) == {"input_ids": [[2, 6, 5], [2]]}


def test_fingerprint_of_the_encoding(tokenizer: PreTrainedTokenizerFast) -> None:
    """Encoding leaves the tokenizer unchanged, so that `Dataset.map` finds its cached result."""
    before = Hasher.hash(tokenizer)
    encode_batch({"question": ["the man " * 100]}, tokenizer)
    assert Hasher.hash(tokenizer) == before


def test_rows_without_questions_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError, match=r"column 'question' is missing; the data has \['text'\]"):
        encode_questions(Dataset.from_dict({"text": ["what"]}), tokenizer)
