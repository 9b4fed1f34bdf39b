"""Chats with word problems: generated, or of GSM8K, and their pairs."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import datasets
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dair_hf.augment.numbers import NumberAugmenter
from dair_hf.data.collator import ROW_ID
from dair_hf.data.texts.files import with_row_ids
from dair_hf.data.texts.forms import COMPLETION, PROMPT
from dair_hf.data.view_columns import parse_column
from dair_hf.evaluation.answers import matches
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.settings import Settings

FORMULA = "formula"  # column with the calculation, for `NumberAugmenter(formula_column=...)`
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
NAMES = ("Ann", "Ben", "Carla", "Dev", "Eva", "Femi", "Gus", "Hana")
THINGS = ("apples", "books", "coins", "pens", "stamps", "shells")
# Question, formula and answer. The first number has two digits, the second one.
TEMPLATES = (
    ("{a} has {x} {t} , {b} has {y} . How many has {a} ?", "n1", "{x}"),
    ("{b} has {y} {t} , {a} has {x} . How many has {b} ?", "n1", "{y}"),
    ("{a} has {x} {t} and gets {y} . How many now ?", "n1 + n2", "{x} + {y} = {sum}"),
    ("{a} has {x} {t} and gives {b} {y} . How many now ?", "n1 - n2", "{x} - {y} = {difference}"),
)
PROBLEMS = "problems"
FIRST_NUMBERS = range(10, 100)  # of generated problems
TRAIN_PROBLEMS, TEST_PROBLEMS = 3000, 200
KNOWN_NUMBERS = 15  # first numbers in the original problems
UNSEEN_NUMBERS = 25  # first numbers that only test partners have: no training question or answer contains them
ROLES = {PROMPT: "user", COMPLETION: "assistant"}


def _generate_problems(
    count: int, numbers: Sequence[int], seed: int, name: str = "train", exclude: Collection[int] = ()
) -> datasets.Dataset:
    """Generate word problems whose first number comes from a list; the second one is 1 to 9."""
    generator = random.Random(f"word problems/{name}/{seed}")
    values, rows = sorted(numbers), []
    for row in range(count):
        while True:
            question, formula, answer = generator.choice(TEMPLATES)
            first, second = generator.sample(NAMES, 2)
            x, y = generator.choice(values), generator.randint(1, 9)
            prompt = question.format(a=first, b=second, t=generator.choice(THINGS), x=x, y=y)
            completion = answer.format(x=x, y=y, sum=x + y, difference=x - y)
            if int(completion.split()[-1]) not in exclude:
                break
        rows.append({ROW_ID: f"{name}/{row}", "prompt": prompt, "completion": completion, FORMULA: formula})
    return datasets.Dataset.from_list(rows)


def build_problem_tokenizer(texts: Iterable[str], model_max_length: int = 128) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose tokens are the words of texts, punctuation marks, and all ten digits one by one.

    Args:
        texts: Training texts.
        model_max_length: Maximum number of tokens, stored with the tokenizer.

    Returns:
        A tokenizer with `<pad>`, `</s>` and `<unk>`.

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


class ChatData(NamedTuple):
    """Paired rows and notes about them."""

    name: str
    train: datasets.Dataset
    test: datasets.Dataset
    notes: list[str]


@dataclass
class ChatConfig(Settings):
    """Data of a run."""

    source: Literal["problems", "gsm8k"] = field(
        default="problems", metadata={"help": "problems: generated arithmetic problems; gsm8k: from the Hub."}
    )
    as_chat: bool = field(
        default=False,
        metadata={"help": "Put texts into messages of user and assistant, for the chat template of the tokenizer."},
    )
    compare: Literal["text", "number"] = field(
        default="text",
        metadata={
            "help": "Part of an answer that must be right. text: all of it, up to white space; number: its last number."
        },
    )

    @property
    def evaluator(self) -> PairEvaluator:
        """Evaluator of the answers, by text or by their last number."""
        return PairEvaluator(partial(matches, "last-number" if self.compare == "number" else "exact"))


def load_chat_data(config: ChatConfig, seed: int = 0) -> ChatData:
    """Read or generate paired rows."""
    if config.source == PROBLEMS:
        data = _problems(seed)
    else:
        splits = datasets.load_dataset("openai/gsm8k", "main")
        names = {"question": PROMPT, "answer": COMPLETION}
        parts = [with_row_ids(splits[split].rename_columns(names)) for split in ("train", "test")]
        data = _augmented("GSM8K", parts, [NumberAugmenter(seed=seed)] * 2)
    if config.as_chat:
        data = data._replace(train=_as_chat(data.train), test=_as_chat(data.test))
    return data


def _as_messages(row: dict[str, Any]) -> dict[str, Any]:
    """Return prompt and completion of all views of a row as messages."""
    found = {name: (parse_column(name)[1], value) for name, value in row.items()}
    return {
        name: None if value is None else [{"role": ROLES[column], "content": value}]
        for name, (column, value) in found.items()
        if column in ROLES
    }


def _as_chat(rows: datasets.Dataset) -> datasets.Dataset:
    texts = [name for name in rows.column_names if parse_column(name)[1] in ROLES]
    return rows.map(_as_messages, remove_columns=texts)


def _problems(seed: int) -> ChatData:
    order = list(FIRST_NUMBERS)
    random.Random(f"known numbers/{seed}").shuffle(order)
    known, others = order[:KNOWN_NUMBERS], order[KNOWN_NUMBERS:]
    # Training rows have no unseen numbers in questions or results; test partners have no others.
    unseen = set(others[:UNSEEN_NUMBERS])
    problems = {
        "train": _generate_problems(TRAIN_PROBLEMS, known, seed, "train", exclude=unseen),
        "test": _generate_problems(TEST_PROBLEMS, known, seed, "test"),
    }
    augmenters = (
        NumberAugmenter(formula_column=FORMULA, exclude=unseen, exclude_results=unseen, seed=seed),
        NumberAugmenter(formula_column=FORMULA, exclude=set(FIRST_NUMBERS) - unseen, seed=seed),
    )
    return _augmented("generated problems", problems.values(), augmenters)


def _augmented(name: str, parts: Iterable[datasets.Dataset], augmenters: Iterable[NumberAugmenter]) -> ChatData:
    (train, of_train), (test, of_test) = (
        augmenter.pairs(rows) for augmenter, rows in zip(augmenters, parts, strict=True)
    )
    return ChatData(name, train, test, [f"train: {of_train}", f"test: {of_test}"])
