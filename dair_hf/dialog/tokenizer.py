"""Small word-level tokenizer that spells names character by character.

With ordinary subwords a frequent name is one token and a new one is five, so unseen names have another form than known
ones. Here a word is either one token or a sequence of single characters.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.rows import history_to_text, state_from_row, target_text

PAD, END = "<pad>", "</s>"
SPEAKERS = ("<user>", "<system>")
DELIMITERS = (";", "=", "|", "\\")

_SPACE = "▁"
_BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
# A word is a run of letters, marks and digits, joined by "-", "_" or ":" ("hotel-name", "12:30"). Every other character
# is a word of its own. A word includes the space before it, which makes decoding lossless.
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


def _count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words of texts, each with a mark for the space before it."""
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

    A word (with the space before it) is one token if it is among the `vocab_size` most frequent, occurs at least
    `min_count` times and is no part of a name. Other words are spelled: the first character with the space, then one
    token per character. Characters that the texts do not contain become UTF-8 bytes. `<user>`, `<system>` and the
    delimiters of belief texts (`;`, `=`, `|`, `\`) are one token each. Encoding ends with `</s>`.

    Text is lower-cased, and runs of white space become one space. Otherwise `decode(encode(x))` with
    `skip_special_tokens=True` returns `x`, except for a literal `<pad>` or `</s>`, and for U+2581, which becomes a
    space.

    Args:
        texts: Histories and belief texts.
        name_words: Names or words of names; each of their words is spelled wherever it occurs.
        vocab_size: Maximum number of whole-word tokens, without characters, bytes and special tokens.
        min_count: Minimum count of a whole-word token.
        keep_words: Words that are one token even if a name contains them, such as "the".
        model_max_length: Maximum length that is stored with the tokenizer.

    Example:
        >>> tokenizer = build_tokenizer(["is oak house free ?", "is it free ?"], ["oak house"])
        >>> tokenizer.tokenize("is oak free")
        ['▁is', '▁o', 'a', 'k', '▁free']
        >>> tokenizer.decode(tokenizer("is Zoë free ?").input_ids, skip_special_tokens=True)
        'is zoë free ?'
    """
    words = _count_words(texts)
    names, exceptions = ({w.removeprefix(_SPACE) for w in _count_words(part)} for part in (name_words, keep_words))
    spelled = names - exceptions
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
    # `ignore_merges` makes a word of the vocabulary one token. The merges only join a space with the next character.
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


def tokenizer_for(rows: Iterable[Dataset], config: DialogConfig) -> PreTrainedTokenizerFast:
    """Build a tokenizer from training rows that spells names character by character.

    A word of a name is one token only if it is also a word of sentences ("the", "south", "house"): it occurs at least
    20 times outside names, and at least as often as inside.
    """
    texts: list[str] = []
    outside: list[str] = []
    names: set[str] = set()
    for dataset in rows:
        # The last row of a dialogue has all its utterances.
        last = {name: index for index, name in enumerate(dataset["dialogue_id"][:])}
        for row in dataset.select(list(last.values())):
            texts += [history_to_text(row["history"]), target_text(state_from_row(row["state"]), config.preset)]
            outside += _without_mentions(row)
            names.update(form for entry in row["names"] for form in entry["forms"])
    in_all, in_sentences = _count_words(texts), _count_words(outside)
    common = [word for word, count in in_sentences.items() if count >= 20 and 2 * count >= in_all[word]]
    return build_tokenizer(texts, names, keep_words=common, model_max_length=config.max_source_tokens)


def _without_mentions(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the utterances of a row without the names that they mention."""
    for turn, utterance in enumerate(row["history"]):
        text = utterance["text"]
        spans = sorted(((m["start"], m["end"]) for m in row["entities"] if m["turn"] == turn), reverse=True)
        for start, end in spans:
            text = text[:start] + " " + text[end:]
        yield text
