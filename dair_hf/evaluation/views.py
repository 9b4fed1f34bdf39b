"""The views of a paired data set, one after the other, and what follows from which of them were answered right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dair_hf.data.collator import AUGMENTED_PREFIX, LABEL_COLUMNS, LABELS, NO_RULES, ROW_ID, RowRules, split_views
from dair_hf.data.sampling import EpochPairs, target_counts, view_lengths
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, ratios_with_intervals
from dair_hf.io.files import atomic_path

VARIANTS = ("original", "augmented")


class PairViews:
    """All original views of paired rows, then all augmented views that exist.

    Args:
        pairs: Paired rows.

    Attributes:
        has_partner: `[N]` bool.
        rows: `[M]`, the row of each view.
        variants: `[M]`, 0 for an original and 1 for an augmented view.

    Raises:
        DataError: No data, or data without random access.

    Example:
        >>> views = PairViews(datasets.Dataset.from_dict({"x": [1, 2], "augmented_x": [None, 5]}))
        >>> list(zip(views.rows.tolist(), views.variants.tolist()))
        [(0, 0), (1, 0), (1, 1)]
        >>> views.features([2])
        [{'x': 5}]
    """

    def __init__(self, pairs: datasets.Dataset | EpochPairs) -> None:
        dataset = pairs.pairs if isinstance(pairs, EpochPairs) else pairs
        if not isinstance(dataset, datasets.Dataset):
            raise DataError(
                f"evaluating pairs needs random access to the rows, found a {type(dataset).__name__}; "
                "pass a datasets.Dataset"
            )
        if len(dataset) == 0:
            raise DataError("the evaluation data set is empty; check the split and the filters before it")
        self.dataset = dataset
        self._number(_partner_mask(dataset))

    def _number(self, has_partner: np.ndarray) -> None:
        partners = has_partner.nonzero()[0]
        self.has_partner = has_partner
        self.rows = np.concatenate([np.arange(len(has_partner)), partners])
        self.variants = np.repeat([0, 1], [len(has_partner), len(partners)])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def column_names(self) -> list[str]:
        """Columns of the rows, those of the augmented view with their prefix."""
        return self.dataset.column_names

    def values(self, name: str) -> Any:
        """The values of one column for every row."""
        return self.dataset[name][:]

    def features(self, items: Sequence[int], rules: RowRules = NO_RULES) -> list[dict[str, Any]] | Mapping[str, Tensor]:
        """The views with these numbers, under the model's own column names: one by one, or as a batch already.

        Args:
            items: Numbers of views.
            rules: What the model asks of their rows.

        Raises:
            DataError: A row that `split_views` refuses, or whose partner has no columns of the model.
        """
        found = []
        for row, item in zip(self.dataset.__getitems__([int(self.rows[i]) for i in items]), items, strict=True):
            view = split_views(row, rules)[self.variants[item]]
            if view is None:
                name = self.dataset[ROW_ID][int(self.rows[item])] if ROW_ID in self.dataset.column_names else item
                raise DataError(
                    f"row {name!r} has a partner by some of its columns, but none in {self.dataset.column_names}; "
                    "encode both views, or give None in all augmented columns"
                )
            found.append(view)
        return found

    def originals(self) -> PairViews:
        """The original views alone."""
        names = [name for name in self.dataset.column_names if not name.startswith(AUGMENTED_PREFIX)]
        return PairViews(self.dataset.select_columns(names))

    def select_columns(self, columns: list[str]) -> PairViews:
        """The same views with these columns only."""
        selected = PairViews.__new__(PairViews)
        selected.dataset = self.dataset.select_columns(columns)
        selected.has_partner, selected.rows, selected.variants = self.has_partner, self.rows, self.variants
        return selected

    @property
    def label_column(self) -> str:
        """The column of the labels: one that collators of transformers take for them."""
        return next((name for name in LABEL_COLUMNS if name in self.column_names), LABELS)

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Views to run: of several originals that are equal in all columns but `row_id` only the first.

        Returns:
            `[K]`, numbers of views, and `[M]`, the place of each view's equal among them.

        Example:
            >>> data = datasets.Dataset.from_dict({"x": [1, 1], "augmented_x": [5, 6]})
            >>> [numbers.tolist() for numbers in PairViews(data).distinct()]
            [[0, 2, 3], [0, 0, 1, 2]]
        """
        first = np.arange(len(self))
        if self.dataset.format["type"] != "custom":  # what a transform gives is not what is stored
            names = [n for n in self.dataset.column_names if n != ROW_ID and not n.startswith(AUGMENTED_PREFIX)]
            known: dict[bytes, int] = {}
            for row, content in enumerate(_contents(self.dataset.select_columns(names))):
                first[row] = known.setdefault(content, row)
        items, place = np.unique(first, return_inverse=True)
        return items, place

    def lengths(self) -> np.ndarray:
        """`[M]`, number of input tokens of each view; all 0 where the inputs are no token lists."""
        return self._of_views("input_ids", view_lengths)

    def target_lengths(self) -> np.ndarray:
        """`[M]`, number of target tokens of each view; all 0 where there are no labels."""
        return self._of_views(LABELS, target_counts)

    def _of_views(self, column: str, measure: Callable[[datasets.Dataset, str], np.ndarray]) -> np.ndarray:
        """What `measure` finds in a list column and its partner's, for each view."""
        if column not in self.column_names:
            return np.zeros(len(self), dtype=np.int64)
        both = [measure(self.dataset.select_columns([column]), column)]
        name = AUGMENTED_PREFIX + column
        if self.has_partner.any() and name in self.column_names:  # else it is inherited
            both.append(measure(self.dataset.select_columns([name]), name))
        return np.where(self.variants == 0, both[0][self.rows], both[-1][self.rows])

    def longest_target(self) -> int:
        """Length of the longest label list; 0 where there are no labels."""
        return int(view_lengths(self.dataset, LABELS).max()) if LABELS in self.column_names else 0

    def column(self, name: str) -> list[Any]:
        """The values of column `name` for every view: of `augmented_<name>` for an augmented one.

        Labels without a column for the augmented views are inherited (`split_views`).

        Raises:
            DataError: The data has no such column.
        """
        wanted = [name, AUGMENTED_PREFIX + name] if self.has_partner.any() else [name]
        if name in LABEL_COLUMNS and AUGMENTED_PREFIX + name not in self.column_names:
            wanted = [name] * len(wanted)
        if missing := [column for column in wanted if column not in self.column_names]:
            raise DataError(f"column {missing[0]!r} is missing; the data has {self.column_names}")
        values = [self.values(column) for column in wanted]
        return [values[variant][row] for row, variant in zip(self.rows, self.variants, strict=True)]

    def judge(
        self,
        correct: Any,
        clusters: str | None = None,
        accuracy_name: str = "accuracy",
        n_bootstrap: int = 1000,
        *,
        answers: Sequence[Any] | None = None,
        scores: Mapping[str, ArrayLike] | None = None,
        subsets: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """`evaluation.correctness_metrics` of the correctness of every view.

        Args:
            correct: `[M]`, right or wrong as `evaluation.as_correct` takes it, in the order of the views.
            clusters: Column whose equal values are resampled together; None: `dialogue_id` where the data has it, else
                every row on its own.
            accuracy_name: What stands for "accuracy" in the keys.
            n_bootstrap: Resamples of the intervals.
            answers: `[M]`, what was answered to every view, comparable with `==`: adds the flips of the answers.
            scores: Name -> `[M]` floats, graded correctness: adds `original_<name>` and `augmented_<name>`, their means
                over the rows (a row without partner counts as its original in both).
            subsets: Name -> `[N]` bool, rows over which everything is computed once more, under `<name>_<key>`.

        Returns:
            As `correctness_metrics`.

        Raises:
            DataError: Another number of values than views or rows, or a value that is neither right nor wrong.
        """
        original, augmented = self._by_row("is_correct", self.correctness(correct))
        if clusters is None and "dialogue_id" in self.column_names:
            clusters = "dialogue_id"
        groups = self.values(clusters) if clusters else None
        changed = None if answers is None else self._answer_changed(answers)
        graded = {
            f"{variant}_{name}": values
            for name, both in (scores or {}).items()
            for variant, values in zip(VARIANTS, self._by_row(name, both), strict=True)
        }

        def over(rows: NDArray[np.bool_]) -> dict[str, Any]:
            own_groups = None if groups is None else list(compress(groups, rows))
            found: dict[str, Any] = correctness_metrics(
                original[rows],
                augmented[rows],
                self.has_partner[rows],
                own_groups,
                answer_changed=None if changed is None else changed[rows],
                n_bootstrap=n_bootstrap,
            )
            found = {key.replace("_accuracy", f"_{accuracy_name}"): value for key, value in found.items()}
            ratios = {name: (values[rows], np.ones(rows.sum())) for name, values in graded.items()}
            return found | (ratios_with_intervals(ratios, own_groups, n_bootstrap=n_bootstrap) if ratios else {})

        found = over(np.ones_like(original))
        for name, mask in (subsets or {}).items():
            rows = as_correct(mask, f"subsets[{name!r}]")
            if rows.shape != original.shape:
                raise DataError(
                    f"subsets[{name!r}]: {len(rows)} values for {len(original)} rows; give one for every row"
                )
            found |= {f"{name}_{key}": value for key, value in over(rows).items()}
        return found

    def correctness(self, correct: Any) -> NDArray[np.bool_]:
        """`[M]` bool of what `is_correct` answered; see `evaluation.as_correct`.

        Raises:
            DataError: A value is neither right nor wrong; the message names its row and view.
        """
        return as_correct(correct, "is_correct", self._name)

    def require_unique_rows(self) -> None:
        """Refuse rows of one name, which nobody could tell apart in what is written of them.

        Raises:
            DataError: A `row_id` occurs more than once.
        """
        places: dict[Any, int] = {}
        for row, name in enumerate(self._row_ids()):
            if (first := places.setdefault(name, row)) != row:
                raise DataError(
                    f"row_id {name!r} names row {first} and row {row} of the data; give each row an id of its own"
                )

    def _name(self, item: int) -> str:
        if item >= len(self):
            return f"value {item}"
        return f"row {self._row_ids()[self.rows[item]]!r} ({VARIANTS[self.variants[item]]} view)"

    def _row_ids(self) -> Sequence[Any]:
        return (
            self.values(ROW_ID) if ROW_ID in self.column_names else [str(row) for row in range(len(self.has_partner))]
        )

    def _by_row(self, name: str, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Values of the views as two arrays `[N]`; a row without partner has its original's value in both."""
        of_views = np.asarray(values)
        if of_views.shape != (len(self),):
            raise DataError(
                f"{name} answered with shape {list(of_views.shape)} for {len(self)} predictions; it must return one "
                "value for each"
            )
        original = of_views[: len(self.has_partner)]
        augmented = original.copy()
        augmented[self.has_partner] = of_views[len(self.has_partner) :]
        return original, augmented

    def _answer_changed(self, answers: Sequence[Any]) -> np.ndarray:
        numbers: dict[Any, int] = {}
        # Answers may be anything that compares; as numbers they are an array like all others.
        original, augmented = self._by_row("answers", [numbers.setdefault(answer, len(numbers)) for answer in answers])
        return original != augmented

    def write(self, path: str | Path, predictions: Sequence[Any], references: Sequence[Any], correct: Any) -> None:
        """One JSON line a view: `row_id`, `variant`, `prediction`, `reference`, `correct`; written atomically."""
        ids = self._row_ids()
        with atomic_path(path) as scratch, scratch.open("w", encoding="utf-8", errors="backslashreplace") as lines:
            for row, variant, prediction, reference, right in zip(
                self.rows, self.variants, predictions, references, self.correctness(correct), strict=True
            ):
                line = {
                    "row_id": ids[row],
                    "variant": VARIANTS[variant],
                    "prediction": _plain(prediction),
                    "reference": _plain(reference),
                    "correct": bool(right),
                }
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def _partner_mask(dataset: datasets.Dataset) -> np.ndarray:
    """Which rows have a partner, `[N]` bool: those with an augmented column that is not null."""
    found = np.zeros(len(dataset), dtype=bool)
    for name in dataset.column_names:
        if name.startswith(AUGMENTED_PREFIX):
            table = dataset.select_columns([name]).with_format("arrow")[:]
            found |= table[name].is_valid().to_numpy()
    return found


def _contents(dataset: datasets.Dataset) -> Iterator[bytes]:
    """A hash of every row, as it is stored."""
    if not dataset.column_names:
        yield from (str(row).encode() for row in range(len(dataset)))
        return
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        for batch in table.combine_chunks().to_batches():
            for row in range(batch.num_rows):
                # Taken and not sliced: a slice keeps bits of its neighbours.
                yield hashlib.blake2b(batch.take(pa.array([row])).serialize()).digest()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
