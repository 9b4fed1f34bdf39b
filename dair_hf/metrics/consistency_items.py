"""Consistency metric from the states of both views, or from their correctness."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, mcnemar
from dair_hf.metrics.json_items import require_unique_ids, short
from dair_hf.metrics.state.conventions import Convention
from dair_hf.metrics.state.items import Turn, read_id
from dair_hf.metrics.state.matching import compare_turns


@dataclasses.dataclass(frozen=True)
class PairCorrectness:
    """Correctness of both views of a row; `augmented` is None for a row without an augmented view."""

    row_id: str | None
    dialogue: str | None
    original: bool
    augmented: bool | None


def judge_pairs(turns: Sequence[tuple[Turn, Turn]], convention: Convention) -> list[PairCorrectness]:
    """Compare the states of both views and join the views of each row by id.

    Args:
        turns: (prediction, reference) of every row and view, as from `dair_hf.metrics.state.items.pair_turns`.
        convention: The convention. If it has `consistency_slots`, only these slots are compared, with dontcare as a
            value.

    Returns:
        One entry for each original view, in the order of the references.

    Raises:
        DataError: An item has no id, an augmented view has no original view, or there is no row; or as
            `dair_hf.metrics.state.matching.compare_turns`.
    """
    if convention.consistency_slots is not None:
        convention = dataclasses.replace(convention, slots=convention.consistency_slots, dontcare="keep")
    correct: dict[str, dict[str, bool]] = {"original": {}, "augmented": {}}
    dialogues: dict[str, str | None] = {}
    for (_, reference), comparison in zip(turns, compare_turns(turns, convention), strict=True):
        if reference.row_id is None:
            raise DataError(
                f"{reference.where or 'references'}: this item has no id, and the two views of a row are paired by it; "
                "give every item a row_id and a variant"
            )
        correct[reference.variant][reference.row_id] = comparison.score >= 1.0
        dialogues.setdefault(reference.row_id, reference.dialogue)
    orphans = sorted(correct["augmented"].keys() - correct["original"].keys())
    if orphans:
        raise DataError(
            f"{len(orphans)} augmented views have no original view (e.g. {', '.join(orphans[:3])}); "
            "give the original view of every row"
        )
    return [
        PairCorrectness(row_id, dialogues[row_id], is_correct, correct["augmented"].get(row_id))
        for row_id, is_correct in correct["original"].items()
    ]


def read_correctness(rows: Sequence[tuple[str, Any]]) -> list[PairCorrectness]:
    """Read the correctness of both views of each row.

    Args:
        rows: (position in messages, {"row_id": ..., "original_correct": bool, "augmented_correct": bool or None}) of
            each row. "row_id" is optional, and "dialogue_id" with "turn_id" may replace it.

    Raises:
        DataError: A key is missing, a value is not a truth value, or an id is repeated.

    Example:
        >>> read_correctness([("line 1", {"row_id": "A/0", "original_correct": True, "augmented_correct": None})])
        [PairCorrectness(row_id='A/0', dialogue='A', original=True, augmented=None)]
    """
    pairs = [_read_row(row, where) for where, row in rows]
    require_unique_ids((pair.row_id, where) for pair, (where, _) in zip(pairs, rows, strict=True))
    return pairs


def _read_row(row: Any, where: str) -> PairCorrectness:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with original_correct and augmented_correct, found {short(row)}")
    for key in ("original_correct", "augmented_correct"):
        if key not in row:
            raise DataError(f"{where}: the key {key!r} is missing; found {', '.join(map(repr, row))}")

    def read(key: str) -> bool:
        return bool(as_correct([row[key]], f"{where}: {key}", lambda _: "the row")[0])

    augmented = None if row["augmented_correct"] is None else read("augmented_correct")
    return PairCorrectness(*read_id(row, where), read("original_correct"), augmented)


def consistency_metrics(pairs: Sequence[PairCorrectness], **bootstrap: Any) -> dict[str, Any]:
    """Compute CM, flips and the accuracy on both views, with intervals clustered by dialogue.

    Args:
        pairs: One entry for each row.
        **bootstrap: `n_bootstrap`, `seed` and `confidence` of `dair_hf.evaluation.statistics.correctness_metrics`.

    Returns:
        The keys of `dair_hf.evaluation.statistics.correctness_metrics`.

    Raises:
        DataError: There is no row, or a setting is out of range.

    Example:
        >>> pairs = [PairCorrectness("A/0", "A", True, True), PairCorrectness("A/1", "A", True, False)]
        >>> consistency_metrics(pairs, n_bootstrap=0)["cm"]
        0.5
    """
    if not pairs:
        raise DataError("nothing to score: the inputs contain no rows")
    clusters = [pair.dialogue for pair in pairs if pair.dialogue is not None]
    return dict(
        correctness_metrics(
            [pair.original for pair in pairs],
            [pair.augmented for pair in pairs],
            [pair.augmented is not None for pair in pairs],
            clusters if len(clusters) == len(pairs) else None,
            **bootstrap,
        )
    )


def compare_models(a: Sequence[PairCorrectness], b: Sequence[PairCorrectness]) -> dict[str, dict[str, float | int]]:
    """Compare two models on the same rows by McNemar's exact test, once for each view.

    Args:
        a: Correctness of the first model.
        b: Correctness of the second model, matched to the first by id.

    Returns:
        "original" (all rows) and "augmented" (rows with an augmented view) -> result of
        `dair_hf.evaluation.statistics.mcnemar`.

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
    one_sided = sorted(str(x.row_id) for x, y in matched if (x.augmented is None) != (y.augmented is None))
    if one_sided:
        raise DataError(
            f"{len(one_sided)} rows have an augmented view for one model only (e.g. {', '.join(one_sided[:3])}); "
            "evaluate both on the same views"
        )
    paired = [(x, y) for x, y in matched if x.augmented is not None]
    return {
        "original": mcnemar([x.original for x, _ in matched], [y.original for _, y in matched]),
        "augmented": mcnemar([x.augmented for x, _ in paired], [y.augmented for _, y in paired]),
    }
