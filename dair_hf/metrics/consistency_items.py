"""Consistency metric from the states of both views, or from their correctness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dair_hf.data.view_columns import variant_number
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, mcnemar
from dair_hf.metrics.json_items import require_unique_ids, short
from dair_hf.metrics.state.conventions import Convention
from dair_hf.metrics.state.items import (
    Turn,
    join_views,
    read_cluster,
    read_id,
    read_view_id,
    require_all_or_no_clusters,
    view_name,
    warn_of_one_cluster,
)
from dair_hf.metrics.state.matching import compare_turns


@dataclasses.dataclass(frozen=True)
class PairCorrectness:
    """Correctness of the views of a row.

    `cluster` is its independent unit, such as its dialogue, None for a row that is a unit of its own.
    `augmented` is that of the first partner, None for a row without; `further` maps the numbers of other partners, from
    2 on, to theirs.
    """

    row_id: str | None
    cluster: str | None
    original: bool
    augmented: bool | None
    further: Mapping[int, bool] = dataclasses.field(default_factory=dict)

    @property
    def partners(self) -> dict[int, bool]:
        """Correctness of every partner."""
        first = {} if self.augmented is None else {1: self.augmented}
        return first | dict(self.further)

    @classmethod
    def of_views(
        cls, row_id: str, cluster: str | None, views: Mapping[str, int], is_right: Callable[[int], bool]
    ) -> PairCorrectness:
        """Return the correctness of a row.

        Args:
            row_id: Its id.
            cluster: Its independent unit.
            views: Variant -> number of the view.
            is_right: Number of a view -> whether it is right.
        """
        right = {variant_number(variant): is_right(number) for variant, number in views.items()}
        further = {number: value for number, value in right.items() if number is not None and number > 1}
        return cls(row_id, cluster, right[0], right.get(1), further)


def judge_pairs(turns: Sequence[tuple[Turn, Turn]], convention: Convention) -> list[PairCorrectness]:
    """Compare the states of both views and join the views of each row by id.

    Args:
        turns: (prediction, reference) of every row and view, as from `dair_hf.metrics.state.items.pair_turns`.
        convention: The rules, from `dair_hf.metrics.state.conventions.resolve_pair_convention`. A view is right if its
            score is 1.

    Returns:
        One entry for each row, in the order of the references.

    Raises:
        DataError: An item has no id, an augmented view has no original view, there is no row, or the convention is not
            one of pairs; or as `dair_hf.metrics.state.matching.compare_turns`.
    """
    if convention.empty_answer == "skip" or convention.consistency_slots not in (None, convention.slots):
        raise DataError("judge_pairs: this convention is not one of pairs; take it from resolve_pair_convention")
    comparisons = compare_turns(turns, convention)
    rows = join_views((reference.row_id, reference.variant, reference.where) for _, reference in turns)

    def is_right(number: int) -> bool:
        return comparisons[number].score >= 1.0

    return [
        PairCorrectness.of_views(row_id, turns[views["original"]][1].unit, views, is_right)
        for row_id, views in rows.items()
    ]


def read_correctness(rows: Sequence[tuple[str, Any]]) -> list[PairCorrectness]:
    """Read the correctness of both views of each row.

    Args:
        rows: (position in messages, {"row_id": ..., "original_correct": bool, "augmented_correct": bool or None}) of
            each row. "row_id" is optional, and "dialogue_id" with "turn_id" may replace it. Or of each view, as in a
            file of `DAIRTrainer.evaluate_pairs`: {"row_id": ..., "variant": "augmented", "correct": bool}. The unit
            for intervals is "cluster", else the dialogue.

    Raises:
        DataError: A key is missing, a value is not a truth value, an id is repeated, or only some rows have an id or a
            cluster; for views also if an augmented view has no original view.

    Example:
        >>> read_correctness([("line 1", {"row_id": "A/0", "original_correct": True, "augmented_correct": None})])
        [PairCorrectness(row_id='A/0', cluster='A', original=True, augmented=None, further={})]
    """
    if rows and isinstance(rows[0][1], Mapping) and "correct" in rows[0][1]:
        return _join_rows(rows)
    pairs = [_read_row(row, where) for where, row in rows]
    require_unique_ids((pair.row_id, where) for pair, (where, _) in zip(pairs, rows, strict=True))
    clusters = _read_clusters(rows)
    return [
        pair if cluster is None else dataclasses.replace(pair, cluster=cluster)
        for pair, cluster in zip(pairs, clusters, strict=True)
    ]


def _join_rows(views: Sequence[tuple[str, Any]]) -> list[PairCorrectness]:
    """Return the rows of single views."""
    correct = [_truth(view, "correct", where) for where, view in views]
    ids = [read_view_id(view, where) for where, view in views]
    places = [where for where, _ in views]
    require_unique_ids((view_name(*view[:2]), where) for view, where in zip(ids, places, strict=True))
    rows = join_views((*view[:2], where) for view, where in zip(ids, places, strict=True))
    clusters = _read_clusters(views)
    units = [dialogue if cluster is None else cluster for cluster, (*_, dialogue) in zip(clusters, ids, strict=True)]
    return [
        PairCorrectness.of_views(row_id, units[numbers["original"]], numbers, correct.__getitem__)
        for row_id, numbers in rows.items()
    ]


def _read_clusters(items: Sequence[tuple[str, Any]]) -> list[str | None]:
    """Return the clusters that items name: all of them or none."""
    clusters = [read_cluster(item, where) for where, item in items]
    require_all_or_no_clusters(zip(clusters, (where for where, _ in items), strict=True))
    return clusters


def _read_row(row: Any, where: str) -> PairCorrectness:
    original = _truth(row, "original_correct", where)
    has_partner = not isinstance(row, Mapping) or row.get("augmented_correct", False) is not None
    augmented = _truth(row, "augmented_correct", where) if has_partner else None
    return PairCorrectness(*read_id(row, where), original, augmented)


def _truth(row: Any, key: str, where: str) -> bool:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with {key}, found {short(row)}")
    if key not in row:
        raise DataError(f"{where}: the key {key!r} is missing; found {', '.join(map(repr, row))}")
    return bool(as_correct([row[key]], f"{where}: {key}", lambda _: "the row")[0])


def consistency_metrics(pairs: Sequence[PairCorrectness], **settings: Any) -> dict[str, Any]:
    """Compute CM, flips and the accuracy on both views, with intervals over clusters or dialogues.

    Args:
        pairs: One entry for each row.
        **settings: `intervals` and `confidence` of `dair_hf.evaluation.statistics.correctness_metrics`.

    Returns:
        The keys of `dair_hf.evaluation.statistics.correctness_metrics`.

    Raises:
        DataError: There is no row, only some rows have a cluster, or a setting is out of range.

    Warns:
        UndefinedMetricWarning: No row has a partner, so that CM is NaN, or all rows are one cluster, so that there are
            no intervals.

    Example:
        >>> pairs = [PairCorrectness("A/0", "A", True, True), PairCorrectness("A/1", "A", True, False)]
        >>> consistency_metrics(pairs, intervals=False)["cm"]
        0.5
    """
    if not pairs:
        raise DataError("nothing to score: the inputs contain no rows")
    clusters = [pair.cluster for pair in pairs if pair.cluster is not None]
    if 0 < len(clusters) < len(pairs):
        raise DataError(f"{len(pairs) - len(clusters)} of {len(pairs)} rows have no id; give every row an id, or none")
    if settings.get("intervals", True):
        warn_of_one_cluster(clusters, pairs[0].row_id)
    numbers = range(1, 1 + max(max(pair.partners, default=1) for pair in pairs))
    partners = np.array([[pair.partners.get(number, False) for number in numbers] for pair in pairs])
    exists = np.array([[number in pair.partners for number in numbers] for pair in pairs])
    return dict(
        correctness_metrics(
            [pair.original for pair in pairs],
            partners,
            exists,
            clusters or None,
            **settings,
        )
    )


def compare_models(a: Sequence[PairCorrectness], b: Sequence[PairCorrectness]) -> dict[str, dict[str, float | int]]:
    """Compare two models on the same rows by McNemar's exact test, once for each view.

    Args:
        a: Correctness of the first model.
        b: Correctness of the second model, matched to the first by id.

    Returns:
        "original" (all rows) and "augmented" (all partners) -> result of `dair_hf.evaluation.statistics.mcnemar`.

    Raises:
        DataError: A row has no id, or the models differ in their ids or in the rows that have an augmented view.

    Example:
        >>> a = [PairCorrectness("A/0", "A", True, True)]
        >>> compare_models(a, a)["original"]["p_value"]
        1.0
    """
    rows_a, rows_b = ({pair.row_id: pair for pair in pairs} for pairs in (a, b))
    if None in rows_a or None in rows_b:
        raise DataError("some rows have no id, and two models are compared by it; give every row a row_id")
    different = sorted(str(row_id) for row_id in rows_a.keys() ^ rows_b.keys())
    if different:
        raise DataError(
            f"the two models cover different rows: {len(different)} ids occur for one model only "
            f"(e.g. {', '.join(different[:3])}); evaluate both on the same rows"
        )
    matched = [(pair, rows_b[row_id]) for row_id, pair in rows_a.items()]
    one_sided = sorted(str(x.row_id) for x, y in matched if x.partners.keys() != y.partners.keys())
    if one_sided:
        raise DataError(
            f"{len(one_sided)} rows have an augmented view for one model only (e.g. {', '.join(one_sided[:3])}); "
            "evaluate both on the same views"
        )
    paired = [(right, y.partners[number]) for x, y in matched for number, right in x.partners.items()]
    return {
        "original": mcnemar([x.original for x, _ in matched], [y.original for _, y in matched]),
        "augmented": mcnemar([a for a, _ in paired], [b for _, b in paired]),
    }
