"""Pairs of rows and edits: one random edit per epoch for training, every edit for evaluation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features
from datasets.fingerprint import Hasher
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable
from numpy.typing import NDArray

from dair_hf.data.collator import ROW_ID
from dair_hf.data.counter_rng import uniform
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.view_columns import AUGMENTED_PREFIX
from dair_hf.errors import DataError

QUESTION_ID = "question_id"
IMAGE_ID = "image_id"
STREAM = "vqa/edit"


class _Joined(NamedTuple):
    """Rows and edits, with the edits of each row."""

    rows: pa.Table
    edits: pa.Table
    features: Features
    question_ids: NDArray[np.int64]
    first_edit: NDArray[np.int64]
    edit_count: NDArray[np.int64]
    fingerprint: str


def edit_pairs(rows: Dataset, edits: Dataset, seed: int) -> EpochPairs:
    """Pair every row with one of its edits, drawn uniformly every epoch; rows without edits have no partner.

    The draw depends on `(seed, epoch, question_id)` and the edits of the question, not on the order of the data.

    Args:
        rows: Questions, with the columns `question_id` (int64) and `image_id`.
        edits: Edits, with the same two columns and any others of the rows.
        seed: Seed of the draws.

    Returns:
        Data set for the trainer, which sets the epoch.

    Raises:
        DataError: No edit belongs to a row.
    """
    joined = _join(rows, edits)
    return EpochPairs(lambda epoch: _drawn(joined, seed, epoch))


def expand_edits(rows: Dataset, edits: Dataset) -> Dataset:
    """Return one pair for every edit of every row, for evaluation; rows without edits are left out.

    Pairs are as in `edit_pairs`, in the order of the rows and then of the edited image. `row_id` becomes
    `<row_id>/<edited image>` to stay unique; rows with the same `question_id` belong together.

    Raises:
        DataError: No edit belongs to a row.

    Example:
        >>> rows = Dataset.from_dict({"row_id": ["1", "2"], "question_id": [1, 2], "image_id": ["9", "9"]})
        >>> edits = Dataset.from_dict({"question_id": [1, 1], "image_id": ["9_7", "9_5"]})
        >>> expand_edits(rows, edits)["row_id"][:]
        ['1/9_5', '1/9_7']
    """
    joined = _join(rows, edits)
    repeats = joined.edit_count
    row_numbers = np.repeat(np.arange(len(repeats)), repeats)
    edit_numbers = np.arange(len(row_numbers)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    repeated = joined._replace(
        rows=joined.rows.combine_chunks().take(row_numbers),
        first_edit=joined.first_edit[row_numbers],
        edit_count=joined.edit_count[row_numbers],
    )
    pairs = _paired(repeated, edit_numbers)
    if ROW_ID in pairs.column_names:
        ids = pc.binary_join_element_wise(pairs[ROW_ID], pairs[AUGMENTED_PREFIX + IMAGE_ID], "/")
        pairs = pairs.set_column(pairs.column_names.index(ROW_ID), ROW_ID, ids)
    return _dataset(pairs, joined.features, ("expand_edits", joined.fingerprint))


def _join(rows: Dataset, edits: Dataset) -> _Joined:
    # One chunk per column, since `take` is slow on many chunks.
    table = edits.with_format("arrow")[:].combine_chunks()
    table = table.take(pc.sort_indices(table, [(QUESTION_ID, "ascending"), (IMAGE_ID, "ascending")]))
    edited_ids = table[QUESTION_ID].to_numpy()
    row_table = rows.with_format("arrow")[:]
    ids = row_table[QUESTION_ID].to_numpy()
    first = np.searchsorted(edited_ids, ids, side="left")
    count = np.searchsorted(edited_ids, ids, side="right") - first
    if not count.any():  # without partners every method would train as ERM
        raise DataError(
            f"pairs: expected rows and edits of one split, got {len(edits)} edits, none of the {len(rows)} rows"
        )
    table = table.drop_columns([QUESTION_ID])
    table = table.rename_columns([AUGMENTED_PREFIX + name for name in table.column_names])
    partners = {AUGMENTED_PREFIX + name: feature for name, feature in edits.features.items() if name != QUESTION_ID}
    fingerprint = Hasher.hash((rows._fingerprint, edits._fingerprint))
    return _Joined(row_table, table, Features({**rows.features, **partners}), ids, first, count, fingerprint)


def _drawn(joined: _Joined, seed: int, epoch: int) -> Dataset:
    numbers = uniform(torch.tensor(joined.question_ids), seed, epoch, STREAM)[:, 0].numpy()
    pairs = _paired(joined, (numbers * joined.edit_count).astype(np.int64))
    return _dataset(pairs, joined.features, ("edit_pairs", joined.fingerprint, seed, epoch))


def _paired(joined: _Joined, edit_numbers: NDArray[np.int64]) -> pa.Table:
    """Return each row with the given one of its edits."""
    # Masked, since the index of a row without edits may be out of range.
    partners = joined.edits.take(pa.array(joined.first_edit + edit_numbers, mask=joined.edit_count == 0))
    pairs = joined.rows
    for name in partners.column_names:
        pairs = pairs.append_column(name, partners[name])
    return pairs


def _dataset(pairs: pa.Table, features: Features, source: tuple[object, ...]) -> Dataset:
    # Fingerprint of the source, because the default would hash the whole content.
    return Dataset(
        InMemoryTable(pairs.cast(features.arrow_schema)),
        info=DatasetInfo(features=features.copy()),
        fingerprint=Hasher.hash(source),
    )
