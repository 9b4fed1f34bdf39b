"""Building the report on the pairs of a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
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
from dair_hf.pair_report.page import CURVES, require_report_libraries
from dair_hf.pair_report.report import PAIR_COLUMNS, PairReport
from dair_hf.pair_report.scores import (
    CM_AND_FLIPS,
    correctness_by_group,
    disagreement,
    groupings_of,
    inconsistency,
    losses_by_group,
    share_of_worst,
)
from dair_hf.settings import Count, Settings

Groups = str | Sequence[str] | Mapping[str, Sequence[Any]] | None

WEIGHTS = ["weight_original", "weight_augmented"]


@dataclass(frozen=True)
class ReportOptions(Settings):
    """Options of a pair report, see `DAIRTrainer.pair_report`."""

    title: str = "Pair report"
    groups: Groups = None
    texts: str | Sequence[str] | None = None
    worst: Count = 100


def build_report(
    trainer: Any,
    data: Any,
    evaluator: PairEvaluator | Correct | PairEvaluation | None,
    options: ReportOptions,
    **gen_kwargs: Any,
) -> PairReport:
    """Build the report on pairs, with the losses of a trainer's model. Every process must call this function.

    The evaluator says what counts as right, or is the evaluation of all views by the same model; None: losses only.
    """
    require_report_libraries()  # before the model is run, like the next checks
    views = views_of(data)
    views.require_unique_rows()  # the history of training is kept by `row_id`
    texts = [options.texts] if isinstance(options.texts, str) else options.texts
    groups = [options.groups] if isinstance(options.groups, str) else options.groups or ()
    if missing := {*(texts or ()), *(() if isinstance(groups, Mapping) else groups)}.difference(views.column_names):
        raise DataError(f"groups, texts: expected columns of the data, {views.column_names}, got {sorted(missing)}")
    if not views.has_partner.any():
        raise DataError(f"pair_report: expected columns of the augmented view; none of {len(data)} rows has a partner")

    evaluation: Any = evaluator
    if evaluation is not None and not isinstance(evaluation, PairEvaluation):
        evaluation = trainer.evaluate_views(data, evaluation, intervals=False, **gen_kwargs)
    losses, targets = trainer.pair_losses(data)
    rows, numbers = trained_partners(targets).nonzero()
    partners = numbers + 1
    left, right = losses[rows, 0], losses[rows, partners]
    broken = ~(np.isfinite(left) & np.isfinite(right))
    if broken.any() or not len(rows):
        named = [str(views.row_ids[row]) for row in dict.fromkeys(rows[broken].tolist())][:8]
        raise DataError(
            f"pair_report: expected finite losses of pairs with targets, got {len(rows)} pairs, {broken.sum()} of them "
            f"not finite: {named}"
        )
    groupings = groupings_of(views, (rows, partners), groups, targets[:, 0], label_names(trainer.model))
    row_ids = [views.row_ids[row] for row in rows]
    # Training is known to have seen these rows only: other data may use the same ids.
    was_trained = (data.data if isinstance(data, HeldRows) else data) is trainer.train_dataset
    sums, steps = trainer.pair_history.sums(row_ids, partners) if was_trained else np.zeros((2, len(rows)))
    pairs = pd.DataFrame(
        {
            "row": rows,
            "row_id": [str(row_id) for row_id in row_ids],
            "partner": partners,
            "loss_original": left,
            "loss_augmented": right,
            "consistency": disagreement(left, right),
            "score": disagreement(left, right, sums, steps),
            "steps": steps,
        }
    )
    # Over all rows, as in training: rows without a partner add tokens, but no pair.
    _, pair_count, tokens = BatchLayout(targets > 0, targets).counts(with_partners=True)
    dair_lambda = trainer.lambda_control.latest
    weights = _gradient_weights(trainer.args, rows, left, right, dair_lambda, tokens / (2 * pair_count))
    if weights is not None:
        pairs[WEIGHTS] = weights.T
    tables = []
    if evaluation is not None:
        same_answer = _add_correctness(pairs, views, evaluation, label_names(trainer.model))
        correct = pairs[["right_original", "right_augmented"]].to_numpy()
        by_group = {"all pairs": [["all pairs"]] * len(pairs), **groupings}
        tables = [correctness_by_group(name, grouping, correct, same_answer) for name, grouping in by_group.items()]

    def assemble() -> PairReport:
        ordered = pairs.sort_values("score", ascending=False, kind="stable")
        contents = PairContents(trainer.processing_class, texts, label_names(trainer.model))
        return PairReport(
            options.title,
            _settings(trainer, dair_lambda),
            _summary(pairs, len(views.row_ids), tables),
            {name: ordered[name].tolist() for name in (*PAIR_COLUMNS, *WEIGHTS) if name in ordered},
            _curves_of(trainer.state.log_history),
            [losses_by_group(name, grouping, left, right) for name, grouping in groupings.items()],
            tables,
            [
                _shown(number, pair, views, contents)
                for number, pair in enumerate(ordered[: options.worst].itertuples())
            ],
        )

    return on_first_rank(assemble)


def _shown(at: int, pair: Any, views: PairViews, contents: PairContents) -> dict[str, Any]:
    """Return the contents of a pair and, with an evaluator, its answers."""
    shown: dict[str, Any] = {"number": at, "fields": contents(*row_of(views, pair.row, pair.partner))}
    if hasattr(pair, "right_original"):
        shown["correct"] = [pair.right_original, pair.right_augmented]
        shown["answer"] = {"original": pair.answer_original, "augmented": pair.answer_augmented}
    return shown


def _summary(pairs: pd.DataFrame, rows: int, tables: list[dict[str, Any]]) -> dict[str, Any]:
    left, right = pairs["loss_original"].to_numpy(), pairs["loss_augmented"].to_numpy()
    means = pairs[["loss_original", "loss_augmented", "consistency"]].mean().to_dict()
    summary: dict[str, Any] = {
        "rows": rows,
        "pairs": len(pairs),
        **means,
        "inconsistency": inconsistency(left, right),
        "steps_per_pair": float(pairs["steps"].mean()),
        "share_of_worst": share_of_worst(pairs["score"].to_numpy()),
    }
    if WEIGHTS[0] in pairs:
        summary["unlearned_share"] = float((pairs[WEIGHTS].min(axis=1) < 0).mean())
    if tables:
        summary |= {key: tables[0]["groups"][0][key] for key in CM_AND_FLIPS}
    return summary


def _settings(trainer: Any, dair_lambda: float | None) -> dict[str, Any]:
    args: DAIRConfig = trainer.args
    settings = {"model": type(trainer.model).__name__, "method": args.method, "steps": trainer.state.global_step}
    if args.uses_regularizer:
        settings |= {"regularizer": str(args.regularizer), "dair_lambda": dair_lambda}
        settings["normalization"] = args.normalization
    return settings


def _gradient_weights(
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
    first, second = (dair_lambda * slope.numpy() for slope in slopes)
    _, at, counts = np.unique(rows, return_inverse=True, return_counts=True)
    partners, (weight, augmented_weight) = counts[at], args.pair_weights
    of_original = weight + (np.bincount(at, weights=first) / counts)[at]
    return np.stack([of_original, augmented_weight / (1 if adds_losses else partners) + second / partners])


def _add_correctness(
    pairs: pd.DataFrame, views: PairViews, evaluation: PairEvaluation, names: Any
) -> np.ndarray | None:
    """Add to each pair whether its views are right, and their answers; return which pairs keep their answer."""
    original, partners = views.by_row("answers", np.arange(len(evaluation.answers)))
    rows, numbers = pairs["row"].to_numpy(), pairs["partner"].to_numpy() - 1
    for view, numbers_of_views in zip(VIEWS, (original[rows], partners[rows, numbers]), strict=True):
        answers = [evaluation.answers[number] for number in numbers_of_views]
        pairs[f"right_{view}"] = evaluation.correct[numbers_of_views]
        pairs[f"answer_{view}"] = [
            names(int(a)) if isinstance(a, (int, np.integer)) else a if isinstance(a, str) else f"{a!r:.300}"
            for a in answers
        ]
    return None if evaluation.same_answer is None else evaluation.same_answer[rows, numbers]


def label_names(model: Any) -> Any:
    """Return the function from a class number to its name in the configuration of a model, else the number."""
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    # "LABEL_3" is the name that transformers give a class without one.
    return lambda number: str(number) if str(names.get(number, "LABEL_")).startswith("LABEL_") else str(names[number])


def _curves_of(log_history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the curves of the training logs."""
    curves: dict[str, dict[str, list[float]]] = {}
    for name in (name for _, _, values, *_ in CURVES for name in values):
        logs = [log for log in log_history if isinstance(log.get(name), (int, float))]
        if logs:
            curves[name] = {"step": [log["step"] for log in logs], "value": [log[name] for log in logs]}
    return curves
