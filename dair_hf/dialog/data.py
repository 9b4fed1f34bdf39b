"""Data of a dialog experiment: generated, or read (`READERS`) with unseen names of the reader or from SGD."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset
from transformers.utils import logging

from dair_hf.dialog.config import READERS, DialogConfig
from dair_hf.dialog.demo.dialogs import generate_dialogs, pair_with_misleading_names
from dair_hf.dialog.demo.names import areas_of, make_names
from dair_hf.dialog.readers.files import SPLITS
from dair_hf.dialog.readers.sgd import build_bank, read_entity_names, read_sgd
from dair_hf.dialog.renaming.entities import load_bank
from dair_hf.dialog.rows import FEATURES, history_to_text
from dair_hf.errors import DataError
from dair_hf.io.prepared import is_prepared, load_split, read_mark

logger = logging.get_logger(__name__)


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
    data_dir, sgd_dir = str(config.data_dir), str(config.sgd_dir or config.data_dir)
    train = read_dialogs(data_dir, config.train_split, config.source)
    if config.evaluated_split is not None:
        name = f"{reader.title} {config.evaluated_split}"
        test = read_dialogs(data_dir, config.evaluated_split, config.source)
    else:
        name = f"{reader.title} {config.train_split}, last tenth"
        train, test = _held_out(train)
    if reader.unseen_names is not None:
        unseen = reader.unseen_names[config.evaluate_on]
    else:
        # Names of the SGD test or dev split that the training split does not have.
        split = "test" if config.evaluate_on == "test" else "dev"
        unseen = build_bank({name: _read_names(sgd_dir, name) for name in ("train", split)})[0][split]
    if config.pretrain is not None and _is_name_file(sgd_dir):
        raise DataError(f"sgd_dir={sgd_dir}: expected the raw SGD folder for pretrain, got a file of names")
    pretrain = None if config.pretrain is None else read_sgd(sgd_dir, "train")[0]
    train, test = _first_dialogs(train, config.train_dialogs), _first_dialogs(test, config.test_dialogs)
    _warn_of_shared_dialogs(train, test)
    return DialogData(name, train, test, unseen, pretrain)


def _generated(config: DialogConfig) -> DialogData:
    known = make_names("train", names_per_slot=config.demo_names)
    areas = areas_of(known) if config.demo_areas else None
    generate = functools.partial(generate_dialogs, names=known, domains=config.demo_domains, areas=areas)
    train = generate(
        config.train_dialogs or 1000, seed=1, prefix="TRAIN", annotation_errors=config.demo_annotation_errors
    )
    seed = 2 if config.evaluate_on == "test" else 3
    generate_test = functools.partial(generate, config.test_dialogs or 200, seed=seed, prefix="TEST")
    test = generate_test()
    if areas is not None:
        test = pair_with_misleading_names(test, generate_test(misleading=True))
    return DialogData("generated dialogues", train, test, make_names(config.evaluate_on), None)


def read_dialogs(path: str | os.PathLike[str], split: str, source: str = "multiwoz") -> Dataset:
    """Read one split of a data set of `READERS`, raw or prepared (`data_scripts/`); the rows are the same."""
    if not is_prepared(path):
        return READERS[source].read(path, split)[0]
    saved = read_mark(path, source).get("splits", {})
    aliases = [name for name in saved if SPLITS.get(name, name) == SPLITS.get(split, split)]
    return load_split(path, source, aliases[0] if aliases else split, FEATURES)


def _read_names(path: str, split: str) -> dict[str, list[str]]:
    """Read the names of one split of SGD, raw or prepared; the names are the same."""
    return load_bank(path, split, with_removed=True) if _is_name_file(path) else read_entity_names(path, split)


def _is_name_file(path: str) -> bool:
    # Raw dialogues are in dialogues_001.json.
    file = Path(path)
    return file.suffix == ".json" and file.is_file() and not file.name.startswith("dialogues_")


def _held_out(rows: Dataset) -> tuple[Dataset, Dataset]:
    """Split rows into the first nine tenths of the dialogues and the last tenth (at least one dialogue)."""
    dialogue_ids = rows["dialogue_id"][:]
    dialogues = list(dict.fromkeys(dialogue_ids))
    last = set(dialogues[-max(len(dialogues) // 10, 1) :])
    parts: tuple[list[int], list[int]] = ([], [])
    for index, dialogue_id in enumerate(dialogue_ids):
        parts[dialogue_id in last].append(index)
    return rows.select(parts[0]), rows.select(parts[1])


def _first_dialogs(rows: Dataset, count: int | None) -> Dataset:
    """Return the rows of the first `count` dialogues, or all rows if it is None."""
    if count is None:
        return rows
    dialogue_ids = rows["dialogue_id"][:]
    first = set(list(dict.fromkeys(dialogue_ids))[:count])
    return rows.select([index for index, dialogue_id in enumerate(dialogue_ids) if dialogue_id in first])


def _warn_of_shared_dialogs(train: Dataset, test: Dataset) -> None:
    """Log a warning if test dialogues have the same utterances as training dialogues, under any id."""
    trained = set(_whole_dialogs(train).values())
    tested = _whole_dialogs(test)
    if shared := [dialogue_id for dialogue_id, text in tested.items() if text in trained]:
        logger.warning(
            f"{len(shared)} of {len(tested)} test dialogues are also training dialogues, such as {shared[0]!r}: their "
            "results are not those of new dialogues; check the splits of the data"
        )


def _whole_dialogs(rows: Dataset) -> dict[str, str]:
    """Return the text of every dialogue; its last row has all its utterances."""
    last = {name: index for index, name in enumerate(rows["dialogue_id"][:])}
    whole = rows.select_columns(["dialogue_id", "history"]).select(list(last.values()))
    return {row["dialogue_id"]: history_to_text(row["history"]) for row in whole}
