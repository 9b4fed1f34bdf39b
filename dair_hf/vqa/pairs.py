"""Rows and their edits as pairs: one edit drawn for each epoch of training, every edit for evaluation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, Value
from datasets.fingerprint import Hasher
from datasets.info import DatasetInfo
from datasets.table import InMemoryTable
from numpy.typing import NDArray

from dair_hf.data.collator import AUGMENTED_PREFIX, ROW_ID
from dair_hf.data.counter_rng import uniform
from dair_hf.data.sampling import EpochPairs
from dair_hf.errors import DataError

QUESTION_ID = "question_id"
IMAGE_ID = "image_id"
STREAM = "vqa/edit"


class _Joined(NamedTuple):
    """Rows and edits, and which edits belong to which row.

    Attributes:
        rows: The rows.
        edits: The edits, sorted by question and edited image.
        features: Of rows and edits as pairs.
        question_ids: `[N]` int64, of the rows.
        first_edit: `[N]` int64, for each row the place of its first edit.
        edit_count: `[N]` int64, how many it has.
        fingerprint: Of both data sets.
    """

    rows: pa.Table
    edits: pa.Table
    features: Features
    question_ids: NDArray[np.int64]
    first_edit: NDArray[np.int64]
    edit_count: NDArray[np.int64]
    fingerprint: str


def draw_edits(rows: Dataset, edits: Dataset, seed: int, epoch: int) -> Dataset:
    """Pair every row with one of its edits, each equally likely; rows without edits have no partner.

    The draw depends on `(seed, epoch, question_id)` and on which edits the question has, not on the order of either
    data set.

    Args:
        rows: Questions, from `read_vqa`, perhaps a part of them, perhaps with columns that were added.
        edits: From `read_edits`, with the same columns added. Edits of other questions are left alone.
        seed: Seed of the run.
        epoch: Epoch.

    Returns:
        The rows with the columns of their edits under the prefix `augmented_`, all None where there is no edit.

    Raises:
        DataError: A column is missing, the edits have one that the rows lack, or none of the edits belongs to a row.

    Example:
        >>> rows = Dataset.from_dict({"question_id": [1, 2], "image_id": ["9", "9"], "answers": [["2"], ["a cup"]]})
        >>> edits = Dataset.from_dict({"question_id": [1], "image_id": ["9_5"], "answers": [["1"]]})
        >>> draw_edits(rows, edits, seed=0, epoch=0)["augmented_answers"][:]
        [['1'], None]
    """
    return _drawn(_joined(rows, edits), seed, epoch)


def edit_pairs(rows: Dataset, edits: Dataset, seed: int) -> EpochPairs:
    """Training pairs that show another edit of each question every epoch; see `draw_edits`.

    Args:
        rows: Questions.
        edits: Their edits.
        seed: Seed of the draws.

    Returns:
        For the trainer, which sets the epoch.

    Raises:
        DataError: As `draw_edits`.
    """
    joined = _joined(rows, edits)
    return EpochPairs(lambda epoch: _drawn(joined, seed, epoch))


def expand_edits(rows: Dataset, edits: Dataset, *, keep_unedited: bool = False) -> Dataset:
    """One pair for every edit of every row, to evaluate on all of them.

    Args:
        rows: Questions.
        edits: Their edits.
        keep_unedited: Whether rows without edits stay, once and without partner.

    Returns:
        Pairs as `draw_edits` makes them, in the order of the rows and within one sorted by edited image. `row_id`
        becomes `<row_id>/<edited image>`, since a row may come several times; `question_id` tells which belong
        together.

    Raises:
        DataError: As `draw_edits`.

    Example:
        >>> rows = Dataset.from_dict({"row_id": ["1", "2"], "question_id": [1, 2], "image_id": ["9", "9"]})
        >>> edits = Dataset.from_dict({"question_id": [1, 1], "image_id": ["9_7", "9_5"]})
        >>> expand_edits(rows, edits, keep_unedited=True)["row_id"][:]
        ['1/9_5', '1/9_7', '2']
    """
    joined = _joined(rows, edits)
    times = np.maximum(joined.edit_count, 1) if keep_unedited else joined.edit_count
    place = np.repeat(np.arange(len(times)), times)
    within = np.arange(len(place)) - np.repeat(np.cumsum(times) - times, times)
    repeated = joined._replace(
        rows=joined.rows.combine_chunks().take(place),
        first_edit=joined.first_edit[place],
        edit_count=joined.edit_count[place],
    )
    pairs = _paired(repeated, within)
    if ROW_ID in pairs.column_names:
        names = pc.binary_join_element_wise(
            pairs[ROW_ID], pairs[AUGMENTED_PREFIX + IMAGE_ID], "/", null_handling="skip"
        )
        pairs = pairs.set_column(pairs.column_names.index(ROW_ID), ROW_ID, names)
    return _dataset(pairs, joined.features, ("expand_edits", joined.fingerprint, keep_unedited))


def _joined(rows: Dataset, edits: Dataset) -> _Joined:
    _require_columns(rows, edits)
    # One chunk a column: taking rows from many chunks copies far more than it takes.
    table = edits.with_format("arrow")[:].combine_chunks()
    table = table.take(pc.sort_indices(table, [(QUESTION_ID, "ascending"), (IMAGE_ID, "ascending")]))
    edited_ids = table[QUESTION_ID].to_numpy()
    row_table = rows.with_format("arrow")[:]
    ids = row_table[QUESTION_ID].to_numpy()
    first = np.searchsorted(edited_ids, ids, side="left")
    count = np.searchsorted(edited_ids, ids, side="right") - first
    if not count.any():
        raise DataError(
            f"pairs: none of the {len(edits)} edits belongs to one of the {len(rows)} rows; take both of one split"
        )
    table = table.drop_columns([QUESTION_ID])
    table = table.rename_columns([AUGMENTED_PREFIX + name for name in table.column_names])
    partners = {AUGMENTED_PREFIX + name: feature for name, feature in edits.features.items() if name != QUESTION_ID}
    fingerprint = Hasher.hash((rows._fingerprint, edits._fingerprint))
    return _Joined(row_table, table, Features({**rows.features, **partners}), ids, first, count, fingerprint)


def _require_columns(rows: Dataset, edits: Dataset) -> None:
    for name, data in (("rows", rows), ("edits", edits)):
        if missing := {QUESTION_ID, IMAGE_ID} - set(data.column_names):
            raise DataError(
                f"pairs: the {name} lack column {', '.join(sorted(missing))} (found {', '.join(data.column_names)}); "
                "read them with read_vqa and read_edits"
            )
        if data.features[QUESTION_ID] != Value("int64"):
            raise DataError(f"pairs: {QUESTION_ID} of the {name} is {data.features[QUESTION_ID]}; make it int64")
    if unknown := sorted(set(edits.column_names) - set(rows.column_names)):
        raise DataError(f"pairs: the edits have column {', '.join(unknown)}, the rows have not; encode both alike")
    if paired := [name for name in rows.column_names if name.startswith(AUGMENTED_PREFIX)]:
        raise DataError(f"pairs: the rows have column {', '.join(paired)} already; give rows without partners")


def _drawn(joined: _Joined, seed: int, epoch: int) -> Dataset:
    numbers = uniform(torch.tensor(joined.question_ids), seed, epoch, STREAM)[:, 0].numpy()
    pairs = _paired(joined, (numbers * joined.edit_count).astype(np.int64))
    return _dataset(pairs, joined.features, ("draw_edits", joined.fingerprint, seed, epoch))


def _paired(joined: _Joined, within: NDArray[np.int64]) -> pa.Table:
    """Each row with its edit number `within`."""
    # Where a row has no edit its place may lie past the last one; the mask keeps it from being looked at.
    partners = joined.edits.take(pa.array(joined.first_edit + within, mask=joined.edit_count == 0))
    pairs = joined.rows
    for name in partners.column_names:
        pairs = pairs.append_column(name, partners[name])
    return pairs


def _dataset(pairs: pa.Table, features: Features, made_of: tuple[object, ...]) -> Dataset:
    # The fingerprint says how they were made; the default would hash all of their content.
    return Dataset(
        InMemoryTable(pairs.cast(features.arrow_schema)),
        info=DatasetInfo(features=features.copy()),
        fingerprint=Hasher.hash(made_of),
    )
