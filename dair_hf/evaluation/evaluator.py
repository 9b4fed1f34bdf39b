"""PairEvaluator: the rule of a task for what counts as right, and the metrics of pairs that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, ratios_with_intervals, require_clusters
from dair_hf.evaluation.views import PairIndex, PairViews

Correct = Callable[[list[Any], list[Any]], ArrayLike]
Masks = Mapping[str, NDArray[np.bool_]]  # name of a subset -> its rows, [N]
NO_MASKS: Masks = {}


class PairEvaluation(NamedTuple):
    """Result of evaluating the M views of paired data, and what it follows from."""

    metrics: dict[str, Any]  # as `PairEvaluator.__call__` returns them
    correct: NDArray[np.bool_]  # [M]
    answers: Sequence[Any]  # the predictions if the evaluator has no `answers`
    evaluator: PairEvaluator
    views: PairIndex
    predictions: list[Any]
    references: list[Any]
    clusters: Sequence[Any] | None  # one name per row; None: single rows
    same_answer: NDArray[np.bool_] | None  # [N, P]: is the partner's reference its original's; None if all are, or none


@dataclass(frozen=True)
class PairEvaluator:
    """Evaluates predictions for the views of pairs: accuracy, consistency metric CM, flips.

    Pass it to `DAIRTrainer(evaluator=...)` or `DAIRTrainer.evaluate_pairs`, or call it on any two lists of predictions.

    Args:
        correct: `(predictions, references) -> [N]`, True or False (or exactly 1 or 0) for each: the paper's H.
        answers: Predictions -> answers, hashable. Adds the flips of the answers, and is written to prediction files in
            place of the predictions, which may be thousands of logits.
        scores: Name -> graded correctness `(predictions, references) -> [N]` float, such as the soft accuracy
            of VQA. Adds `original_<name>` and `augmented_<name>`, means over all rows and over all their partners.
        references: Column of the references, read by `evaluate_pairs`; the augmented view has `augmented_<name>`, a
            second partner `augmented_2_<name>`. The target of texts is inherited if no partner has a column for it.
            None: the labels.
        clusters: Column of the independent units, for intervals, read by `evaluate_pairs`. None: `dialogue_id` if the
            data has it, else single rows.
        accuracy_name: Name of the accuracy in the keys, such as "joint_goal_accuracy".
        preset: Convention of that accuracy, named in the model card.

    Raises:
        DataError: `correct` is not a function, or the name of a score gives two metrics the same key.

    Example:
        >>> evaluator = PairEvaluator(lambda predictions, references: [p == r for p, r in zip(predictions, references)])
        >>> metrics = evaluator(["a", "b", "c"], ["a", "x", None], ["a", "b", "d"], intervals=False)
        >>> metrics["original_accuracy_pairs"], metrics["augmented_accuracy_pairs"], metrics["cm"]
        (1.0, 0.5, 0.5)
    """

    correct: Correct
    answers: Callable[[list[Any]], Sequence[Any]] | None = None
    scores: Mapping[str, Correct] = field(default_factory=dict)
    references: str | None = None
    clusters: str | None = None
    accuracy_name: str = "accuracy"
    preset: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.correct):  # it is called after all answers are generated
            raise DataError(
                f"evaluator: expected a function (predictions, references) -> [N], got {self.correct!r:.80}"
            )
        self._masks({}, 0)

    def cluster_column(self, columns: Collection[str]) -> str | None:
        """Return the column of the independent units: `clusters`, else `dialogue_id`; None: single rows."""
        if self.clusters is None:
            return "dialogue_id" if "dialogue_id" in columns else None
        if self.clusters not in columns:
            raise DataError(f"clusters={self.clusters!r}: expected one of the columns {sorted(columns)}")
        return self.clusters

    def units_and_masks(self, views: PairViews, subsets: Mapping[str, Any] | None) -> tuple[Any, Masks]:
        """Return clusters and subsets for `evaluate_views`; refuse, before answers are generated, what does not fit."""
        column, masks = self.cluster_column(views.column_names), self._masks(subsets or {}, views.n_rows)
        views.require_unique_rows()
        units = views.values(column) if column else None
        if units is not None:
            require_clusters(units)
        return units, masks

    def _masks(self, subsets: Mapping[str, Any], rows: int) -> Masks:
        """Return the mask of each subset; refuse names that give two metrics one key, of which one would be lost."""
        if not (self.scores or subsets):
            return {}
        keys = self.metric_names()
        added = {
            f"scores: {name!r}": {f"{variant}_{name}{bound}" for variant in VIEWS for bound in ("", "_low", "_high")}
            for name in self.scores
        }
        of_all_rows = keys.union(*added.values())
        added |= {f"subsets: {name!r}": {f"{name}_{key}" for key in of_all_rows} for name in subsets}
        for name, its_keys in added.items():
            if taken := sorted(keys & its_keys):
                raise DataError(f"{name}: expected a name of its own, got the existing metric {taken[0]!r}")
            keys |= its_keys
        masks = {name: as_correct(mask, f"subsets[{name!r}]") for name, mask in subsets.items()}
        if wrong := {name: len(mask) for name, mask in masks.items() if len(mask) != rows}:
            raise DataError(f"subsets: expected one value for each of {rows} rows, got {wrong}")
        return masks

    def metric_names(self) -> set[str]:
        """Return the names of the metrics of correctness."""
        partners = np.ones((1, 2), dtype=bool)  # several have all keys
        changed = None if self.answers is None else ~partners
        return set(self._renamed(correctness_metrics([True], partners, answer_changed=changed, same_answer=partners)))

    def _renamed(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return metrics under keys with the name of the accuracy."""
        return {key.replace("_accuracy", f"_{self.accuracy_name}"): value for key, value in metrics.items()}

    def __call__(
        self,
        predictions: Sequence[Any],
        augmented_predictions: Sequence[Any] | Mapping[int, Sequence[Any]],
        references: Sequence[Any],
        augmented_references: Sequence[Any] | Mapping[int, Sequence[Any]] | None = None,
        *,
        row_ids: Sequence[Any] | None = None,
        clusters: Sequence[Any] | None = None,
        subsets: Mapping[str, Any] | None = None,
        intervals: bool = True,
    ) -> dict[str, Any]:
        """Evaluate two lists of predictions, from any system.

        CM = P(H(z~) = 1 | H(z) = 1) over the pairs (the paper's consistency metric). Where the references of some pairs
        differ and those of others are equal, `cm` is over the former, and `cm_same_answer` over the latter.
        """
        augmented = _by_partner(augmented_predictions)
        of_partners = dict.fromkeys(augmented, references)
        if augmented_references is not None:
            of_partners = _by_partner(augmented_references)
        given = {
            "predictions": predictions,
            "references": references,
            "row_ids": row_ids,
            "clusters": clusters,
            **{f"augmented_predictions[{number}]": values for number, values in augmented.items()},
            **{f"augmented_references[{number}]": values for number, values in of_partners.items()},
        }
        lengths = {name: len(values) for name, values in given.items() if values is not None}
        numbers = range(1, 1 + max(augmented, default=1))
        if len(set(lengths.values())) > 1 or not augmented.keys() <= of_partners.keys() & set(numbers):
            raise DataError(f"expected one value per row, for partners from 1 on, got {lengths}")
        absent: list[Any] = [None] * len(predictions)
        by_number = [augmented.get(number, absent) for number in numbers]
        exists = [[value is not None for value in values] for values in by_number]
        index = PairIndex(np.array(exists, dtype=bool).T, row_ids)
        return self.evaluate_views(
            index,
            index.flatten(predictions, *by_number),
            index.flatten(references, *(of_partners.get(number, absent) for number in numbers)),
            clusters,
            self._masks(subsets or {}, index.n_rows),
            intervals,
        ).metrics

    def evaluate_views(
        self,
        index: PairIndex,
        predictions: list[Any],
        references: list[Any],
        clusters: Sequence[Any] | None = None,
        masks: Masks = NO_MASKS,
        intervals: bool = True,
    ) -> PairEvaluation:
        """Evaluate the M views of paired data, given one after the other, as `__call__` does with lists of rows."""
        correct = as_correct(self.correct(predictions, references), "correct", index.describe_view)
        original, augmented = index.by_row("correct", correct)
        same_answer = _same_references(index, references)
        answers = predictions if self.answers is None else self.answers(predictions)
        changed = None if self.answers is None else _changed(index, answers)
        scores: dict[str, Any] = {}
        for name, score in self.scores.items():
            of_views = index.sums(*index.by_row(f"scores[{name!r}]", score(predictions, references)))
            scores |= {f"{variant}_{name}": sums for variant, sums in zip(VIEWS, of_views, strict=True)}

        def metrics_over(rows: NDArray[np.bool_]) -> dict[str, Any]:
            units = None if clusters is None else list(compress(clusters, rows))
            metrics = correctness_metrics(
                original[rows],
                augmented[rows],
                index.partners[rows],
                units,
                answer_changed=None if changed is None else changed[rows],
                same_answer=None if same_answer is None else same_answer[rows],
                intervals=intervals,
            )
            means = {name: (top[rows], bottom[rows]) for name, (top, bottom) in scores.items()}
            of_scores = ratios_with_intervals(means, units, intervals=intervals) if means else {}
            return self._renamed(metrics) | of_scores

        metrics = metrics_over(np.ones_like(original))
        for name, rows in masks.items():
            metrics |= {f"{name}_{key}": value for key, value in metrics_over(rows).items()}
        return PairEvaluation(metrics, correct, answers, self, index, predictions, references, clusters, same_answer)


def as_evaluator(evaluator: PairEvaluator | Correct) -> PairEvaluator:
    """Return an evaluator; a plain function is its `correct`."""
    return evaluator if isinstance(evaluator, PairEvaluator) else PairEvaluator(evaluator)


def _by_partner(values: Sequence[Any] | Mapping[int, Sequence[Any]]) -> dict[int, Sequence[Any]]:
    """Return values by the number of the partner; a list belongs to the first."""
    return dict(values) if isinstance(values, Mapping) else {1: values}


def _same_references(index: PairIndex, references: Sequence[Any]) -> NDArray[np.bool_] | None:
    """Return whether the reference of each partner equals its original's, `[N, P]`; None if all do, or none does."""
    plain = [_as_plain(reference) for reference in references]
    of_originals = [plain[row] for row in index.rows.tolist()]
    same = [bool(one == other) for one, other in zip(of_originals, plain, strict=True)]
    return index.by_row("references", same)[1] if len(set(same[index.n_rows :])) == 2 else None


def _as_plain(value: Any) -> Any:
    """Return a value with lists for arrays, tensors and tuples at any depth, so that two values can be compared."""
    if isinstance(value, Mapping):
        return {key: _as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _changed(index: PairIndex, answers: Sequence[Any]) -> NDArray[np.bool_]:
    """Return for every partner whether the answers to it and to its original differ, `[N, P]`."""
    # Answers are anything hashable; as numbers they fit into an array.
    number_of: dict[Any, int] = {}
    numbers = [number_of.setdefault(answer, len(number_of)) for answer in answers]
    original, augmented = index.by_row("answers", numbers)
    return np.asarray(original[:, None] != augmented)
