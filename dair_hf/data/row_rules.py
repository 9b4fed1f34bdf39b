"""Requirements of a model on rows: which labels and ids are valid, and what a partner inherits from its original."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dair_hf.data.view_columns import view_prefix
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

LABEL_COLUMNS = ("labels", "label_ids", "label")  # collators of transformers rename each to `labels`
TARGET_PREFIXES = ("label", "decoder_")  # of the columns of the output, including their masks


@dataclass(frozen=True)
class RowRules:
    """Requirements of a model on rows."""

    labels_per_token: bool = False
    """One label per token of `input_ids`. Partners then need their own labels."""
    labels_as_long_as_inputs: bool = False
    """As many labels as inputs, since a collator of transformers would otherwise move labels to other tokens."""
    id_limits: Mapping[str, int] = field(default_factory=dict)
    """Column -> exclusive upper limit of its ids: the size of the vocabulary, or the number of classes."""
    label_range: tuple[float, float] | None = None
    """Smallest and largest label of a loss of probabilities, such as (0, 1); None: any label."""

    def inherits(self, name: str, original: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
        """Return whether a partner with the columns `present` takes a column from its original.

        It takes labels, and a mask that fits: both views have the same inputs, or inputs of the same shape and a mask
        of ones.
        """
        if name in LABEL_COLUMNS:
            return not self.labels_per_token
        if not name.endswith("_mask"):
            return False
        is_of_target = name.startswith(TARGET_PREFIXES)
        covered = [other for other in present if other.startswith(TARGET_PREFIXES) == is_of_target]
        try:
            ones = bool((np.asarray(original[name]) == 1).all())
            pairs = [(np.asarray(original[other]), np.asarray(present[other])) for other in covered]
        except (TypeError, ValueError):  # lists of different lengths in one column, types that numpy does not have
            return False
        # Zeros mark the padding of the original; the partner may be padded elsewhere.
        return all(left.shape == right.shape and (ones or np.array_equal(left, right)) for left, right in pairs)

    def check(self, where: str, view: int, columns: Mapping[str, Any]) -> None:
        """Refuse ids that a GPU would report without the row, labels out of range, and masks of another length."""
        limits = [(name, 0.0, limit - 1.0, True) for name, limit in self.id_limits.items()]
        if self.label_range is not None:
            limits += [(name, *self.label_range, False) for name in LABEL_COLUMNS]
        for name, low, high, are_ids in limits:
            if name not in columns:
                continue
            try:
                values = np.asarray(columns[name])
                numbers = values.astype(np.float64)
            except (TypeError, ValueError):
                continue  # texts, or lists of different lengths, which the collator refuses
            is_whole = values.dtype.kind in "iu"
            if are_ids and not is_whole:
                continue  # scores of classes
            is_valid = (numbers >= low) & (numbers <= high)
            if name in LABEL_COLUMNS and is_whole:
                is_valid |= numbers == IGNORE_INDEX
            if not is_valid.all():
                found = numbers[~is_valid].flat[0]
                column = view_prefix(view) + name
                raise DataError(f"{where}: expected {column} from {low:g} to {high:g}, got {found:g}")
        ids, mask = columns.get("input_ids"), columns.get("attention_mask")
        if isinstance(ids, Sized) and isinstance(mask, Sized) and len(ids) != len(mask):  # the rest would be masked
            column = view_prefix(view) + "attention_mask"
            raise DataError(f"{where}: expected {column} for each of {len(ids)} tokens, got {len(mask)}")

    def check_collated(self, where: str, view: int, columns: Mapping[str, Any]) -> None:
        """Refuse as many labels as a collator of transformers would move to other tokens."""
        ids = columns.get("input_ids")
        for name in LABEL_COLUMNS if self.labels_as_long_as_inputs else ():
            labels = columns.get(name)
            if isinstance(ids, Sized) and isinstance(labels, Sized) and len(labels) != len(ids):
                column = view_prefix(view) + name
                raise DataError(f"{where}: expected {column} for each of {len(ids)} tokens, got {len(labels)}")


NO_RULES = RowRules()
