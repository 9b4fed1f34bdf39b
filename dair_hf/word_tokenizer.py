"""Tokenizer of lower-case words, built from the training texts of small networks."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from dair_hf.errors import DataError

PAD, UNKNOWN = "<pad>", "<unk>"
START, END = "<s>", "</s>"

_LETTERS = r"[\p{L}\p{M}\p{N}]+"
# A word is a run of letters, marks and digits. An apostrophe starts a new word, as "'s" in "what's", so that a noun and
# its possessive share a word. Anything else (hyphens, question marks) is a separator.
_WORD = rf"{_LETTERS}|(?<={_LETTERS[:-1]})'[\p{{L}}\p{{M}}]+"
_APOSTROPHES = "[\u2018\u2019\u02bc`\u00b4]"


def build_word_tokenizer(
    texts: Iterable[str], *, min_count: int = 2, model_max_length: int = 64, delimiters: bool = False
) -> PreTrainedTokenizerFast:
    """Build a word tokenizer from the training texts.

    Text is lower-cased, punctuation separates words and is dropped, and "what's" becomes "what" and "'s". Id 0 is
    padding and id 1 the unknown word. The words follow by descending frequency, ties in alphabetical order. Two texts
    have the `token_type_ids` 0 and 1.

    Args:
        texts: Training texts.
        min_count: Rarer words are unknown. With 1 no training text contains the unknown word, so its embedding is never
            trained.
        model_max_length: Maximum number of tokens, stored with the tokenizer.
        delimiters: Begin a text with `<s>` and end it with `</s>`, ids 2 and 3, for models that classify by their first
            token. Otherwise no special tokens are added.

    Returns:
        Fast tokenizer, which `save_pretrained` saves and `AutoTokenizer` loads.

    Raises:
        DataError: No word is frequent enough.

    Example:
        >>> tokenizer = build_word_tokenizer(["What is it?", "What's the time?", "Is it the time?"])
        >>> tokenizer.tokenize("What's the TIME, sir?")
        ['what', '<unk>', 'the', 'time', '<unk>']
        >>> tokenizer("Is it?").input_ids
        [2, 3]
        >>> build_word_tokenizer(["is it"], min_count=1, delimiters=True)("is", "it").input_ids
        [2, 4, 3, 5, 3]
    """
    special = [PAD, UNKNOWN, START, END] if delimiters else [PAD, UNKNOWN]
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace(Regex(_APOSTROPHES), "'")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=2**31, min_frequency=min_count, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == len(special):
        raise DataError(f"texts: expected words that occur {min_count} times, got none")
    tokenizer.post_processor = _post_processor(tokenizer.get_vocab() if delimiters else {})
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=START if delimiters else None,
        sep_token=END if delimiters else None,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        # A text that contains "<pad>" has the word "pad", not a padding token.
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
    )


def _post_processor(vocabulary: dict[str, int]) -> processors.PostProcessor:
    """Return the processor that numbers the texts of a pair and adds those delimiters that are in `vocabulary`."""
    if not vocabulary:
        return processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    return processors.TemplateProcessing(
        single=f"{START}:0 $A:0 {END}:0",
        pair=f"{START}:0 $A:0 {END}:0 $B:1 {END}:1",
        special_tokens=[(token, vocabulary[token]) for token in (START, END)],
    )
