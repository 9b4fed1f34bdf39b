"""Questions as word ids: a tokenizer of lower-case words for small recurrent networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, List, Value
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.collator import ATTENTION_MASK, INPUT_IDS

PAD, UNKNOWN = "<pad>", "<unk>"
QUESTION = "question"

_LETTERS = r"[\p{L}\p{M}\p{N}]+"
# A word is a run of letters, marks and digits. An apostrophe starts a new word, as "'s" in "what's", so that a noun and
# its possessive share a word. Anything else (hyphens, question marks) is a separator.
_WORD = rf"{_LETTERS}|(?<={_LETTERS[:-1]})'[\p{{L}}\p{{M}}]+"
_APOSTROPHES = "[\u2018\u2019\u02bc`\u00b4]"


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace(Regex(_APOSTROPHES), "'")]
    )


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)


def count_words(questions: Iterable[str]) -> Counter[str]:
    """Count the words of questions, as the tokenizer splits them.

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

    Text is lower-cased, punctuation separates words and is dropped, and "what's" becomes "what" and "'s". Id 0 is
    padding and id 1 the unknown word. The words follow by descending frequency, ties in alphabetical order. No special
    tokens are added to a question.

    Args:
        questions: Training questions.
        min_count: Rarer words are unknown. With 1 no training question contains the unknown word, so its embedding is
            never trained.
        model_max_length: `encode_questions` truncates to this many words; the longest question of VQA v2 has about 25.

    Returns:
        Fast tokenizer, which `save_pretrained` saves and `AutoTokenizer` loads.

    Raises:
        DataError: A setting is not positive, or no word is frequent enough.

    Example:
        >>> tokenizer = build_question_tokenizer(["What is it?", "What's the time?", "Is it the time?"])
        >>> tokenizer.tokenize("What's the TIME, sir?")
        ['what', '<unk>', 'the', 'time', '<unk>']
        >>> tokenizer("Is it?").input_ids
        [2, 3]
    """
    if min_count < 1 or model_max_length < 1:
        raise DataError(f"min_count={min_count} and model_max_length={model_max_length} must be at least 1")
    counts = count_words(questions)
    words = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
    if not words:
        raise DataError(
            f"questions: none of {len(counts)} words occurs at least {min_count} times; give the training questions, "
            "or lower min_count"
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
        # A question that contains "<pad>" has the word "pad", not a padding token.
        split_special_tokens=True,
        model_input_names=[INPUT_IDS, ATTENTION_MASK],
    )


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
        tokenizer: Tokenizer from `build_question_tokenizer`.

    Returns:
        The rows with `input_ids`, truncated to `tokenizer.model_max_length`. A question without words ("???") becomes
        one unknown word, since a recurrent network needs at least one.

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
