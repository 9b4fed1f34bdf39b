"""Rows that a transform or a torch data set makes when they are read, kept in a file for an evaluation."""

from __future__ import annotations

import os
import pickle
import random
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import is_augmented, parse_column, partner_numbers

BATCH = 64  # rows, possibly of images, that are made at once


class HeldRows(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows that were each made once, and are read from a temporary file as often as needed.

    If a transform is random, losses, answers and report of an evaluation would otherwise belong to different partners.
    Rows are made with seeded random numbers, and training keeps its own.

    `partners` `[N, P]` says which partners exist; `column_names` are the columns of the rows, then stored columns of
    originals that a transform leaves out.
    """

    def __init__(self, data: Any, seed: int = 0, workers: int = 0) -> None:
        self.data = data
        file, self._path = tempfile.mkstemp(prefix="dair_hf_rows_")
        weakref.finalize(self, _remove, self._path, os.getpid())
        self._starts: list[int] = []
        partners: list[list[int]] = []
        names: dict[str, None] = {}
        loader = DataLoader(
            data,
            batch_size=BATCH,
            collate_fn=list,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed),
        )
        with _seeded(seed), os.fdopen(file, "wb") as rows:
            for row in (row for batch in loader for row in batch):
                self._starts.append(rows.tell())
                # A tensor that is part of a batch would be written with the whole batch.
                kept = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in row.items()}
                pickle.dump(kept, rows, protocol=pickle.HIGHEST_PROTOCOL)
                partners.append(partner_numbers(name for name, value in kept.items() if value is not None))
                names |= dict.fromkeys(kept)
        self._made = list(names)
        self.partners = np.zeros((len(partners), max(partner_numbers(self._made), default=1)), dtype=bool)
        for of_row, numbers in zip(self.partners, partners, strict=True):
            of_row[[number - 1 for number in numbers]] = True
        bases = {*LABEL_COLUMNS, *(parse_column(name)[1] for name in self._made)}
        stored = data.column_names if isinstance(data, datasets.Dataset) else []
        self.column_names = [*self._made, *(n for n in stored if n not in bases and not is_augmented(n))]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> dict[str, Any]:
        with open(self._path, "rb") as rows:
            rows.seek(self._starts[row])
            made: dict[str, Any] = pickle.load(rows)
        return made

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [self[row] for row in rows]

    def column(self, name: str) -> list[Any]:
        """Return the values of a column for every row: as they were made, else as they are stored."""
        if name in self._made:
            return [self[row].get(name) for row in range(len(self))]
        stored: list[Any] = self.data.with_format(None)[name][:]
        return stored


def is_transformed(data: Any) -> bool:
    """Return whether a data set has a transform, which may make other columns than are stored."""
    return isinstance(data, datasets.Dataset) and data.format["type"] == "custom"


def without_format(data: Any) -> Any:
    """Return stored rows as Python values, whatever format was set; transformed rows and other data as they are."""
    is_formatted = isinstance(data, datasets.Dataset) and data.format["type"] not in (None, "custom")
    return data.with_format(None) if is_formatted else data


def held_rows(data: Any, args: TrainingArguments | None = None) -> Any:
    """Return `HeldRows` of data whose rows are made when they are read; other data, also streams, as they are."""
    is_stream = isinstance(data, torch.utils.data.IterableDataset | datasets.IterableDataset)
    is_stored = isinstance(data, datasets.Dataset) and not is_transformed(data)
    if data is None or is_stream or is_stored or isinstance(data, HeldRows | TensorPairs | EpochPairs):
        return data
    return HeldRows(data) if args is None else HeldRows(data, args.seed, args.dataloader_num_workers)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # workers of a data loader have copies
        os.unlink(path)
