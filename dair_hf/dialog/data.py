"""Data of a dialog experiment: generated, or read (`READERS`) with unseen names of the reader or from SGD."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from dair_hf.dialog.config import EVALUATED, READERS, DialogConfig
from dair_hf.dialog.demo.dialogs import (
    generate_dialogs,
    pair_with_misleading_names,
)
from dair_hf.dialog.demo.names import areas_of, make_names
from dair_hf.dialog.readers.sgd import build_bank, read_entity_names, read_sgd
from dair_hf.dialog.readers.splits import SPLITS
from dair_hf.dialog.renaming.entities import load_bank
from dair_hf.dialog.text.rows import FEATURES, history_to_text
from dair_hf.dialog.text.state import state_from_row, target_text
from dair_hf.dialog.tokenizer import build_tokenizer, count_words
from dair_hf.dialog.whole_dialogs import first_dialogs, held_out, warn_of_shared_dialogs
from dair_hf.errors import DataError
from dair_hf.io.prepared import is_prepared, load_split, read_mark


class DialogData(NamedTuple):
    """Rows and names of an experiment.

    Attributes:
        name: Name of the data, for tables and model cards.
        train: Training rows, without partners.
        test: Test rows, without partners; with `demo_areas` they have second partners, with misleading names.
        unseen_names: Kind -> names that are in no training row.
        pretrain: Rows of other dialogues to pretrain on, or None.
    """

    name: str
    train: Dataset
    test: Dataset
    unseen_names: Mapping[str, Sequence[str]]
    pretrain: Dataset | None


def load_dialogs(config: DialogConfig) -> DialogData:
    """Generate or read the data of an experiment, the same for every seed and method.

    A warning says how many test dialogues are training dialogues too.

    Raises:
        DataError: The data cannot be read.
    """
    reader = READERS.get(config.source)
    if reader is None:
        return _generated(config)
    assert config.data_dir is not None
    train = read_rows(config.data_dir, config.train_split, config.source)
    if config.evaluated_split is not None:
        name = f"{reader.title} {config.evaluated_split}"
        test = read_rows(config.data_dir, config.evaluated_split, config.source)
    else:
        name = f"{reader.title} {config.train_split}, last tenth"
        train, test = held_out(train)
    unseen = _sgd_names(config) if reader.unseen_names is None else reader.unseen_names[config.evaluate_on]
    pretrain = None
    if config.pretrain is not None:
        assert config.sgd_dir is not None
        if _is_name_file(config.sgd_dir):
            raise DataError(
                f"{config.sgd_dir}: has only names, and pretrain needs the dialogues; give the raw SGD folder"
            )
        pretrain = read_sgd(config.sgd_dir, "train")[0]
    train, test = first_dialogs(train, config.train_dialogs), first_dialogs(test, config.test_dialogs)
    warn_of_shared_dialogs(train, test)
    return DialogData(name, train, test, unseen, pretrain)


def _generated(config: DialogConfig) -> DialogData:
    known = make_names("train", names_per_slot=config.demo_names)
    areas = areas_of(known) if config.demo_areas else None
    generate = functools.partial(generate_dialogs, names=known, domains=config.demo_domains, areas=areas)
    train = generate(
        config.train_dialogs or 1000, seed=1, prefix="TRAIN", annotation_errors=config.demo_annotation_errors
    )
    generate_test = functools.partial(
        generate, config.test_dialogs or 200, seed=2 + EVALUATED.index(config.evaluate_on), prefix="TEST"
    )
    test = generate_test()
    if areas is not None:
        test = pair_with_misleading_names(test, generate_test(misleading=True))
    return DialogData("generated dialogues", train, test, make_names(config.evaluate_on), None)


def _sgd_names(config: DialogConfig) -> dict[str, list[str]]:
    """Return the names of the SGD test or dev split that the training split does not have."""
    assert config.sgd_dir is not None
    split = "test" if config.evaluate_on == "test" else "dev"
    return build_bank({name: read_names(config.sgd_dir, name) for name in ("train", split)})[0][split]


def read_rows(path: str | os.PathLike[str], split: str, source: str = "multiwoz") -> Dataset:
    """Read one split of a data set, raw or prepared; the rows are the same.

    Args:
        path: Raw files, as the reader of the source takes them, or a folder written by its command, such as
            `data_scripts/prepare_multiwoz.py`.
        split: A split of the reader: for MultiWOZ "train", "dev" (or "val", "validation") or "test".
        source: Key of `READERS`.

    Raises:
        DataError: The reader raises, or the prepared folder is damaged, of another kind or version, or lacks the split.
    """
    reader = READERS[source]
    if not is_prepared(path):
        return reader.read(path, split)[0]
    saved = read_mark(path, source).get("splits", {})
    aliases = [name for name in saved if SPLITS.get(name, name) == SPLITS.get(split, split)]
    return load_split(path, source, aliases[0] if aliases else split, FEATURES)


def read_names(path: str | os.PathLike[str], split: str) -> dict[str, list[str]]:
    """Read the names of one split of SGD, raw or prepared; the names are the same."""
    if not _is_name_file(path):
        return read_entity_names(path, split)
    return load_bank(path, split, with_removed=True)


def _is_name_file(path: str | os.PathLike[str]) -> bool:
    # Raw dialogues are in dialogues_001.json.
    file = Path(path)
    return file.suffix == ".json" and file.is_file() and not file.name.startswith("dialogues_")


def tokenizer_for(rows: Iterable[Dataset], config: DialogConfig) -> PreTrainedTokenizerFast:
    """Build a tokenizer from training rows that spells names character by character.

    A word of a name is one token only if it is also a word of sentences ("the", "south", "house"): it occurs at least
    20 times outside names, and at least as often as inside.

    Args:
        rows: Data sets of training rows, not of test rows.
        config: Size of the vocabulary and maximum lengths.
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
    in_all, in_sentences = count_words(texts), count_words(outside)
    common = [word for word, count in in_sentences.items() if count >= 20 and 2 * count >= in_all[word]]
    return build_tokenizer(
        texts, names, vocab_size=config.vocabulary, keep_words=common, model_max_length=config.max_source_tokens
    )


def _without_mentions(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the utterances of a row without the names that they mention."""
    for turn, utterance in enumerate(row["history"]):
        text = utterance["text"]
        spans = sorted(((m["start"], m["end"]) for m in row["entities"] if m["turn"] == turn), reverse=True)
        for start, end in spans:
            text = text[:start] + " " + text[end:]
        yield text
