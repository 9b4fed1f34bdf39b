"""PairEvaluator: the rule of a task for what counts as right, and the metrics of pairs that follow from it."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import as_correct, correctness_metrics, ratios_with_intervals
from dair_hf.evaluation.view_index import PairIndex, as_plain

Correct = Callable[[list[Any], list[Any]], ArrayLike]


class PairEvaluation(NamedTuple):
    """Result of evaluating the M views of paired data, and what it follows from.

    Attributes:
        metrics: Metrics, as `PairEvaluator.__call__` returns them.
        correct: Correctness of every view, `[M]` bool.
        answers: Answer of every view; the predictions if the evaluator has no `answers`.
        evaluator: Evaluator of the task.
        views: Rows and variants of the views.
        predictions: M predictions.
        references: M references.
        clusters: Independent units, one name per row; None: single rows.
        same_answer: Whether the reference of each partner equals its original's, `[N, P]` bool; None if all do, as for
            invariant data, or none does.
    """

    metrics: dict[str, Any]
    correct: NDArray[np.bool_]
    answers: Sequence[Any]
    evaluator: PairEvaluator
    views: PairIndex
    predictions: list[Any]
    references: list[Any]
    clusters: Sequence[Any] | None
    same_answer: NDArray[np.bool_] | None


@dataclass(frozen=True)
class PairEvaluator:
    """Evaluates predictions for the views of pairs: accuracy, consistency metric CM, flips.

    Pass it to `DAIRTrainer(evaluator=...)` or `DAIRTrainer.evaluate_pairs`, or call it on any two lists of predictions.

    Args:
        correct: `(predictions, references) -> [N]`, True or False (or exactly 1 or 0) for each: the paper's H.
        answers: Predictions -> answers, hashable. Adds the flips of the answers, and is written to prediction files in
            place of the predictions, which may be thousands of logits.
        scores: Name -> graded correctness `(predictions, references) -> [N]` float in [0, 1], such as the soft accuracy
            of VQA. Adds `original_<name>` and `augmented_<name>`, means over all rows and over all their partners.
        references: Column of the references, read by `evaluate_pairs`; the augmented view has `augmented_<name>`, a
            second partner `augmented_2_<name>`. The target of texts is inherited if no partner has a column for it.
            None: the labels.
        clusters: Column of the independent units, for intervals, read by `evaluate_pairs`. None: `dialogue_id` if the
            data has it, else single rows.
        accuracy_name: Name of the accuracy in the keys, such as "joint_goal_accuracy".
        preset: Convention of that accuracy, named in the model card.

    Raises:
        DataError: `correct` is no function, or the name of a score gives two metrics the same key.

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
        if not callable(self.correct):
            raise DataError(
                f"evaluator: correct={self.correct!r:.80} is no function (predictions, references) -> [N] bool; give "
                "one, or a PairEvaluator"
            )
        self.require_distinct_keys()

    def cluster_column(self, columns: Collection[str]) -> str | None:
        """Return the column of the independent units: `clusters`, or `dialogue_id` if there is one; None: single rows.

        Args:
            columns: Columns of the data.

        Raises:
            DataError: The data have no column `clusters`.
        """
        if self.clusters is None:
            return "dialogue_id" if "dialogue_id" in columns else None
        if self.clusters not in columns:
            raise DataError(
                f"clusters={self.clusters!r}: the data have no such column, only {sorted(columns)}; name one of them, "
                "or leave clusters unset"
            )
        return self.clusters

    def require_distinct_keys(self, subsets: Iterable[str] = ()) -> None:
        """Refuse names that give two metrics the same key, of which one would be lost.

        Args:
            subsets: Names of subsets.

        Raises:
            DataError: A score or a subset has such a name.

        Example:
            >>> PairEvaluator(lambda predictions, references: [True]).require_distinct_keys(["long"])
        """
        keys = self.metric_names()
        added = {
            f"scores: {name!r}": {f"{variant}_{name}{bound}" for variant in VIEWS for bound in ("", "_low", "_high")}
            for name in self.scores
        }
        of_all_rows = keys.union(*added.values())
        added |= {f"subsets: {name!r}": {f"{name}_{key}" for key in of_all_rows} for name in subsets}
        for name, its_keys in added.items():
            if taken := sorted(keys & its_keys):
                raise DataError(f"{name} adds the metric {taken[0]!r}, which exists without it; choose another name")
            keys |= its_keys

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
        augmented = _by_partner("augmented_predictions", augmented_predictions)
        of_partners = dict.fromkeys(augmented, references)
        if augmented_references is not None:
            of_partners = _by_partner("augmented_references", augmented_references)
        lists = {
            "augmented_predictions": augmented.values(),
            "references": [references],
            "augmented_references": of_partners.values(),
        }
        for name, all_values in lists.items():
            for values in all_values:
                if len(values) != len(predictions):
                    raise DataError(
                        f"{name}: {len(values)} values for {len(predictions)} predictions; give one per row"
                    )
        if missing := sorted(set(augmented) - set(of_partners)):
            raise DataError(f"augmented_references: none for the partners {missing}, which have predictions; give both")
        absent: list[Any] = [None] * len(predictions)
        numbers = range(1, 1 + max(augmented, default=1))
        by_number = [augmented.get(number, absent) for number in numbers]
        exists = [[value is not None for value in values] for values in by_number]
        index = PairIndex(np.array(exists, dtype=bool).T, row_ids)
        return self.evaluate_views(
            index,
            index.flatten(predictions, *by_number),
            index.flatten(references, *(of_partners.get(number, absent) for number in numbers)),
            clusters,
            subsets,
            intervals,
        ).metrics

    def evaluate_views(
        self,
        index: PairIndex,
        predictions: list[Any],
        references: list[Any],
        clusters: Sequence[Any] | None = None,
        subsets: Mapping[str, Any] | None = None,
        intervals: bool = True,
    ) -> PairEvaluation:
        """Evaluate the views of paired data, given one after the other.

        Args:
            index: Rows and variants of the M views.
            predictions: M predictions.
            references: M references.
            clusters: As in `__call__`, as are the others.
            subsets: See there.
            intervals: See there.

        Returns:
            Metrics, correctness and answers, with what they follow from.
        """
        self.require_distinct_keys(subset_names(subsets))
        masks = subset_masks(subsets, index.n_rows)
        if clusters is not None:
            index.require_one_per_row("clusters", clusters)
        correct = as_correct(self.correct(predictions, references), "correct", index.describe_view)
        original, augmented = index.by_row("correct", correct)
        same_answer = _same_references(index, references)
        answers = predictions if self.answers is None else self.answers(predictions)
        changed = None if self.answers is None else _changed(index, answers)
        scores = {
            f"{variant}_{name}": sums
            for name, score in self.scores.items()
            for variant, sums in zip(
                VIEWS, index.sums(*_scores_by_row(index, name, score(predictions, references))), strict=True
            )
        }

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
    """Return an evaluator; a plain function is its `correct`.

    Example:
        >>> as_evaluator(lambda predictions, references: [True]).accuracy_name
        'accuracy'
    """
    return evaluator if isinstance(evaluator, PairEvaluator) else PairEvaluator(evaluator)


def subset_names(subsets: Any) -> list[str]:
    """Return the names of subsets, as `PairEvaluator` takes them."""
    if subsets is None:
        return []
    if not isinstance(subsets, Mapping):
        raise DataError(
            f"subsets is a {type(subsets).__name__}; give a dictionary, name -> one True or False per row, such as "
            '{"long": [True, False]}'
        )
    return list(subsets)


def subset_masks(subsets: Mapping[str, Any] | None, rows: int) -> dict[str, NDArray[np.bool_]]:
    """Return the mask of each subset, `[rows]` bool."""
    masks = {name: as_correct(mask, f"subsets[{name!r}]") for name, mask in (subsets or {}).items()}
    for name, mask in masks.items():
        if len(mask) != rows:
            raise DataError(f"subsets[{name!r}]: {len(mask)} values for {rows} rows; give one per row")
    return masks


def _by_partner(name: str, values: Sequence[Any] | Mapping[int, Sequence[Any]]) -> dict[int, Sequence[Any]]:
    """Return values by the number of the partner; a list is that of the first."""
    if not isinstance(values, Mapping):
        return {1: values}
    if wrong := [number for number in values if isinstance(number, bool) or not isinstance(number, int) or number < 1]:
        raise DataError(f"{name}: {wrong[0]!r} is no number of a partner; give whole numbers from 1 on")
    return dict(values)


def _scores_by_row(index: PairIndex, name: str, values: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    by_row = index.by_row(name, values)
    for view, value in enumerate(np.asarray(values).tolist() if by_row[0].dtype.kind not in "biuf" else ()):
        if not isinstance(value, numbers.Number) or isinstance(value, complex):
            raise DataError(
                f"scores[{name!r}]: {index.describe_view(view)} has {reprlib.repr(value)}, a {type(value).__name__}; "
                "return one number per prediction"
            )
    return by_row


def _same_references(index: PairIndex, references: Sequence[Any]) -> NDArray[np.bool_] | None:
    """Return whether the reference of each partner equals its original's, `[N, P]`; None if all do, or none does."""
    plain = [as_plain(reference) for reference in references]
    of_originals = [plain[row] for row in index.rows.tolist()]
    same = [bool(one == other) for one, other in zip(of_originals, plain, strict=True)]
    return index.by_row("references", same)[1] if len(set(same[index.n_rows :])) == 2 else None


def _changed(index: PairIndex, answers: Sequence[Any]) -> NDArray[np.bool_]:
    """Return for every partner whether the answers to it and to its original differ, `[N, P]`."""
    # Answers are anything hashable; as numbers they fit into an array.
    number_of: dict[Any, int] = {}
    numbers = []
    for view, answer in enumerate(answers):
        try:
            numbers.append(number_of.setdefault(answer, len(number_of)))
        except TypeError as error:
            raise DataError(
                f"answers: {index.describe_view(view)} has {reprlib.repr(answer)}, a {type(answer).__name__}, which "
                "cannot be hashed; return answers such as texts, numbers or tuples"
            ) from error
    original, augmented = index.by_row("answers", numbers)
    return np.asarray(original[:, None] != augmented)
