"""Views of paired data as one list: all originals, then the augmented views that exist, one partner number each."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dair_hf.data.collator import LABELS, ROW_ID, split_views
from dair_hf.data.held_rows import HeldRows, held_rows
from dair_hf.data.row_rules import LABEL_COLUMNS, NO_RULES, RowRules
from dair_hf.data.sampling import EpochPairs, targets_per_row, view_lengths
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import (
    columns_of_views,
    is_augmented,
    parse_column,
    partner_numbers,
    view_prefix,
)
from dair_hf.errors import DataError
from dair_hf.evaluation.view_index import PairIndex
from dair_hf.losses.per_sample import IGNORE_INDEX

CHUNK = 1024  # rows of a computed view that are held at once to read one of its columns


class PairViews(PairIndex):
    """Views of a paired data set.

    Args:
        pairs: Paired rows.

    Raises:
        DataError: No rows, or data without random access.

    Example:
        >>> views = PairViews(datasets.Dataset.from_dict({"x": [1, 2], "augmented_x": [None, 5]}))
        >>> views.features([2])
        [{'x': 5}]
    """

    def __init__(self, pairs: datasets.Dataset | EpochPairs) -> None:
        dataset = pairs.pairs if isinstance(pairs, EpochPairs) else pairs
        if not isinstance(dataset, datasets.Dataset):
            raise DataError(
                f"evaluating pairs needs columns with random access to the rows, found a {type(dataset).__name__}; "
                "pass a datasets.Dataset, such as datasets.Dataset.from_list([*rows]), or TensorPairs"
            )
        _require_any(dataset)
        self.dataset: Any = dataset
        super().__init__(_partner_masks(dataset))

    @property
    def column_names(self) -> list[str]:
        """Columns of the rows; those of the augmented view have their prefix."""
        return self.dataset.column_names

    @property
    def row_ids(self) -> Sequence[Any]:
        """Names of the rows: the column `row_id`, else their numbers."""
        return self.values(ROW_ID) if ROW_ID in self.column_names else super().row_ids

    def values(self, name: str) -> Any:
        """Return the values of a column for every row, as they are stored.

        A format such as "torch" is for the features of a model: in references, it would make tensors of lists.
        """
        return self.dataset.with_format(None)[name][:]

    def features(self, views: Sequence[int], rules: RowRules = NO_RULES) -> list[dict[str, Any]] | Mapping[str, Tensor]:
        """Return views under the model's own column names, one by one or as a batch.

        Args:
            views: Numbers of views.
            rules: Requirements of the model on its rows.

        Raises:
            DataError: A row that `split_views` refuses, or whose partner lacks the columns of the model.
        """
        features = []
        for row, view in zip(self._read([int(self.rows[v]) for v in views]), views, strict=True):
            of_row, variant = split_views(row, rules), int(self.variants[view])
            columns = of_row[variant] if variant < len(of_row) else None
            if columns is None:
                raise DataError(
                    f"row {self.row_ids[int(self.rows[view])]!r} has a partner in some of its columns, but none in "
                    f"{self.column_names}; "
                    "encode both views, or give None in all augmented columns"
                )
            features.append(columns)
        return features

    def _read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows with the columns of these views."""
        found: list[dict[str, Any]] = self.dataset.__getitems__(rows)
        return found

    def originals(self) -> PairViews:
        """Return the original views alone."""
        names = [name for name in self.dataset.column_names if not is_augmented(name)]
        return PairViews(self.dataset.select_columns(names))

    def select_columns(self, columns: list[str]) -> PairViews:
        """Return the same views with these columns only."""
        selected = PairViews.__new__(PairViews)
        selected.dataset = self.dataset.select_columns(columns)
        PairIndex.__init__(selected, self.partners)
        return selected

    @property
    def label_column(self) -> str:
        """Column of the labels: `labels`, or another name that collators of transformers take for it."""
        return next((name for name in LABEL_COLUMNS if name in self.column_names), LABELS)

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Find the views to run: of originals that are equal in all columns but `row_id`, only the first.

        Returns:
            Numbers of the K views to run, and for each of the M views the position of its equal among them.

        Example:
            >>> data = datasets.Dataset.from_dict({"x": [1, 1], "augmented_x": [5, 6]})
            >>> [numbers.tolist() for numbers in PairViews(data).distinct()]
            [[0, 2, 3], [0, 0, 1, 2]]
        """
        first = np.arange(len(self))
        names = [n for n in self.dataset.column_names if n != ROW_ID and not is_augmented(n)]
        seen: dict[bytes, int] = {}
        for row, digest in enumerate(_row_digests(self.dataset.select_columns(names))):
            first[row] = seen.setdefault(digest, row)
        return np.unique(first, return_inverse=True)

    def lengths(self) -> np.ndarray:
        """Return the number of input tokens of each view, `[M]`; zeros if inputs are no token lists."""
        return self._measure("input_ids", view_lengths)

    def target_lengths(self) -> np.ndarray:
        """Return the number of target tokens of each view, `[M]`; zeros if labels are no sequences."""
        return self._measure(LABELS, targets_per_row)

    def _measure(self, column: str, measure: Callable[[datasets.Dataset, str], np.ndarray]) -> np.ndarray:
        if column not in self.column_names:
            return np.zeros(len(self), dtype=np.int64)
        numbers = measure(self.dataset.select_columns([column]), column)[self.rows]
        for view, name in columns_of_views(column, self.column_names).items():
            is_of_view = self.variants == view
            if view and is_of_view.any():  # partners without the column inherit it
                measured = measure(self.dataset.select_columns([name]), name)
                numbers[is_of_view] = measured[self.rows[is_of_view]]
        return numbers

    def longest_target(self) -> int:
        """Return the number of tokens of the longest target; 0 if labels are no sequences."""
        return int(self.target_lengths().max())

    def column(self, name: str, inherited: bool = False) -> list[Any]:
        """Return the values of column `name` for every view; those of `augmented_<name>` for first partners, and so on.

        Labels without a column for the augmented views are inherited (`split_views`).

        Args:
            name: Column of the originals.
            inherited: Whether partners without a column of their own have the value of their original, as for labels.

        Raises:
            DataError: The data has no such column.
        """
        wanted = {view: view_prefix(view) + name for view in np.unique(self.variants).tolist()}
        if inherited or name in LABEL_COLUMNS:
            wanted = {view: column if column in self.column_names else name for view, column in wanted.items()}
        if missing := [column for column in wanted.values() if column not in self.column_names]:
            raise DataError(f"column {missing[0]!r} is missing; the data has {self.column_names}")
        values = {column: self.values(column) for column in set(wanted.values())}
        return [values[wanted[variant]][row] for row, variant in zip(self.rows, self.variants.tolist(), strict=True)]

    def require_unique_rows(self) -> None:
        """Refuse data in which a `row_id` occurs more than once.

        Raises:
            DataError: It does; the message names the rows.
        """
        first_with: dict[Any, int] = {}
        for row, name in enumerate(self.row_ids):
            if (first := first_with.setdefault(name, row)) != row:
                raise DataError(
                    f"row_id {name!r} names row {first} and row {row} of the data; give each row an id of its own"
                )


class TensorViews(PairViews):
    """Views of `TensorPairs`, read in batches that need no collator.

    Args:
        pairs: Paired rows held as tensors.

    Raises:
        DataError: No rows.

    Example:
        >>> views = TensorViews(TensorPairs({"x": torch.tensor([1, 2])}, {"x": torch.tensor([5, 6])}))
        >>> views.features([1, 2])
        {'x': tensor([2, 5])}
    """

    def __init__(self, pairs: TensorPairs) -> None:
        _require_any(pairs)
        self.pairs = pairs
        PairIndex.__init__(self, pairs.partners)

    @property
    def column_names(self) -> list[str]:
        """Columns of the rows: those kept beside the views, then those of the views."""
        original = list(self._first_original())
        partners = np.unique(self.variants)[1:].tolist()
        augmented = [view_prefix(view) + name for view in partners for name in original]
        return [ROW_ID, *self.pairs.columns, *original, *augmented]

    def _first_original(self) -> Mapping[str, Tensor]:
        return self.pairs.view(torch.zeros(1, dtype=torch.int64, device=self.pairs.device), 0)

    def values(self, name: str) -> Any:
        """Return the values of a column for every row; None in the column of a partner that the row lacks."""
        if name == ROW_ID:
            return self.pairs.row_ids.tolist()
        if name in self.pairs.columns:
            return self.pairs.columns[name]
        view, column = parse_column(name)
        rows = self.rows[self.variants == view]
        values: list[Any] = [None] * self.n_rows
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            columns = self.pairs.view(torch.as_tensor(chunk, device=self.pairs.device), view)
            for row, value in zip(chunk, columns[column].tolist(), strict=True):
                values[row] = value
        return values

    def features(self, views: Sequence[int], rules: RowRules = NO_RULES) -> Mapping[str, Tensor]:
        """Return views as one batch, `{column: [B, ...]}`; the rules, which are of single rows, are not checked."""
        rows, variants = self.rows[np.asarray(views)], self.variants[np.asarray(views)]
        parts = []
        for variant in np.unique(variants):
            chosen = (variants == variant).nonzero()[0]
            some = torch.as_tensor(rows[chosen], device=self.pairs.device)
            parts.append((chosen, self.pairs.view(some, int(variant))))
        if len(parts) == 1:
            return parts[0][1]
        back = torch.as_tensor(np.argsort(np.concatenate([chosen for chosen, _ in parts])), device=self.pairs.device)
        return {name: torch.cat([part[name] for _, part in parts])[back] for name in parts[0][1]}

    def originals(self) -> TensorViews:
        """Return the original views alone."""
        return TensorViews(self.pairs.originals())

    def select_columns(self, columns: list[str]) -> TensorViews:
        """Return the views: `TensorPairs` keep columns of the model apart from others."""
        return self

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all views: tensors are not searched for equal rows."""
        return np.arange(len(self)), np.arange(len(self))

    def lengths(self) -> np.ndarray:
        """Return zeros, `[M]`: rows of a tensor have one length."""
        return np.zeros(len(self), dtype=np.int64)

    def target_lengths(self) -> np.ndarray:
        """Return zeros, `[M]`: label rows have one length, too."""
        return np.zeros(len(self), dtype=np.int64)

    def longest_target(self) -> int:
        """Return the length of the label rows; 0 if labels are no sequences."""
        labels = self._first_original().get(LABELS)
        return labels.shape[1] if labels is not None and labels.ndim > 1 else 0


class HeldViews(PairViews):
    """Views of `HeldRows`."""

    def __init__(self, rows: HeldRows) -> None:
        _require_any(rows)
        self.dataset = rows
        self._names = rows.column_names
        PairIndex.__init__(self, rows.partners)

    @property
    def column_names(self) -> list[str]:
        """Columns of the rows."""
        return self._names

    def values(self, name: str) -> Any:
        """Return the values of a column for every row."""
        return self.dataset.column(name)

    def _read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [{name: row[name] for name in self._names if name in row} for row in super()._read(rows)]

    def originals(self) -> HeldViews:
        """Return the original views alone."""
        found = self.select_columns([name for name in self._names if not is_augmented(name)])
        PairIndex.__init__(found, np.zeros_like(self.partners))
        return found

    def select_columns(self, columns: list[str]) -> HeldViews:
        """Return the same views with these columns only."""
        found = copy.copy(self)
        found._names = columns
        return found

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all views: made rows are not searched for equal ones."""
        return np.arange(len(self)), np.arange(len(self))

    def _measure(self, column: str, measure: Callable[[datasets.Dataset, str], np.ndarray]) -> np.ndarray:
        values = self.column(column) if column in self.column_names else [0] * len(self)
        return np.array([np.sum(np.asarray(value) != IGNORE_INDEX) if np.ndim(value) else 0 for value in values])


def views_of(pairs: Any) -> PairViews:
    """Return the views of paired rows; rows that are made when they are read are held first (`HeldRows`)."""
    if isinstance(pairs, TensorPairs):
        return TensorViews(pairs)
    pairs = held_rows(pairs)
    return HeldViews(pairs) if isinstance(pairs, HeldRows) else PairViews(pairs)


def _require_any(rows: Any) -> None:
    if len(rows) == 0:
        raise DataError("the evaluation data set is empty; check the split and the filters before it")


def _partner_masks(dataset: datasets.Dataset) -> np.ndarray:
    """Return which partners exist, `[N, P]` bool: those with a column that is not null."""
    masks = np.zeros((len(dataset), max(partner_numbers(dataset.column_names), default=1)), dtype=bool)
    for name in dataset.column_names:
        if view := parse_column(name)[0]:
            table = dataset.select_columns([name]).with_format("arrow")[:]
            masks[:, view - 1] |= table[name].is_valid().to_numpy()
    return masks


def _row_digests(dataset: datasets.Dataset) -> Iterator[bytes]:
    """Yield a hash of every row as it is stored."""
    if not dataset.column_names:
        yield from (str(row).encode() for row in range(len(dataset)))
        return
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        for batch in table.combine_chunks().to_batches():
            for row in range(batch.num_rows):
                # `take`, since a slice keeps bits of its neighbours.
                yield hashlib.blake2b(batch.take(pa.array([row])).serialize()).digest()
