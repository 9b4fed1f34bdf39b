"""Model card of a paired run: model, use, objective, data, and metrics as `model-index` metadata."""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from huggingface_hub import EvalResult, ModelCard

from dair_hf.config import DAIRConfig
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.evaluation.views import views_of
from dair_hf.io.files import atomic_path
from dair_hf.training.cards.model_use import ModelFacts, describe_model, usage

PAPER = "https://openreview.net/forum?id=a1meaRy1bN"
SECTION = "## Paired training (DAIR)"
FROM_SCRATCH = "trained from scratch"
# Sections that the Trainer writes for the user to fill in; the card says all of this in sections of its own.
PLACEHOLDER = re.compile(
    r"\n## (?:Model description|Intended uses & limitations|Training and evaluation data)\n\nMore information needed\n"
)


@dataclass
class PairResult:
    """Result of `evaluate_pairs` on one data set."""

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
            ("cm_same_answer", f"consistency metric, same answer{preset}"),
            ("both_correct", f"right on both views{preset}"),
            ("all_correct", f"right on all views of a row{preset}"),
            ("pos_to_neg", "flipped right to wrong"),
            ("neg_to_pos", "flipped wrong to right"),
            ("neg_to_neg", "wrong on both"),
            ("cm_all_rows", f"consistency metric, all rows{preset}"),
        ]
        return [(key, name) for key, name in names if math.isfinite(self.metrics.get(key, math.nan))]


def describe_objective(args: DAIRConfig) -> list[str]:
    """Describe the objective, one line per setting."""
    lines = [f"method: `{args.method}`"]
    if args.uses_regularizer:
        lines.append(f"regularizer: `{args.regularizer}`")
        lines.append(f"lambda: {args.lambda_text} ({args.lambda_unit})")
    return [*lines, f"normalization: `{args.normalization}`"]


def description_of(value: Any) -> str | None:
    """Describe an objective or augmenter: a function by its name, since its repr contains a memory address."""
    return None if value is None else getattr(value, "__qualname__", repr(value))


@dataclass
class TrainingFacts:
    """Facts about a training that its configuration does not hold."""

    data: str | None = None
    rows: int | None = None
    pairs: int = 0
    final_lambda: float | None = None
    objective: str | None = None
    augmenter: str | None = None

    @classmethod
    def of(cls, dataset: Any, name: str | Sequence[str] | None = None) -> TrainingFacts:
        """Return the facts on a training data set: its name or names, and the numbers of its rows and pairs."""
        facts = cls(name if name is None or isinstance(name, str) else ", ".join(name))
        if isinstance(dataset, datasets.Dataset | EpochPairs | TensorPairs):
            views = views_of(dataset)
            facts.rows, facts.pairs = views.n_rows, int(views.has_partner.sum())
        return facts


def write_model_card(
    path: Path,
    args: DAIRConfig,
    reports: Sequence[PairResult],
    training: TrainingFacts | None = None,
    model: ModelFacts | None = None,
) -> None:
    """Add sections on the model, its paired training and its metrics to a card, or replace those of an earlier run."""
    card = ModelCard.load(path, ignore_metadata_errors=False)
    body = PLACEHOLDER.sub("", card.text.split(SECTION)[0])
    # The Trainer writes these for a model without a name, and for one that was loaded from a folder.
    body = body.replace("a fine-tuned version of [](https://huggingface.co/)", FROM_SCRATCH)
    if model is not None and model.base_folder is not None:
        body = body.replace(f"was {FROM_SCRATCH}", f"is a fine-tuned version of the local model `{model.base_folder}`")
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
        if not has_few_pairs(report.metrics, key)
    ]
    if results:
        card.data.eval_results = results
    sections = [*_objective_section(args, training or TrainingFacts())]
    if model is not None:
        sections += ["", "### Model", "", *(f"- {line}" for line in describe_model(model)), "", "### Use", ""]
        sections += usage(model, path.parent.name)
    for report in reports:
        sections += ["", *_results_section(report)]
    card.text = "\n".join([body.rstrip(), "", SECTION, "", *sections, ""])
    with atomic_path(path) as scratch:
        card.save(scratch)


def _objective_section(args: DAIRConfig, training: TrainingFacts) -> list[str]:
    """Return the lines on objective, training data and version."""
    lines = describe_objective(args)
    if args.uses_regularizer and isinstance(args.dair_lambda, str) and training.final_lambda is not None:
        lines.append(f"lambda of the last step: {training.final_lambda:.4g}")
    if training.objective:
        lines.append(f"replaced by the objective: `{training.objective}`")
    if training.augmenter:
        lines.append(f"partners made during training by: `{training.augmenter}`")
    data = [training.data] if training.data else []
    if training.rows is not None:
        partners = "" if training.augmenter else f", of which {training.pairs:,} have an augmented view"
        data.append(f"{training.rows:,} rows{partners}")
    if data:
        lines.append(f"training data: {'; '.join(data)}")
    method = (
        f"Trained with [DAIR]({PAPER}), which penalizes different losses of a sample and its augmented partner."
        if args.uses_regularizer
        else f"Trained without a term on consistency, as a baseline of [DAIR]({PAPER})."
    )
    return [
        method,
        "",
        *(f"- {line}" for line in [*lines, f"version: dair_hf {_version()}"]),
    ]


def _results_section(report: PairResult) -> list[str]:
    """Return the lines on one evaluation: a table of metrics with intervals, and how to read both CMs."""
    metrics = report.metrics
    lines = [f"### {report.data}", "", "| metric | value | 95 % interval |", "|---|---|---|"]
    for key, name in report.headline():
        shown = " - | - " if has_few_pairs(metrics, key) else f" {metrics[key]:.4f} | {_interval(metrics, key)} "
        lines.append(f"| {name} |{shown}|")
    if not metrics["pairs"]:
        return [*lines, "", f"None of {metrics['rows']} rows has an augmented view."]
    partners = metrics.get("partners", metrics["pairs"])
    kinds = ""
    if "cm_same_answer" in metrics:
        top, bottom = metrics["cm_same_answer_numerator"], metrics["cm_same_answer_denominator"]
        kinds = f"These are the pairs with different references; over the others it is {top} / {bottom}. "
    several = f", {partners} in all, each a pair with its original" if partners != metrics["pairs"] else ""
    return [
        *lines,
        "",
        f"The consistency metric is {metrics['cm_numerator']} / {metrics['cm_denominator']}: of the pairs with a "
        f"correct original view, those with a correct augmented view. {kinds}"
        f"{metrics['pairs']} of {metrics['rows']} rows have an augmented view{several}; the shares of flips are over "
        "all pairs. Over all rows, if those without an augmented view count as two identical "
        f"views, it is {metrics['cm_all_rows_numerator']} / {metrics['cm_all_rows_denominator']}, as in the "
        "paper's tables.",
    ]


def _version() -> str:
    try:
        return importlib.metadata.version("dair-hf")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _interval(metrics: Mapping[str, Any], key: str) -> str:
    low, high = metrics.get(f"{key}_low", math.nan), metrics.get(f"{key}_high", math.nan)
    return f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else "-"
