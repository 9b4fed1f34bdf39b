"""Building the report on the pairs of a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dair_hf.config import DAIRConfig
from dair_hf.data.batch_layout import BatchLayout, trained_partners
from dair_hf.data.held_rows import HeldRows
from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.evaluation.evaluator import Correct, PairEvaluation, PairEvaluator
from dair_hf.evaluation.views import PairViews, views_of
from dair_hf.io.processes import on_first_rank
from dair_hf.pair_report.contents import PairContents, row_of
from dair_hf.pair_report.groups import Grouping, groupings_of
from dair_hf.pair_report.page import require_report_libraries
from dair_hf.pair_report.report import PairReport
from dair_hf.pair_report.scores import (
    CM_AND_FLIPS,
    correctness_by_group,
    disagreement,
    inconsistency,
    losses_by_group,
    root_consistency,
    share_of_worst,
)

Groups = str | Sequence[str] | Mapping[str, Sequence[Any]] | None

MAX_NAMED_ROWS = 8  # in an error

CURVES = (
    "loss_original",
    "loss_augmented",
    "consistency",
    "inconsistency",
    "unlearned_share",
    "gradient_share",
    "lambda_target",
    "dair_lambda",
)


@dataclass(frozen=True)
class ReportOptions:
    """Options of a pair report, see `DAIRTrainer.pair_report`."""

    title: str = "Pair report"
    groups: Groups = None
    texts: str | Sequence[str] | None = None
    worst: int = 100

    def __post_init__(self) -> None:
        worst: Any = self.worst
        if isinstance(worst, bool) or not isinstance(worst, (int, np.integer)) or worst < 1:
            raise DataError(f"worst={worst!r}: must be a whole number >= 1, the number of pairs that the report shows")


@dataclass(frozen=True)
class PairValues:
    """Values of N pairs."""

    rows: np.ndarray
    partners: np.ndarray
    original: np.ndarray
    augmented: np.ndarray
    scores: np.ndarray
    steps: np.ndarray
    dair_lambda: float | None
    weights: np.ndarray | None
    correct: np.ndarray | None = None
    same_answer: np.ndarray | None = None
    answers: list[list[str]] | None = None


def build_report(
    trainer: Any,
    data: Any,
    evaluator: PairEvaluator | Correct | PairEvaluation | None,
    options: ReportOptions,
    **gen_kwargs: Any,
) -> PairReport:
    """Build the report on pairs, with the losses of a trainer's model. Every process must call this function.

    Args:
        trainer: A `DAIRTrainer`.
        data: Paired rows with random access.
        evaluator: What counts as right, or the evaluation of all views by the same model; None: losses only.
        options: Options of the report.
        **gen_kwargs: Arguments of `generate`, for the evaluator.

    Raises:
        DataError: No row has a partner, two rows have the same `row_id`, a loss is not finite, or as
            `DAIRTrainer.pair_report`.
    """
    require_report_libraries()  # before the model is run
    views = views_of(data)
    if not views.has_partner.any():
        raise DataError(
            f"pair_report: none of the {len(views.has_partner)} rows has a partner, so there is no pair to report on; "
            "pass data with columns of the augmented view"
        )
    views.require_unique_rows()  # the history of training is kept by `row_id`
    losses, targets = trainer.pair_losses(data)
    rows, numbers = trained_partners(targets).nonzero()
    pairs = rows, numbers + 1
    if not len(rows):
        raise DataError("pair_report: no pair has a target in both views; were the targets truncated?")
    row_ids = list(views.row_ids)
    left, right = losses[rows, 0], losses[pairs]
    broken = ~(np.isfinite(left) & np.isfinite(right))
    if broken.any():
        named = [str(row_ids[row]) for row in dict.fromkeys(rows[broken].tolist())][:MAX_NAMED_ROWS]
        raise DataError(
            f"pair_report: the loss of {broken.sum()} of {len(rows)} pairs is not finite: {named}; check these rows "
            "and the weights of the model"
        )
    groupings = groupings_of(views, pairs, options.groups, targets[:, 0], label_names(trainer.model))
    # Only of these rows is it known that training saw them: other data may use the same ids.
    was_trained = (data.data if isinstance(data, HeldRows) else data) is trainer.train_dataset
    sums = steps = np.zeros(len(rows))
    if was_trained:
        sums, steps = trainer.pair_history.sums([row_ids[row] for row in rows], pairs[1])
    correct, same_answer, answers = None, None, None
    if evaluator is not None:
        correct, same_answer, answers = _correctness(trainer, data, views, pairs, evaluator, gen_kwargs)
    # Of all rows, as training counts them: rows without a partner add tokens, but no pair.
    _, pair_count, tokens = BatchLayout(targets > 0, targets).counts(with_partners=True)
    dair_lambda = trainer.lambda_control.latest
    values = PairValues(
        *pairs,
        left,
        right,
        disagreement(left, right, sums, steps),
        steps,
        dair_lambda,
        gradient_weights_of(trainer.args, rows, left, right, dair_lambda, tokens / (2 * pair_count)),
        correct,
        same_answer,
        answers,
    )

    def assemble() -> PairReport:
        return _assemble(trainer, views, values, groupings, row_ids, options)

    return on_first_rank(assemble)


def _assemble(
    trainer: Any,
    views: PairViews,
    values: PairValues,
    groupings: dict[str, Grouping],
    row_ids: Sequence[Any],
    options: ReportOptions,
) -> PairReport:
    order = np.argsort(-values.scores, kind="stable")
    left, right, correct = values.original, values.augmented, values.correct
    columns = {
        "row_id": [str(row_ids[row]) for row in values.rows[order]],
        "partner": values.partners[order].tolist(),
        "loss_original": left[order].tolist(),
        "loss_augmented": right[order].tolist(),
        "consistency": root_consistency(left, right)[order].tolist(),
        "score": values.scores[order].tolist(),
    }
    if values.weights is not None:
        columns |= dict(zip(("weight_original", "weight_augmented"), values.weights[:, order].tolist(), strict=True))
    by_group = [] if correct is None else [("all pairs", [["all pairs"]] * len(left)), *groupings.items()]
    tables = (
        []
        if correct is None
        else [correctness_by_group(name, groups, correct, values.same_answer) for name, groups in by_group]
    )
    texts = [options.texts] if isinstance(options.texts, str) else options.texts
    contents = PairContents(trainer.processing_class, texts, label_names(trainer.model))
    worst = []
    for number, pair in enumerate(order[: options.worst].tolist()):
        row, partner = int(values.rows[pair]), int(values.partners[pair])
        shown: dict[str, Any] = {"number": number, "fields": contents(*row_of(views, row, partner))}
        if correct is not None and values.answers is not None:
            shown["correct"] = correct[pair].tolist()
            shown["answer"] = dict(zip(VIEWS, values.answers[pair], strict=True))
        worst.append(shown)
    return PairReport(
        options.title,
        _settings(trainer, values.dair_lambda),
        _summary(values, len(row_ids), tables),
        columns,
        curves_of(trainer.state.log_history),
        [losses_by_group(name, grouping, left, right) for name, grouping in groupings.items()],
        tables,
        worst,
    )


def _summary(values: PairValues, rows: int, tables: list[dict[str, Any]]) -> dict[str, Any]:
    left, right = values.original, values.augmented
    summary: dict[str, Any] = {
        "rows": rows,
        "pairs": len(values.rows),
        "loss_original": left.mean(),
        "loss_augmented": right.mean(),
        "consistency": root_consistency(left, right).mean(),
        "inconsistency": inconsistency(left, right),
        "steps_per_pair": values.steps.mean(),
        "share_of_worst": share_of_worst(values.scores),
    }
    if values.weights is not None:
        summary["unlearned_share"] = (values.weights.min(0) < 0).mean()
    if tables:
        summary |= {key: tables[0]["groups"][0][key] for key in CM_AND_FLIPS}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in summary.items()}


def _settings(trainer: Any, dair_lambda: float | None) -> dict[str, Any]:
    args: DAIRConfig = trainer.args
    settings = {"model": type(trainer.model).__name__, "method": args.method, "steps": trainer.state.global_step}
    if args.uses_regularizer:
        settings |= {"regularizer": str(args.regularizer), "dair_lambda": dair_lambda}
        settings["normalization"] = args.normalization
    return settings


def gradient_weights_of(
    args: DAIRConfig,
    rows: np.ndarray,
    original: np.ndarray,
    augmented: np.ndarray,
    dair_lambda: float | None,
    tokens_per_pair: float,
) -> np.ndarray | None:
    """Return the weights c and c~_p of `c grad l + sum_p c~_p grad l~_p`, the gradient of a row, at each of its pairs.

    For P partners of a row `c = w + lambda mean_p dR(l, l~_p)/dl`, the same at all of them, and
    `c~_p = (w~ + lambda dR(l, l~_p)/dl~_p) / P`. In token normalization, which adds up the losses of the partners,
    `c~_p = w~ + lambda / P dR(l, l~_p)/dl~_p`.
    """
    regularizer = args.loss_regularizer
    if args.method != "dair" or regularizer is None or dair_lambda is None:
        return None
    adds_losses = args.normalization == "token"
    if adds_losses:
        dair_lambda *= tokens_per_pair
    slopes = regularizer.slopes(torch.from_numpy(original), torch.from_numpy(augmented), args.loss_epsilon)
    first, second = (
        dair_lambda * slope.numpy() * (args.stop_gradient != view) for view, slope in zip(VIEWS, slopes, strict=True)
    )
    _, at, counts = np.unique(rows, return_inverse=True, return_counts=True)
    partners, (weight, augmented_weight) = counts[at], args.pair_weights
    of_original = weight + (np.bincount(at, weights=first) / counts)[at]
    return np.stack([of_original, augmented_weight / (1 if adds_losses else partners) + second / partners])


def _correctness(
    trainer: Any,
    data: Any,
    views: PairViews,
    pairs: tuple[np.ndarray, np.ndarray],
    evaluator: PairEvaluator | Correct | PairEvaluation,
    gen_kwargs: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray | None, list[list[str]]]:
    """Return `correct`, `same_answer` and `answers` of `PairValues`, for pairs of a row and a partner number."""
    if isinstance(evaluator, PairEvaluation):
        evaluation = evaluator
    else:
        evaluation = trainer.evaluate_views(data, evaluator, intervals=False, **gen_kwargs)
    right, answers = evaluation.correct, evaluation.answers
    names = label_names(trainer.model)
    shown = [names(int(a)) if isinstance(a, (int, np.integer)) else _shown(a) for a in answers]
    original, partners = views.by_row("answers", np.arange(len(shown)))
    rows, numbers = pairs
    of_pairs = np.stack([original[rows], partners[rows, numbers - 1]], axis=1)
    same_answer = None if evaluation.same_answer is None else evaluation.same_answer[rows, numbers - 1]
    return right[of_pairs], same_answer, [[shown[view] for view in both] for both in of_pairs.tolist()]


def _shown(answer: Any) -> str:
    return answer if isinstance(answer, str) else f"{answer!r:.300}"


def label_names(model: Any) -> Any:
    """Return the function from a class number to its name in the configuration of a model, else the number."""
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    # "LABEL_3" is the name that transformers give a class without one.
    return lambda number: str(number) if str(names.get(number, "LABEL_")).startswith("LABEL_") else str(names[number])


def curves_of(log_history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the curves of the training logs.

    Where `inconsistency` was not logged, but every row had a partner, it follows from the logged means.
    """
    curves: dict[str, dict[str, list[float]]] = {}
    for log in log_history:
        values = {name: log[name] for name in CURVES if isinstance(log.get(name), (int, float))}
        if log.get("partner_share") == 1 and {"loss_original", "loss_augmented", "consistency"} <= set(values):
            total = values["loss_original"] + values["loss_augmented"]
            if total > 0:
                values.setdefault("inconsistency", 2 * values["consistency"] / total)
        for name, value in values.items():
            curve = curves.setdefault(name, {"step": [], "value": []})
            curve["step"].append(log["step"])
            curve["value"].append(value)
    return {name: curves[name] for name in CURVES if name in curves}
