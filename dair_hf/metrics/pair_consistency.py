"""The consistency metric from the states of both views, or from correctness that was found elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, mcnemar
from dair_hf.metrics.state.conventions import consistency_convention, resolve_convention
from dair_hf.metrics.state.items import Turn, read_id
from dair_hf.metrics.state.matching import compare_turns


@dataclasses.dataclass(frozen=True)
class PairCorrectness:
    """Correctness of both views of one row; `augmented` is None where the row has no augmented view."""

    row_id: str | None
    dialogue: str | None
    original: bool
    augmented: bool | None


def judge_pairs(turns: Sequence[tuple[Turn, Turn]], preset: str = "any_of", **switches: Any) -> list[PairCorrectness]:
    """Judge the states of both views under a convention and bring the views of each row together by id.

    Args:
        turns: (prediction, reference) of every row and variant, as from `dair_hf.metrics.state.items.pair_turns`.
        preset: The convention's name; with `consistency_slots` (preset `dair_released`) only these are compared.
        **switches: Changed switches.

    Returns:
        One entry for each original, in the order of the references.

    Raises:
        DataError: Items without ids, an augmented row without its original, or no row at all; `domains` or `slots` hold
            an unknown name, or leave nothing to compare.
    """
    convention = consistency_convention(resolve_convention(preset, **switches)[1])
    judged: dict[str, dict[str, bool]] = {"original": {}, "augmented": {}}
    dialogues: dict[str, str | None] = {}
    for (_, reference), comparison in zip(turns, compare_turns(turns, convention), strict=True):
        if reference.row_id is None:
            raise DataError(
                f"{reference.where or 'references'}: consistency pairs the two views of a row by its id; "
                "give every item a row_id and a variant"
            )
        judged[reference.variant][reference.row_id] = comparison.score >= 1.0
        dialogues.setdefault(reference.row_id, reference.dialogue)
    orphans = [row_id for row_id in judged["augmented"] if row_id not in judged["original"]]
    if orphans:
        raise DataError(
            f"{len(orphans)} augmented rows have no original (e.g. {', '.join(sorted(orphans)[:3])}); "
            "give the original view of every row"
        )
    return [
        PairCorrectness(row_id, dialogues[row_id], correct, judged["augmented"].get(row_id))
        for row_id, correct in judged["original"].items()
    ]


def read_correctness(row: Any, where: str) -> PairCorrectness:
    """Read {"row_id": ..., "original_correct": bool, "augmented_correct": bool or null}.

    Args:
        row: The object; `row_id` (or `dialogue_id` and `turn_id`) may be left out.
        where: Its place in messages.

    Returns:
        The entry; the dialogue is the `row_id` up to its last "/".

    Raises:
        DataError: A key is missing or a value is no truth value.

    Example:
        >>> read_correctness({"row_id": "A/0", "original_correct": True, "augmented_correct": None}, "line 1")
        PairCorrectness(row_id='A/0', dialogue='A', original=True, augmented=None)
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: must be an object with original_correct and augmented_correct, found {row!r}")
    values = []
    for key in ("original_correct", "augmented_correct"):
        if key not in row:
            raise DataError(f"{where}: the key {key!r} is missing; found {', '.join(map(repr, row))}")
        absent = row[key] is None and key == "augmented_correct"
        values.append(None if absent else bool(as_correct([row[key]], f"{where}: {key}", lambda _: "the row")[0]))
    row_id, dialogue = read_id(row, where)
    return PairCorrectness(row_id, dialogue, bool(values[0]), values[1])


def read_correctness_rows(rows: Sequence[tuple[str, Any]]) -> list[PairCorrectness]:
    """Read (place, object) of many rows; see `read_correctness`.

    Raises:
        DataError: A row cannot be read, or an id occurs twice.
    """
    pairs = [read_correctness(row, where) for where, row in rows]
    seen: dict[str, str] = {}
    for pair, (where, _) in zip(pairs, rows, strict=True):
        if pair.row_id is not None and seen.setdefault(pair.row_id, where) != where:
            raise DataError(f"{where}: the id {pair.row_id!r} is already at {seen[pair.row_id]}; ids must be unique")
    return pairs


def consistency_metrics(
    pairs: Sequence[PairCorrectness],
    *,
    n_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Compute CM, flips and both accuracies with their intervals, as `evaluation.statistics.correctness_metrics`.

    Args:
        pairs: One entry for each row.
        n_bootstrap: Resamples; 0 for no intervals.
        seed: Seed of the resampling.
        confidence: Coverage of the intervals.

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
        raise DataError("no pairs to score: the inputs are empty; check them")
    clusters = None
    if all(pair.dialogue is not None for pair in pairs):
        clusters = [str(pair.dialogue) for pair in pairs]
    return dict(
        correctness_metrics(
            [pair.original for pair in pairs],
            [pair.augmented for pair in pairs],
            [pair.augmented is not None for pair in pairs],
            clusters,
            n_bootstrap=n_bootstrap,
            seed=seed,
            confidence=confidence,
        )
    )


def compare_models(a: Sequence[PairCorrectness], b: Sequence[PairCorrectness]) -> dict[str, dict[str, float | int]]:
    """Compare two models on the same rows by McNemar's exact test, once for each view.

    Args:
        a: Correctness of the first model.
        b: Correctness of the second; rows are matched by id.

    Returns:
        "original" and "augmented" (rows with an augmented view only), each as from `evaluation.statistics.mcnemar`.

    Raises:
        DataError: The two do not hold the same ids, or not the same rows have an augmented view.

    Example:
        >>> a = [PairCorrectness("A/0", "A", True, True)]
        >>> compare_models(a, a)["original"]["p_value"]
        1.0
    """
    ours = {pair.row_id: pair for pair in a}
    theirs = {pair.row_id: pair for pair in b}
    if None in ours or None in theirs:
        raise DataError("comparing two models needs ids; give every row a row_id")
    different = sorted(str(row_id) for row_id in ours.keys() ^ theirs.keys())
    if different:
        raise DataError(
            f"the two models cover different rows: {len(different)} differ (e.g. {', '.join(different[:3])})"
        )
    odd = sorted(str(k) for k, pair in ours.items() if (pair.augmented is None) != (theirs[k].augmented is None))
    if odd:
        raise DataError(f"{len(odd)} rows have an augmented view for one model only ({', '.join(odd[:3])})")
    paired = [row_id for row_id, pair in ours.items() if pair.augmented is not None]
    return {
        "original": mcnemar([pair.original for pair in a], [theirs[pair.row_id].original for pair in a]),
        "augmented": mcnemar([bool(ours[k].augmented) for k in paired], [bool(theirs[k].augmented) for k in paired]),
    }
