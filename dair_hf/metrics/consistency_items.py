"""Consistency metric from the states of both views, or from their correctness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dair_hf.data.view_columns import variant_number
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, mcnemar
from dair_hf.evaluation.view_index import as_plain
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
    """Correctness of the views of a row."""

    row_id: str | None
    cluster: str | None
    original: bool
    partners: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    same_answer: Mapping[int, bool] | None = None

    @classmethod
    def of_views(
        cls,
        row_id: str,
        cluster: str | None,
        views: Mapping[str, int],
        is_right: Callable[[int], bool],
        references: Sequence[Any] | None,
    ) -> PairCorrectness:
        """Return the correctness of a row, given the number of each variant and the references by number."""
        numbers = {int(variant_number(variant) or 0): view for variant, view in views.items()}
        right = {number: is_right(view) for number, view in numbers.items()}
        original = right.pop(0)
        same = None if references is None else {n: references[numbers[n]] == references[numbers[0]] for n in right}
        return cls(row_id, cluster, original, right, same)


def judge_pairs(turns: Sequence[tuple[Turn, Turn]], convention: Convention) -> list[PairCorrectness]:
    """Compare the states of both views and join the views of each row by id."""
    if convention.empty_answer == "skip" or convention.consistency_slots not in (None, convention.slots):
        raise DataError("judge_pairs: this convention is not one of pairs; take it from resolve_pair_convention")
    comparisons = compare_turns(turns, convention)
    rows = join_views((reference.row_id, reference.variant, reference.where) for _, reference in turns)

    def is_right(number: int) -> bool:
        return comparisons[number].score >= 1.0

    references = [as_plain(reference.state) for _, reference in turns]
    return [
        PairCorrectness.of_views(row_id, turns[views["original"]][1].unit, views, is_right, references)
        for row_id, views in rows.items()
    ]


def read_correctness(rows: Iterable[Any]) -> list[PairCorrectness]:
    """Read the correctness of both views of each row."""
    items = [(f"row {number}", row) for number, row in enumerate(rows)]
    if items and isinstance(items[0][1], Mapping) and "correct" in items[0][1]:
        return _join_rows(items)
    pairs = [_read_row(row, where) for where, row in items]
    require_unique_ids((pair.row_id, where) for pair, (where, _) in zip(pairs, items, strict=True))
    return [
        pair if cluster is None else dataclasses.replace(pair, cluster=cluster)
        for pair, cluster in zip(pairs, _read_clusters(items), strict=True)
    ]


def _join_rows(views: Sequence[tuple[str, Any]]) -> list[PairCorrectness]:
    """Return the rows of single views."""
    correct = [_truth(view, "correct", where) for where, view in views]
    ids = [read_view_id(view, where) for where, view in views]
    require_unique_ids((view_name(*view[:2]), where) for view, (where, _) in zip(ids, views, strict=True))
    rows = join_views((*view[:2], where) for view, (where, _) in zip(ids, views, strict=True))
    clusters = _read_clusters(views)
    units = [dialogue if cluster is None else cluster for cluster, (*_, dialogue) in zip(clusters, ids, strict=True)]
    have_references = all("reference" in view for _, view in views)
    references = [view["reference"] for _, view in views] if have_references else None
    return [
        PairCorrectness.of_views(row_id, units[numbers["original"]], numbers, correct.__getitem__, references)
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
    partners = {1: _truth(row, "augmented_correct", where)} if has_partner else {}
    return PairCorrectness(*read_id(row, where), original, partners)


def _truth(row: Any, key: str, where: str) -> bool:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with {key}, found {short(row)}")
    if key not in row:
        raise DataError(f"{where}: the key {key!r} is missing; found {', '.join(map(repr, row))}")
    return bool(as_correct([row[key]], f"{where}: {key}", lambda _: "the row")[0])


def consistency_metrics(pairs: Sequence[PairCorrectness], **settings: Any) -> dict[str, Any]:
    """Compute CM, flips and the accuracy on both views, with intervals over clusters or dialogues."""
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
    answers = [pair.same_answer for pair in pairs]
    of_partners = {same for of_row in answers if of_row is not None for same in of_row.values()}
    if None not in answers and len(of_partners) == 2:  # else CM is over all pairs
        settings["same_answer"] = np.array(
            [[bool(of_row.get(n)) for n in numbers] for of_row in answers if of_row is not None]
        )
    return dict(correctness_metrics([pair.original for pair in pairs], partners, exists, clusters or None, **settings))


def compare_models(a: Sequence[PairCorrectness], b: Sequence[PairCorrectness]) -> dict[str, dict[str, float | int]]:
    """Compare two models on the same rows by McNemar's exact test, once for each view."""
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
