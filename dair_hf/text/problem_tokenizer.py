"""Tokenizer of words and single digits, for models from scratch that compute."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"


def build_problem_tokenizer(texts: Iterable[str], model_max_length: int = 128) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose tokens are the words of texts, punctuation marks, and all ten digits one by one.

    Args:
        texts: Training texts.
        model_max_length: Maximum number of tokens, stored with the tokenizer.

    Example:
        >>> build_problem_tokenizer(["Ann has 23 pens ."]).tokenize("Ann has 907 pens .")
        ['Ann', 'has', '9', '0', '7', 'pens', '.']
    """
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(text)}
    vocabulary = [PAD, END, UNKNOWN, *"0123456789", *sorted(words - set("0123456789"))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, END, UNKNOWN)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
