"""Questions as word ids: a tokenizer of lower-case words, as small recurrent networks read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, List, Value
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dair_hf.errors import DataError

PAD, UNKNOWN = "<pad>", "<unk>"
QUESTION = "question"
INPUT_IDS = "input_ids"

_LETTERS = r"[\p{L}\p{M}\p{N}]+"
# A word is a run of letters, marks and digits. What follows an apostrophe is a word of its own, as "'s" in "what's", so
# that a possessive is no other word than its noun. All else (hyphens, question marks) only separates.
_WORD = rf"{_LETTERS}|(?<={_LETTERS[:-1]})'[\p{{L}}\p{{M}}]+"
_APOSTROPHES = "[\u2018\u2019\u02bc`\u00b4]"


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace(Regex(_APOSTROPHES), "'")]
    )


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)


def count_words(questions: Iterable[str]) -> Counter[str]:
    """How often the tokenizer's words occur in questions.

    Example:
        >>> sorted(count_words(["What's the man's name?", "What is it?"]).items())
        [("'s", 2), ('is', 1), ('it', 1), ('man', 1), ('name', 1), ('the', 1), ('what', 2)]
    """
    normalizer, splitter = _normalizer(), _splitter()
    words: Counter[str] = Counter()
    for question in questions:
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(question)))
    return words


def build_question_tokenizer(
    questions: Iterable[str], *, min_count: int = 2, model_max_length: int = 64
) -> PreTrainedTokenizerFast:
    """Build a word tokenizer from the training questions.

    Text is lower-cased, punctuation separates words and is dropped, "what's" is the two words "what" and "'s". Id 0 is
    padding, id 1 any word that is not in the vocabulary, then come the words, the most frequent first, equally frequent
    ones in alphabetical order. Nothing is added around a question.

    Args:
        questions: The training questions.
        min_count: A rarer word is unknown. With 1 no training question has an unknown word, and the model never learns
            what to do with one.
        model_max_length: Words after which `encode_questions` cuts; the longest question of VQA v2 has about 25.

    Returns:
        A fast tokenizer, which `save_pretrained` stores and `AutoTokenizer` loads.

    Raises:
        DataError: A setting is not positive, or no word is left.

    Example:
        >>> tokenizer = build_question_tokenizer(["What is it?", "What's the time?", "Is it the time?"])
        >>> tokenizer.tokenize("What's the TIME, sir?")
        ['what', '<unk>', 'the', 'time', '<unk>']
        >>> tokenizer("Is it?").input_ids
        [2, 3]
    """
    if min_count < 1 or model_max_length < 1:
        raise DataError(f"min_count and model_max_length must be at least 1, found {min_count} and {model_max_length}")
    counts = count_words(questions)
    words = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
    if not words:
        raise DataError(
            f"questions: no word occurs {min_count} times or more (of {len(counts)} words); "
            "give the training questions, or lower min_count"
        )
    vocabulary = {word: number for number, word in enumerate((PAD, UNKNOWN, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = _splitter()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        # A question in which somebody wrote "<pad>" holds the word "pad", and no padding.
        split_special_tokens=True,
        model_input_names=[INPUT_IDS, "attention_mask"],
    )


def encode_batch(batch: Mapping[str, Sequence[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    """Encode the column `question` of a batch of rows; None stays None. See `encode_questions`."""
    questions = batch[QUESTION]
    asked = [question for question in questions if question is not None]
    # Cut by hand: asked to do it, a tokenizer changes its own state, and with it the fingerprint of `Dataset.map`.
    found = iter(tokenizer(asked, return_attention_mask=False)[INPUT_IDS] if asked else [])
    limit, unknown = tokenizer.model_max_length, [tokenizer.unk_token_id]
    return {INPUT_IDS: [None if question is None else next(found)[:limit] or unknown for question in questions]}


def encode_questions(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Add the word ids of every question: `input_ids`, a list of int32.

    Args:
        rows: Rows or edits with the column `question`.
        tokenizer: From `build_question_tokenizer`.

    Returns:
        The rows with `input_ids`, at most `tokenizer.model_max_length` of them: longer questions lose their end. A
        question without any word ("???") is one unknown word, since a recurrent network needs something to read.

    Raises:
        DataError: The rows have no column `question`.

    Example:
        >>> tokenizer = build_question_tokenizer(["what is it"], min_count=1)
        >>> encode_questions(Dataset.from_dict({"question": ["Is it?", "?"]}), tokenizer)["input_ids"][:]
        [[2, 3], [1]]
    """
    if QUESTION not in rows.column_names:
        raise DataError(f"column {QUESTION!r} is missing; the data has {rows.column_names}")
    features = Features({**rows.features, INPUT_IDS: List(Value("int32"))})
    return rows.map(
        encode_batch, batched=True, fn_kwargs={"tokenizer": tokenizer}, features=features, desc="Encoding questions"
    )
