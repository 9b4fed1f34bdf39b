"""Data of the recipe for chat models: generated word problems, GSM8K, or files of the user, as paired rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import datasets

from dair_hf.augment.numbers import NumberAugmenter
from dair_hf.data.texts.files import pairs_from_jsonl, read_pairs, with_row_ids
from dair_hf.data.texts.forms import COMPLETION, PROMPT
from dair_hf.data.view_columns import parse_column
from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_last_numbers, same_texts
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.settings import Count, Range, Settings
from dair_hf.text.word_problems import FORMULA, generate_problems

PROBLEMS, GSM8K, FILES = "problems", "gsm8k", "files"
FIRST_NUMBERS = range(10, 100)  # of generated problems
ROLES = {PROMPT: "user", COMPLETION: "assistant"}


class ChatData(NamedTuple):
    """Paired rows and what is known of them."""

    name: str
    train: datasets.Dataset
    test: datasets.Dataset
    notes: list[str]


@dataclass
class ChatConfig(Settings):
    """Data of a run."""

    PATH_FIELDS: ClassVar = ("train_files", "test_files")  # not compared between runs: the data have a fingerprint

    source: Literal["problems", "gsm8k", "files"] = field(
        default="problems",
        metadata={
            "help": "problems: generated arithmetic problems; gsm8k: from the Hub; files: train_files and test_files."
        },
    )
    train_files: list[str] | None = field(
        default=None,
        metadata={"help": "Files of training rows (JSON lines, CSV, Parquet), as dair_hf.pairs_from_jsonl reads them."},
    )
    test_files: list[str] | None = field(default=None, metadata={"help": "Files of test rows."})
    number_partners: bool = field(
        default=False,
        metadata={
            "help": "For files without partners: make them by other numbers, if the completions show their steps as "
            "GSM8K does (<<48/2=24>> ... #### 72). GSM8K always gets them so."
        },
    )
    keep_numbers: str | None = field(
        default=None, metadata={"help": "Regular expression of numbers that stay, such as '\\d+ wheels'."}
    )
    as_chat: bool = field(
        default=False,
        metadata={"help": "Put texts into messages of user and assistant, for the chat template of the tokenizer."},
    )
    compare: Literal["text", "number"] = field(
        default="text",
        metadata={
            "help": "What makes an answer right: text: the whole text, up to white space; number: its last number."
        },
    )
    train_problems: Count = field(default=3000, metadata={"help": "Number of generated training problems."})
    test_problems: Count = field(default=200, metadata={"help": "Number of generated test problems."})
    known_numbers: Annotated[int, Range(low=2)] = field(
        default=15, metadata={"help": "Numbers of two digits that the original training problems have."}
    )
    unseen_numbers: Count = field(
        default=25,
        metadata={
            "help": "Numbers of two digits that only test partners have: no question and no answer of the training "
            "rows has them."
        },
    )

    def check(self) -> None:
        """Refuse settings that the source of the rows ignores, and numbers that leave none for training partners."""
        if {bool(self.train_files), bool(self.test_files)} != {self.source == FILES}:
            raise DataError(
                f"source={self.source}, train_files={self.train_files}, test_files={self.test_files}: expected files "
                "of both with source=files, and none without"
            )
        if self.keep_numbers and not (self.source == GSM8K or (self.source == FILES and self.number_partners)):
            raise DataError(f"keep_numbers={self.keep_numbers!r}: expected source=gsm8k, or number_partners=true")
        if self.known_numbers + self.unseen_numbers >= len(FIRST_NUMBERS):
            raise DataError(
                f"known_numbers={self.known_numbers}, unseen_numbers={self.unseen_numbers}: expected fewer than "
                f"{len(FIRST_NUMBERS)} in all"
            )

    @property
    def evaluator(self) -> PairEvaluator:
        """Evaluator of the answers, by text or by their last number."""
        return PairEvaluator(same_last_numbers if self.compare == "number" else same_texts)


def load_chat_data(config: ChatConfig, seed: int = 0) -> ChatData:
    """Read or generate paired rows."""
    if config.source == PROBLEMS:
        data = _problems(config, seed)
    elif config.source == GSM8K:
        splits = datasets.load_dataset("openai/gsm8k", "main")
        names = {"question": PROMPT, "answer": COMPLETION}
        parts = [with_row_ids(splits[split].rename_columns(names)) for split in ("train", "test")]
        data = _with_numbers("GSM8K", parts, config, seed)
    else:
        train_files, test_files = config.train_files or [], config.test_files or []
        name = ", ".join(Path(path).name for path in test_files)
        if config.number_partners:
            data = _with_numbers(name, [_plain_rows(paths) for paths in (train_files, test_files)], config, seed)
        else:
            data = ChatData(name, pairs_from_jsonl(train_files), pairs_from_jsonl(test_files), [])
    if config.as_chat:
        data = data._replace(train=_as_chat(data.train), test=_as_chat(data.test))
    return data


def as_messages(row: dict[str, Any]) -> dict[str, Any]:
    """Return prompt and completion of all views of a row as messages."""
    found = {name: (parse_column(name)[1], value) for name, value in row.items()}
    return {
        name: None if value is None else [{"role": ROLES[column], "content": value}]
        for name, (column, value) in found.items()
        if column in ROLES
    }


def _as_chat(rows: datasets.Dataset) -> datasets.Dataset:
    texts = [name for name in rows.column_names if parse_column(name)[1] in ROLES]
    return rows.map(as_messages, remove_columns=texts)


def _problems(config: ChatConfig, seed: int) -> ChatData:
    order = list(FIRST_NUMBERS)
    random.Random(f"known numbers/{seed}").shuffle(order)
    known, others = order[: config.known_numbers], order[config.known_numbers :]
    # Training rows have no unseen number, in questions and results; partners of the test have no other.
    unseen = set(others[: config.unseen_numbers])
    problems = {
        "train": generate_problems(config.train_problems, known, seed, "train", exclude=unseen),
        "test": generate_problems(config.test_problems, known, seed, "test"),
    }
    augmenters = (
        NumberAugmenter(formula_column=FORMULA, exclude=unseen, exclude_results=unseen, seed=seed),
        NumberAugmenter(formula_column=FORMULA, exclude=set(FIRST_NUMBERS) - unseen, seed=seed),
    )
    return _augmented("generated problems", problems.values(), augmenters)


def _plain_rows(paths: Sequence[str]) -> datasets.Dataset:
    return with_row_ids(datasets.concatenate_datasets([read_pairs(Path(path), needs_partners=False) for path in paths]))


def _with_numbers(name: str, parts: Sequence[datasets.Dataset], config: ChatConfig, seed: int) -> ChatData:
    return _augmented(name, parts, [NumberAugmenter(keep=config.keep_numbers, seed=seed)] * 2)


def _augmented(name: str, parts: Iterable[datasets.Dataset], augmenters: Iterable[NumberAugmenter]) -> ChatData:
    (train, of_train), (test, of_test) = (
        augmenter.pairs(rows) for augmenter, rows in zip(augmenters, parts, strict=True)
    )
    return ChatData(name, train, test, [f"train: {of_train}", f"test: {of_test}"])
