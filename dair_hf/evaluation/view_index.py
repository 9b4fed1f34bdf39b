"""Numbering of the views of paired rows, and the file of predictions on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dair_hf.data.view_columns import (
    variant_name,
)
from dair_hf.errors import DataError
from dair_hf.io.files import atomic_path
from dair_hf.io.pair_files import CLUSTER_KEY, PREDICTION_KEYS, require_predictions_file


class PairIndex:
    """Numbering of views: N originals, then all first partners that exist, all second ones, ..., M views in all.

    Args:
        partners: Which partners exist, `[N, P]` bool; or `[N]`, whether each row has a partner.
        row_ids: Names of the rows; None: their numbers.

    Raises:
        DataError: There is not one name per row.

    Attributes:
        partners: Which partners exist, `[N, P]` bool; P is the largest number of a partner, and at least 1.
        rows: Row of each view, `[M]`.
        variants: Variant of each view, `[M]`: 0 for an original, p for partner p.

    Example:
        >>> index = PairIndex(np.array([False, True]))
        >>> list(zip(index.rows.tolist(), index.variants.tolist()))
        [(0, 0), (1, 0), (1, 1)]
    """

    def __init__(self, partners: np.ndarray, row_ids: Sequence[Any] | None = None) -> None:
        partners = partners if partners.ndim == 2 else partners[:, None]
        width = 1 + max(np.flatnonzero(partners.any(0)).tolist(), default=0)
        self.partners = partners[:, :width] if partners.shape[1] else np.zeros((len(partners), 1), dtype=bool)
        exists = np.concatenate([np.ones((len(partners), 1), dtype=bool), self.partners], axis=1)
        self.variants, self.rows = np.nonzero(exists.T)
        self._row_ids = row_ids
        if row_ids is not None:
            self.require_one_per_row("row_ids", row_ids)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.partners)

    @property
    def has_partner(self) -> np.ndarray:
        """Mask of the rows with a partner, `[N]` bool."""
        return np.asarray(self.partners.any(1))

    @property
    def row_ids(self) -> Sequence[Any]:
        """Names of the rows, N of them."""
        return [str(row) for row in range(self.n_rows)] if self._row_ids is None else self._row_ids

    def require_one_per_row(self, name: str, values: Sequence[Any]) -> None:
        """Refuse a list of values of the rows that has another length.

        Args:
            name: Name of the values in messages.
            values: The values.

        Raises:
            DataError: There is not one value per row.
        """
        if len(values) != self.n_rows:
            raise DataError(f"{name}: {len(values)} values for {self.n_rows} rows; give one per row")

    def describe_view(self, view: int) -> str:
        """Return the words for a view in messages."""
        if view >= len(self):
            return f"value {view}"
        return f"row {self.row_ids[int(self.rows[view])]!r} ({variant_name(int(self.variants[view]))} view)"

    def flatten(self, *values: Sequence[Any]) -> list[Any]:
        """Return the values of all views, `[M]`, from those of the originals and of each partner number, `[N]` each."""
        return [values[variant][row] for variant, row in zip(self.variants.tolist(), self.rows.tolist(), strict=True)]

    def by_row(self, name: str, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return values of the views, `[M]`, by row: those of originals `[N]`, and of partners `[N, P]`.

        The value of an absent partner is that of its original.

        Raises:
            DataError: There is not one value per view.
        """
        array = np.asarray(values)
        if array.shape != (len(self),):
            raise DataError(
                f"{name}: found shape {list(array.shape)} for {len(self)} predictions; return one value each"
            )
        original = array[: self.n_rows]
        augmented = np.repeat(original[:, None], self.partners.shape[1], axis=1)
        augmented.T[self.partners.T] = array[self.n_rows :]
        return original, augmented

    def sums(
        self, original: np.ndarray, augmented: np.ndarray, counts: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return sums over the views of every row, `[N]`, and their numbers: of originals, and of partners.

        A row without a partner counts as two identical views.

        Args:
            original: Values of the originals, `[N]`.
            augmented: Values of the partners, `[N, P]`, as `by_row` returns them.
            counts: Which of these values count, of the same shapes, bool; None: all.
        """
        exists = self.partners.copy()
        exists[~self.has_partner, 0] = True
        of_originals, of_partners = (np.ones(self.n_rows, dtype=bool), exists)
        if counts is not None:
            of_originals, of_partners = counts[0], exists & counts[1]
        return (
            (np.where(of_originals, original, 0), of_originals.astype(np.int64)),
            (np.where(of_partners, augmented, 0).sum(1), of_partners.sum(1)),
        )

    def write(
        self,
        path: str | Path,
        predictions: Sequence[Any],
        references: Sequence[Any],
        correct: Iterable[Any],
        clusters: Sequence[Any] | None = None,
    ) -> None:
        """Write one JSON line per view: `row_id`, `variant`, `prediction`, `reference`, `correct`.

        Variants are "original", "augmented", and for further partners "augmented_2" and so on. With `clusters`, the
        independent unit of each row, such as its dialogue, each line also has a `cluster`.

        Raises:
            DataError: As `require_predictions_file`, there is not one cluster per row, or the file cannot be written.
        """
        if clusters is not None:
            self.require_one_per_row("clusters", clusters)
        require_predictions_file(path)  # again, in case another program wrote there meanwhile
        ids = self.row_ids
        with atomic_path(path) as scratch, scratch.open("w", encoding="utf-8", errors="backslashreplace") as lines:
            for row, variant, prediction, reference, is_correct in zip(
                self.rows, self.variants, predictions, references, correct, strict=True
            ):
                values = (
                    ids[int(row)],
                    variant_name(int(variant)),
                    prediction,
                    reference,
                    bool(is_correct),
                )
                line = dict(zip(PREDICTION_KEYS, values, strict=True))
                if clusters is not None:
                    line[CLUSTER_KEY] = str(clusters[int(row)])
                try:
                    lines.write(json.dumps(line, ensure_ascii=False, default=_as_lists) + "\n")
                except TypeError as error:
                    raise DataError(
                        f"{path}: row {values[0]!r} ({values[1]} view): prediction or label cannot be written as JSON "
                        f"({error}); give texts, numbers, lists or tensors"
                    ) from error


def as_plain(value: Any) -> Any:
    """Return a value with lists for arrays, tensors and tuples at any depth, so that two values can be compared.

    Example:
        >>> as_plain({"boxes": np.array([1, 2])}) == as_plain({"boxes": (1.0, 2.0)})
        True
    """
    if isinstance(value, Mapping):
        return {key: as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _as_lists(value: Any) -> Any:
    """Convert an array or tensor, at any depth, for `json.dumps`."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"found {type(value).__name__}")
    return value.tolist()
