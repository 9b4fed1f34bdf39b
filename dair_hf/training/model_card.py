"""Model card of a paired run: objective, data, and metrics as `model-index` metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from dair_hf.config import DAIRConfig
from dair_hf.io.files import atomic_path

PAPER = "https://openreview.net/forum?id=a1meaRy1bN"
SECTION = "## Paired training (DAIR)"
FROM_SCRATCH = "trained from scratch"


@dataclass
class PairResult:
    """Result of `evaluate_pairs` on one data set.

    Attributes:
        data: Name of the data set, such as "MultiWOZ 2.1 test".
        accuracy_name: Name of the accuracy in the keys of the metrics.
        preset: Preset of the accuracy, such as "any_of", or None.
        metrics: Metrics of `evaluate_pairs`.
    """

    data: str
    accuracy_name: str = "accuracy"
    preset: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def headline(self) -> list[tuple[str, str]]:
        """Return key and printed name of the main metrics that are defined."""
        accuracy = self.accuracy_name.replace("_", " ")
        preset = f" ({self.preset})" if self.preset else ""
        names = [
            (f"original_{self.accuracy_name}", f"{accuracy}, original{preset}"),
            (f"augmented_{self.accuracy_name}", f"{accuracy}, augmented{preset}"),
            ("cm", f"consistency metric{preset}"),
            ("both_correct", f"right on both views{preset}"),
            ("all_correct", f"right on all views of a row{preset}"),
            ("pos_to_neg", "flipped right to wrong"),
            ("neg_to_pos", "flipped wrong to right"),
            ("neg_to_neg", "wrong on both"),
            ("cm_all_rows", f"consistency metric, all rows{preset}"),
        ]
        return [(key, name) for key, name in names if math.isfinite(self.metrics.get(key, math.nan))]


def describe_objective(args: DAIRConfig) -> list[str]:
    """Describe the objective, one line per setting.

    Args:
        args: Configuration of the run.

    Returns:
        Markdown list items without the bullet.

    Example:
        >>> describe_objective(DAIRConfig("out", method="erm"))
        ['method: `erm`', 'normalization: `pair`']
    """
    lines = [f"method: `{args.method}`"]
    if args.uses_regularizer:
        lines.append(f"regularizer: `{args.regularizer}`")
        lines.append(f"lambda: {args.lambda_text} ({args.lambda_unit})")
    return [*lines, f"normalization: `{args.normalization}`"]


def description_of(value: Any) -> str | None:
    """Describe an objective or augmenter: a function by its name, since its repr contains a memory address.

    Returns:
        The name of a function, the repr of anything else; None for None.

    Example:
        >>> description_of(len), description_of(3), description_of(None)
        ('len', '3', None)
    """
    return None if value is None else getattr(value, "__qualname__", repr(value))


def write_model_card(
    path: Path,
    args: DAIRConfig,
    reports: Sequence[PairResult],
    objective: str | None = None,
    augmenter: str | None = None,
) -> None:
    """Add a section on paired training and its metrics to a model card, or replace that of an earlier run.

    Args:
        path: `README.md` written by the Trainer.
        args: Configuration of the run.
        reports: Results of `evaluate_pairs`.
        objective: Objective that replaced that of `args`, or None.
        augmenter: Augmenter that made the partners during training; None: they are in the data.
    """
    card = ModelCard.load(path, ignore_metadata_errors=False)
    # The Trainer writes this for a model without a name.
    body = card.text.split(SECTION)[0].replace("a fine-tuned version of [](https://huggingface.co/)", FROM_SCRATCH)
    card.data.model_name = card.data.model_name or path.parent.name
    card.data.tags = sorted({*(card.data.tags or []), "dair", "consistency-training"})
    results = [
        EvalResult(
            task_type="other",
            dataset_type=report.data.lower().replace(" ", "-"),
            dataset_name=report.data,
            metric_type=key,
            metric_name=name,
            metric_value=round(float(report.metrics[key]), 6),
        )
        for report in reports
        for key, name in report.headline()
    ]
    if results:
        card.data.eval_results = results
    card.text = "\n".join([body.rstrip(), "", SECTION, "", *_body(args, reports, objective, augmenter), ""])
    with atomic_path(path) as scratch:
        card.save(scratch)


def _body(args: DAIRConfig, reports: Sequence[PairResult], objective: str | None, augmenter: str | None) -> list[str]:
    lines = [
        f"Trained with [DAIR]({PAPER}), which penalizes different losses of a sample and its augmented partner.",
        "",
        *(f"- {line}" for line in describe_objective(args)),
        *([f"- replaced by the objective: `{objective}`"] if objective else []),
        *([f"- partners made during training by: `{augmenter}`"] if augmenter else []),
    ]
    for report in reports:
        metrics = report.metrics
        lines += ["", f"### {report.data}", "", "| metric | value | 95 % interval |", "|---|---|---|"]
        lines += [f"| {name} | {metrics[key]:.4f} | {_interval(metrics, key)} |" for key, name in report.headline()]
        if not metrics["pairs"]:
            lines += ["", f"None of {metrics['rows']} rows has an augmented view."]
            continue
        partners = metrics.get("partners", metrics["pairs"])
        several = f", {partners} in all, each a pair with its original" if partners != metrics["pairs"] else ""
        lines += [
            "",
            f"The consistency metric is {metrics['cm_numerator']} / {metrics['cm_denominator']}: of the pairs with a "
            "correct original view, those with a correct augmented view. "
            f"{metrics['pairs']} of {metrics['rows']} rows have an augmented view{several}; the metric and the shares "
            "of flips are over these pairs. Over all rows, if those without an augmented view count as two identical "
            f"views, it is {metrics['cm_all_rows_numerator']} / {metrics['cm_all_rows_denominator']}, as in the "
            "paper's tables.",
        ]
    return lines


def _interval(metrics: Mapping[str, Any], key: str) -> str:
    low, high = metrics.get(f"{key}_low", math.nan), metrics.get(f"{key}_high", math.nan)
    return f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else "-"
