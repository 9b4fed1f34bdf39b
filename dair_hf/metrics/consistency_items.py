"""Consistency metric from the states of both views, or from their correctness."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dair_hf.evaluation.statistics import as_correct, correctness_metrics
from dair_hf.metrics.items import Item, by_name, join_views, pair_items, read_item, read_turns, units, warn_of_one_unit
from dair_hf.metrics.state.conventions import resolve_pair_convention
from dair_hf.metrics.state.matching import compare_turns


@dataclasses.dataclass(frozen=True)
class _PairCorrectness:
    """Correctness of a row's views: of the original, and of its partners by number."""

    row_id: str | None
    cluster: Any
    original: bool
    partners: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    same_answer: Mapping[int, bool] | None = None


def judge_pairs(
    predictions: Iterable[Any], references: Iterable[Any], preset: str = "any_of", **switches: Any
) -> tuple[str, list[_PairCorrectness]]:
    """Compare the states of all views; return the name of the rules, see `resolve_pair_convention`, and the rows."""
    name, convention = resolve_pair_convention(preset, **switches)
    turns = pair_items(read_turns(predictions, "predictions"), read_turns(references, "references"))
    right = [comparison.score >= 1.0 for comparison in compare_turns(turns, convention)]
    gold = [reference for _, reference in turns]
    states = [{slot: tuple(values) for slot, values in item.value.state.items()} for item in gold]
    return name, _rows(gold, right, states)


def read_correctness(rows: Iterable[Any]) -> list[_PairCorrectness]:
    """Read the correctness of rows ("original_correct", "augmented_correct"), or of single views ("correct").

    The lines of the file of predictions of `DAIRTrainer.evaluate_pairs` are such views.
    """
    rows = list(rows)
    items = [read_item(row, row, f"row {number}") for number, row in enumerate(rows)]
    if any(item.row_id is not None for item in items):
        by_name(items)
    if rows and "correct" in rows[0]:
        right = as_correct([row["correct"] for row in rows], "correct").tolist()
        answers = [row["reference"] for row in rows] if all("reference" in row for row in rows) else None
        return _rows(items, right, answers)
    originals = as_correct([row["original_correct"] for row in rows], "original_correct").tolist()
    paired = [number for number, row in enumerate(rows) if row["augmented_correct"] is not None]
    partners = as_correct([rows[number]["augmented_correct"] for number in paired], "augmented_correct").tolist()
    partner_of = {number: {1: right} for number, right in zip(paired, partners, strict=True)}
    clusters = units(items) or [None] * len(items)
    return [
        _PairCorrectness(item.row_id, clusters[number], originals[number], partner_of.get(number, {}))
        for number, item in enumerate(items)
    ]


def _rows(items: Sequence[Item], right: Sequence[bool], answers: Sequence[Any] | None) -> list[_PairCorrectness]:
    """Join the views of each row by id, given their correctness and their right answers."""
    joined, rows = join_views(items), []
    originals = [items[views[0]] for views in joined]
    for original, cluster, partners in zip(originals, units(originals) or [None] * len(joined), joined, strict=True):
        first = partners.pop(0)
        same = None if answers is None else {n: answers[at] == answers[first] for n, at in partners.items()}
        correct = {number: right[position] for number, position in partners.items()}
        rows.append(_PairCorrectness(original.row_id, cluster, right[first], correct, same))
    return rows


def consistency_metrics(pairs: Sequence[_PairCorrectness], **settings: Any) -> dict[str, Any]:
    """Compute CM, flips and the accuracy on both views, with intervals over clusters or dialogues."""
    clusters = None if all(pair.cluster is None for pair in pairs) else [pair.cluster for pair in pairs]
    if settings.get("intervals", True):
        warn_of_one_unit(clusters, [pair.row_id or str(number) for number, pair in enumerate(pairs)])
    numbers = range(1, 1 + max(max(pair.partners, default=1) for pair in pairs))
    partners = np.array([[pair.partners.get(number, False) for number in numbers] for pair in pairs])
    exists = np.array([[number in pair.partners for number in numbers] for pair in pairs])
    answers = [pair.same_answer for pair in pairs]
    of_partners = {same for of_row in answers if of_row is not None for same in of_row.values()}
    if None not in answers and len(of_partners) == 2:  # else CM is over all pairs
        settings["same_answer"] = np.array(
            [[bool(of_row.get(n)) for n in numbers] for of_row in answers if of_row is not None]
        )
    return dict(correctness_metrics([pair.original for pair in pairs], partners, exists, clusters, **settings))
