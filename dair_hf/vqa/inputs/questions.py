"""Questions as word ids for small recurrent networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.collator import INPUT_IDS

QUESTION = "question"


def encode_batch(batch: Mapping[str, Sequence[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    """Encode the column `question` of a batch of rows; None stays None. See `encode_questions`."""
    questions = batch[QUESTION]
    texts = [question for question in questions if question is not None]
    # Truncated here: `truncation=True` would change the state of the tokenizer and so the fingerprint of `Dataset.map`.
    ids = iter(tokenizer(texts, return_attention_mask=False)[INPUT_IDS] if texts else [])
    limit, unknown = tokenizer.model_max_length, [tokenizer.unk_token_id]
    return {INPUT_IDS: [None if question is None else next(ids)[:limit] or unknown for question in questions]}


def encode_questions(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Add the word ids of every question: `input_ids`, a list of int32.

    Args:
        rows: Rows or edits with the column `question`.
        tokenizer: Tokenizer from `build_word_tokenizer`.

    Returns:
        The rows with `input_ids`, truncated to `tokenizer.model_max_length`. A question without words ("???") becomes
        one unknown word, since a recurrent network needs at least one.

    Raises:
        DataError: The rows have no column `question`.

    Example:
        >>> from dair_hf.word_tokenizer import build_word_tokenizer
        >>> tokenizer = build_word_tokenizer(["what is it"], min_count=1)
        >>> encode_questions(Dataset.from_dict({"question": ["Is it?", "?"]}), tokenizer)["input_ids"][:]
        [[2, 3], [1]]
    """
    if QUESTION not in rows.column_names:
        raise DataError(f"column {QUESTION!r} is missing; the data has {rows.column_names}")
    features = Features({**rows.features, INPUT_IDS: List(Value("int32"))})
    return rows.map(
        encode_batch, batched=True, fn_kwargs={"tokenizer": tokenizer}, features=features, desc="Encoding questions"
    )
