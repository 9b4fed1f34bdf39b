"""Experiments with few pairs: only a share of the rows, or of the dialogues, keeps its partners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset

from dair_hf.data.counter_rng import subset
from dair_hf.data.view_columns import parse_column


def keep_partners(rows: Dataset, share: float, seed: int, *, groups: str | None = None) -> Dataset:
    """Remove the partners of all but a random share of the rows; a larger share contains the rows of a smaller one.

    Args:
        rows: Paired rows.
        share: Share of the rows, or of the groups, that keep their partners, in (0, 1]. Rows that never had a partner
            count, too.
        seed: Seed of the choice.
        groups: Column whose equal values keep or lose their partners together, such as `dialogue_id`. None: each row
            for itself.

    Example:
        >>> rows = Dataset.from_dict({"x": [1, 2], "augmented_x": [3, 4]})
        >>> keep_partners(rows, 0.5, seed=0)["augmented_x"][:]
        [None, 4]
    """
    if share == 1.0:
        return rows
    # Unformatted: "torch" makes tensors of groups, which never are equal, and fails at partners of unequal length.
    plain = rows.with_format(None)
    units = list(range(len(rows))) if groups is None else plain[groups][:]
    distinct = list(dict.fromkeys(units))
    chosen = subset(torch.arange(len(distinct)), share, seed, "pair_share")
    kept = dict(zip(distinct, chosen.tolist(), strict=True))
    of_partners = [name for name in rows.column_names if parse_column(name)[0] > 0]

    def remove(batch: Mapping[str, Sequence[Any]], indices: Sequence[int]) -> dict[str, list[Any]]:
        return {
            name: [value if kept[units[index]] else None for value, index in zip(batch[name], indices, strict=True)]
            for name in of_partners
        }

    fewer = plain.map(remove, with_indices=True, batched=True, features=rows.features, desc="Removing partners")
    return fewer.with_format(**rows.format)
