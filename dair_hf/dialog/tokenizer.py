"""A small word-level tokenizer that spells names, so that a name never seen looks like any other name.

With ordinary subwords a frequent name is one token and a new one is five: the model meets unseen names in another form
than known ones. Here a word is either in the vocabulary as a whole or spelled in single characters, nothing between.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dair_hf.errors import DataError

PAD, END = "<pad>", "</s>"
SPEAKERS = ("<user>", "<system>")
DELIMITERS = (";", "=", "|", "\\")

_SPACE = "▁"
_BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
# A word is a run of letters, marks and digits, joined by "-", "_" or ":" inside ("hotel-name", "12:30"); any other
# character stands alone. The space before belongs to it, which makes decoding lossless.
_INSIDE = r"[\p{L}\p{M}\p{N}]+"
_WORD = rf"{_SPACE}?<(?:user|system)>|{_SPACE}?{_INSIDE}(?:[-_:]{_INSIDE})*|{_SPACE}?[^{_SPACE}]|{_SPACE}"


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(_WORD), behavior="isolated"),
        ]
    )


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often the tokenizer's words occur in texts; a word carries a mark for the space before it."""
    normalizer, splitter = _normalizer(), _splitter()
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    return words


def build_tokenizer(
    texts: Iterable[str],
    name_words: Iterable[str] = (),
    *,
    vocab_size: int = 2000,
    min_count: int = 2,
    keep_words: Iterable[str] = (),
    model_max_length: int = 512,
) -> PreTrainedTokenizerFast:
    r"""Build a tokenizer of whole words and single characters from texts.

    Each word (with the space before it) is one token if it is among the `vocab_size` most frequent, was met at least
    `min_count` times and is no part of a name; every other word is spelled: its first letter with the space, then one
    token a character; characters the texts do not hold become their UTF-8 bytes. `<user>`, `<system>` and the
    delimiters of the belief text (`;`, `=`, `|`, `\`) are always one token each. Encoding ends with `</s>`.

    Text is lower-cased and runs of white space become one space; beyond that `decode(encode(x))` with
    `skip_special_tokens=True` gives `x` back, except for three strings that mean something to the tokenizer: a literal
    `<pad>` or `</s>`, and U+2581, which turns into a space.

    Args:
        texts: What the model reads and writes: histories and belief texts.
        name_words: Names or words of names (split at white space); each of their words is spelled, wherever it occurs.
        vocab_size: Upper limit of whole-word tokens; the characters, bytes and special tokens come on top.
        min_count: A rarer word is spelled.
        keep_words: Words that stay whole although a name contains them, such as "the".
        model_max_length: Stored with the tokenizer.

    Returns:
        A fast tokenizer, which `save_pretrained` stores.

    Raises:
        DataError: `vocab_size` or `min_count` is not positive, or the texts hold no word.

    Example:
        >>> tokenizer = build_tokenizer(["is oak house free ?", "is it free ?"], ["oak house"])
        >>> tokenizer.tokenize("is oak free")
        ['▁is', '▁o', 'a', 'k', '▁free']
        >>> tokenizer.decode(tokenizer("is Zoë free ?").input_ids, skip_special_tokens=True)
        'is zoë free ?'
    """
    if vocab_size < 1 or min_count < 1:
        raise DataError(f"vocab_size and min_count must be at least 1, found {vocab_size} and {min_count}")
    words = count_words(texts)
    if not words:
        raise DataError("the texts hold no word; give the texts the model shall read and write")
    kept = set(count_words(keep_words))
    spelled = {word.removeprefix(_SPACE) for word in count_words(name_words)} - {w.removeprefix(_SPACE) for w in kept}
    whole = sorted(
        (word for word, count in words.items() if count >= min_count and word.removeprefix(_SPACE) not in spelled),
        key=lambda word: (-words[word], word),
    )[:vocab_size]
    characters = {character for word in words for character in word} | set(string.ascii_lowercase + string.digits)
    characters -= {_SPACE}
    markers = [_SPACE + token for token in (*SPEAKERS, *DELIMITERS)]
    tokens = [PAD, END, *_BYTES, _SPACE]
    for character in sorted(characters | set(DELIMITERS)):
        tokens += [character, _SPACE + character]
    tokens += [*markers, *whole]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    merges = [(_SPACE, character) for character in sorted(characters | set(DELIMITERS))]
    # With `ignore_merges` a word of the vocabulary is taken whole; the only merges join the space to a first letter.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True, byte_fallback=True))
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = _splitter()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(PAD, normalized=False), AddedToken(END, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, vocabulary[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
