"""Data of the recipe for chat models: generated word problems, GSM8K, or files of the user, as paired rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import datasets

from dair_hf.augment.numbers import NumberAugmenter
from dair_hf.data.texts.files import pairs_from_jsonl, read_rows, with_row_ids
from dair_hf.data.texts.forms import COMPLETION, PROMPT
from dair_hf.data.view_columns import parse_column
from dair_hf.errors import DataError, explained
from dair_hf.evaluation.answers import same_last_numbers, same_texts
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.text.word_problems import FORMULA, generate_problems, known_and_unseen

PROBLEMS, GSM8K, FILES = "problems", "gsm8k", "files"
GSM8K_NAME = "openai/gsm8k"
FIRST_NUMBERS = range(10, 100)  # of generated problems


class ChatData(NamedTuple):
    """Paired rows and what is known of them."""

    name: str
    train: datasets.Dataset
    test: datasets.Dataset
    notes: list[str]


@dataclass
class ChatConfig:
    """Data of a run."""

    PATH_FIELDS: ClassVar = ("train_files", "test_files")  # not compared between runs: the data have a fingerprint

    source: str = field(
        default=PROBLEMS,
        metadata={
            "help": "problems: generated arithmetic problems; gsm8k: from the Hub; files: train_files and test_files.",
            "choices": (PROBLEMS, GSM8K, FILES),
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
    compare: str = field(
        default="text",
        metadata={
            "help": "What makes an answer right: text: the whole text, up to white space; number: its last number.",
            "choices": ("text", "number"),
        },
    )
    train_problems: int = field(default=3000, metadata={"help": "Number of generated training problems, >= 1."})
    test_problems: int = field(default=200, metadata={"help": "Number of generated test problems, >= 1."})
    known_numbers: int = field(
        default=15, metadata={"help": "Numbers of two digits that the original training problems have, >= 2."}
    )
    unseen_numbers: int = field(
        default=25,
        metadata={
            "help": "Numbers of two digits that only test partners have, >= 1: no question and no answer of the "
            "training rows has them."
        },
    )

    def __post_init__(self) -> None:
        for name, choices in (("source", (PROBLEMS, GSM8K, FILES)), ("compare", ("text", "number"))):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        for name in ("train_problems", "test_problems", "known_numbers", "unseen_numbers"):
            if getattr(self, name) < 1:
                raise DataError(f"{name}={getattr(self, name)}; it must be at least 1")
        if self.known_numbers + self.unseen_numbers >= len(FIRST_NUMBERS):
            raise DataError(
                f"known_numbers={self.known_numbers} and unseen_numbers={self.unseen_numbers} leave none of "
                f"{len(FIRST_NUMBERS)} numbers for partners; lower one of them"
            )
        self._require_effect()

    def _require_effect(self) -> None:
        """Refuse settings that the source of the rows ignores."""
        from_files = self.source == FILES
        makes_partners = self.source == GSM8K or (from_files and self.number_partners)
        for name, has_effect, remedy in (
            ("train_files", from_files, "set --source files"),
            ("test_files", from_files, "set --source files"),
            ("number_partners", self.source != PROBLEMS, "leave it out: these problems have partners"),
            ("as_chat", self.source != PROBLEMS, "leave it out, or give rows of your own"),
            ("keep_numbers", makes_partners, "set --number_partners true, or leave it out"),
        ):
            if getattr(self, name) and not has_effect:
                raise DataError(f"{name} has no effect with source={self.source}; {remedy}")

    @property
    def evaluator(self) -> PairEvaluator:
        """Evaluator of the answers, by text or by their last number."""
        return PairEvaluator(same_last_numbers if self.compare == "number" else same_texts)


def load_chat_data(config: ChatConfig, seed: int = 0) -> ChatData:
    """Read or generate paired rows."""
    if config.source == PROBLEMS:
        return _problems(config, seed)
    if config.source == GSM8K:
        with explained(GSM8K_NAME, Exception):
            splits = datasets.load_dataset(GSM8K_NAME, "main")
        names = {"question": PROMPT, "answer": COMPLETION}
        parts = [with_row_ids(splits[split].rename_columns(names)) for split in ("train", "test")]
        parts, notes = _with_numbers(parts, config, seed)
        name = "GSM8K"
    else:
        files = {"train_files": config.train_files, "test_files": config.test_files}
        for setting, paths in files.items():
            if not paths:
                raise DataError(f"{setting} is not set; give --{setting} a file of rows")
        name = ", ".join(Path(path).name for path in config.test_files or [])
        lists = [config.train_files or [], config.test_files or []]
        if config.number_partners:
            parts, notes = _with_numbers([_plain_rows(paths) for paths in lists], config, seed)
        else:
            parts, notes = [pairs_from_jsonl(paths) for paths in lists], []
    if config.as_chat:
        if not all(map(_texts, parts)):
            raise DataError(f"as_chat: {name} has no columns {PROMPT} and {COMPLETION}; leave out as_chat")
        parts = [rows.map(as_messages, remove_columns=_texts(rows)) for rows in parts]
    train, test = parts
    return ChatData(name, train, test, notes)


def as_messages(row: dict[str, Any]) -> dict[str, Any]:
    """Return prompt and completion of all views of a row as messages."""
    roles = {PROMPT: "user", COMPLETION: "assistant"}
    found = {name: (parse_column(name)[1], value) for name, value in row.items()}
    return {
        name: None if value is None else [{"role": roles[column], "content": value}]
        for name, (column, value) in found.items()
        if column in roles
    }


def _problems(config: ChatConfig, seed: int) -> ChatData:
    known, others = known_and_unseen(FIRST_NUMBERS, config.known_numbers, seed)
    unseen = others[: config.unseen_numbers]
    # No number or result of the training rows is one of the unseen numbers; those of the test are drawn from them.
    not_in_training, not_drawn_in_test = set(unseen), set(FIRST_NUMBERS) - set(unseen)
    sizes, draws = (config.train_problems, config.test_problems), (not_in_training, not_drawn_in_test)
    parts, notes = [], []
    for name, count, drawn, results in zip(("train", "test"), sizes, draws, (not_in_training, set()), strict=True):
        problems = generate_problems(count, known, seed, name, exclude=results)
        augmenter = NumberAugmenter(formula_column=FORMULA, exclude=drawn, exclude_results=results, seed=seed)
        rows, report = augmenter.pairs(problems)
        parts.append(rows)
        notes.append(f"{name}: {report}")
    train, test = parts
    return ChatData("generated problems", train, test, notes)


def _plain_rows(paths: Sequence[str]) -> datasets.Dataset:
    parts = [read_rows(Path(path), needs_partners=False) for path in paths]
    with explained(", ".join(paths), ValueError, TypeError):
        return with_row_ids(datasets.concatenate_datasets(parts))


def _with_numbers(
    parts: Sequence[datasets.Dataset], config: ChatConfig, seed: int
) -> tuple[list[datasets.Dataset], list[str]]:
    augmenter = NumberAugmenter(keep=config.keep_numbers, seed=seed)
    made = [augmenter.pairs(rows) for rows in parts]
    return [rows for rows, _ in made], [
        f"{name}: {report}" for name, (_, report) in zip(("train", "test"), made, strict=True)
    ]


def _texts(rows: datasets.Dataset) -> list[str]:
    return [name for name in rows.column_names if parse_column(name)[1] in (PROMPT, COMPLETION)]
