"""Model card of a paired run: model, use, objective, data, and metrics as `model-index` metadata."""

from __future__ import annotations

import importlib.metadata
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from huggingface_hub import EvalResult, ModelCard
from peft import PeftModel
from torch import nn
from transformers import (
    BaseImageProcessor,
    FeatureExtractionMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.modelcard import TASK_MAPPING

from dair_hf.config import DAIRConfig
from dair_hf.data.held_rows import is_transformed
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.evaluation.views import views_of
from dair_hf.io.files import atomic_path, read_json, write_json
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, base_model_of, can_generate, derived_sample_loss

PAPER = "https://openreview.net/forum?id=a1meaRy1bN"
SECTION = "## Paired training (DAIR)"
FROM_SCRATCH = "trained from scratch"
# Sections that the Trainer writes for the user to fill in; the card says all of this in sections of its own.
PLACEHOLDER = re.compile(
    r"\n## (?:Model description|Intended uses & limitations|Training and evaluation data)\n\nMore information needed\n"
)
CLASSES_FILE = "dair_classes.json"  # next to adapters whose head was replaced; peft saves no configuration of it
# The class that loads each kind of processing class; only the first is called with a text.
_LOADERS: tuple[tuple[type, str, str], ...] = (
    (PreTrainedTokenizerBase, "AutoTokenizer", "tokenizer"),
    (ProcessorMixin, "AutoProcessor", "processor"),
    (BaseImageProcessor, "AutoImageProcessor", "processor"),
    (FeatureExtractionMixin, "AutoFeatureExtractor", "processor"),
)
MAX_NEW_TOKENS = 64  # in the example of the card


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


@dataclass
class TrainingFacts:
    """Facts about a training that its configuration does not hold."""

    names: Sequence[str] = ()  # of the data sets
    rows: int | None = None
    pairs: int = 0
    final_lambda: float | None = None
    objective: Any = None
    augmenter: Any = None

    @classmethod
    def of(cls, dataset: Any, name: str | Sequence[str] | None = None) -> TrainingFacts:
        """Return the facts on a training data set: its name or names, and the numbers of its rows and pairs."""
        facts = cls([name] if isinstance(name, str) else name or ())
        if isinstance(dataset, datasets.Dataset | EpochPairs | TensorPairs) and not is_transformed(dataset):
            views = views_of(dataset)
            facts.rows, facts.pairs = views.n_rows, int(views.has_partner.sum())
        return facts


@dataclass
class ModelFacts:
    """A trained model, as far as its card speaks of it."""

    model: nn.Module
    processing_class: Any = None
    repo: str | None = None

    @property
    def base_name(self) -> str | None:
        """Name of the base model on the Hub, or path of its folder; None for a model from scratch."""
        if isinstance(self.model, PeftModel):
            name = self.model.peft_config[self.model.active_adapter].base_model_name_or_path
        else:
            name = getattr(getattr(base_model_of(self.model), "config", None), "_name_or_path", None)
        return name or None

    @property
    def base_folder(self) -> str | None:
        """Name of the folder of the base model, without the path to it; None if it is from the Hub or from scratch."""
        return Path(self.base_name).name if self.base_name is not None and Path(self.base_name).is_dir() else None


def write_model_card(
    path: Path,
    args: DAIRConfig,
    reports: Sequence[PairResult],
    training: TrainingFacts | None = None,
    model: ModelFacts | None = None,
) -> None:
    """Add sections on the model, its paired training and its metrics to a card, or replace those of an earlier run."""
    training = training or TrainingFacts()
    card = ModelCard.load(path, ignore_metadata_errors=False)
    body = PLACEHOLDER.sub("", card.text.split(SECTION)[0])
    # The Trainer writes these for a model without a name, and for one that was loaded from a folder.
    body = body.replace("a fine-tuned version of [](https://huggingface.co/)", FROM_SCRATCH)
    if model is not None and model.base_folder is not None:
        body = body.replace(f"was {FROM_SCRATCH}", f"is a fine-tuned version of the local model `{model.base_folder}`")
    card.data.model_name = card.data.model_name or path.parent.name
    card.data.tags = sorted({*(card.data.tags or []), "dair", "consistency-training"})
    task = None if model is None else _task_of(model.model)
    card.data.pipeline_tag = card.data.pipeline_tag or task
    metrics = [*(card.data.metrics or []), *(report.accuracy_name for report in reports)]
    card.data.metrics = list(dict.fromkeys(metrics)) or None
    results = [
        EvalResult(
            task_type=task or "other",
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
    sections = [*_objective_section(args, training)]
    if model is not None:
        sections += ["", "### Model", "", *(f"- {line}" for line in _model_section(model)), "", "### Use", ""]
        sections += _usage(model, path.parent.name)
    for report in reports:
        sections += ["", *_results_section(report)]
    card.text = "\n".join([body.rstrip(), "", SECTION, "", *sections, ""])
    with atomic_path(path) as scratch:
        card.save(scratch)


def _objective_section(args: DAIRConfig, training: TrainingFacts) -> list[str]:
    """Return the lines on objective, training data and version."""
    lines = [f"method: `{args.method}`"]
    if args.uses_regularizer:
        lines += [f"regularizer: `{args.regularizer}`", f"lambda: {args.lambda_text} ({args.lambda_unit})"]
    lines.append(f"normalization: `{args.normalization}`")
    if args.uses_regularizer and isinstance(args.dair_lambda, str) and training.final_lambda is not None:
        lines.append(f"lambda of the last step: {training.final_lambda:.4g}")
    if training.objective is not None:
        lines.append(f"replaced by the objective: `{_described(training.objective)}`")
    if training.augmenter is not None:
        lines.append(f"partners made during training by: `{_described(training.augmenter)}`")
    data = [", ".join(training.names)] if training.names else []
    if training.rows is not None:
        partners = "" if training.augmenter is not None else f", of which {training.pairs:,} have an augmented view"
        data.append(f"{training.rows:,} rows{partners}")
    if data:
        lines.append(f"training data: {'; '.join(data)}")
    method = (
        f"Trained with [DAIR]({PAPER}), which penalizes different losses of a sample and its augmented partner."
        if args.uses_regularizer
        else f"Trained without a term on consistency, as a baseline of [DAIR]({PAPER})."
    )
    return [method, "", *(f"- {line}" for line in [*lines, f"version: dair_hf {_version()}"])]


def _described(value: Any) -> str:
    """Describe an objective or augmenter: a function by its name, since its repr contains a memory address."""
    return getattr(value, "__qualname__", repr(value))


def _version() -> str:
    try:
        return importlib.metadata.version("dair-hf")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


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


def _interval(metrics: Mapping[str, Any], key: str) -> str:
    low, high = metrics.get(f"{key}_low", math.nan), metrics.get(f"{key}_high", math.nan)
    return f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else "-"


def _model_section(facts: ModelFacts) -> list[str]:
    """Describe a model: base model, class, parameters and adapters."""
    if facts.base_name is None:
        base = "none, trained from scratch"
    elif facts.base_folder is not None:
        base = f"`{facts.base_folder}`, a local folder"
    else:
        base = f"[{facts.base_name}](https://huggingface.co/{facts.base_name})"
    inner = base_model_of(facts.model)
    lines = [f"base model: {base}", f"class: `{type(inner).__name__}`"]
    parameters = list(facts.model.parameters())
    total = sum(weight.numel() for weight in parameters)
    if not isinstance(facts.model, PeftModel):
        return [*lines, f"parameters: {total:,}"]
    trained = sum(weight.numel() for weight in parameters if weight.requires_grad)
    adapter = facts.model.peft_config[facts.model.active_adapter]
    kind = getattr(adapter.peft_type, "value", adapter.peft_type)
    targets = adapter.target_modules or ()
    names = targets if isinstance(targets, str) else ", ".join(sorted(targets))
    rank = f", rank {adapter.r}, alpha {adapter.lora_alpha}" if kind == "LORA" else ""
    return [
        *lines,
        f"adapter: {'LoRA' if kind == 'LORA' else kind}{rank}, on `{names}`",
        f"parameters: {total:,}, of which {trained:,} are trained",
    ]


def _usage(facts: ModelFacts, folder: str) -> list[str]:
    """Return Markdown with the code that loads a model (from `folder` if it has no repository) and runs it."""
    inner, repo = base_model_of(facts.model), facts.repo or folder
    home = _home(type(inner))
    if home is None or not isinstance(inner, PreTrainedModel):
        return [f"The class `{type(inner).__qualname__}` belongs to no installed package; load it with its own code."]
    imports = {home: {type(inner).__name__}}
    code = [f'model = {type(inner).__name__}.from_pretrained("{repo}")']
    notes: list[str] = []
    if isinstance(facts.model, PeftModel):
        imports.setdefault("peft", set()).add("PeftModel")
        base = facts.base_folder or facts.base_name or "the base model"
        code, settings = [], [f'"{base}"']
        if _replaces_head(facts.model):
            imports |= {"json": set(), "transformers.utils": {"cached_file"}}
            code = [
                f'with open(cached_file("{repo}", "{CLASSES_FILE}"), encoding="utf-8") as file:',
                '    names = json.load(file)["id2label"]',
                "id2label = {int(number): name for number, name in names.items()}",
            ]
            settings += ["num_labels=len(id2label)", "id2label=id2label", "ignore_mismatched_sizes=True"]
        code += [
            f"base = {type(inner).__name__}.from_pretrained({', '.join(settings)})",
            f'model = PeftModel.from_pretrained(base, "{repo}")',
        ]
        if facts.base_folder is not None or facts.base_name is None:
            notes = ["", "These are adapters only. Their base model is not on the Hub; load it from its folder."]
    loaders = [names for kind, *names in _LOADERS if isinstance(facts.processing_class, kind)]
    for loader, variable in loaders[:1]:
        imports.setdefault("transformers", set()).add(loader)
        code.insert(0, f'{variable} = {loader}.from_pretrained("{repo}")')
        if variable == "tokenizer":
            code += _call(derived_sample_loss(facts.model))
    # In the order of isort: packages by name, and classes by name.
    lines = [
        f"from {package} import {', '.join(sorted(names))}" if names else f"import {package}"
        for package, names in sorted(imports.items())
    ]
    return ["```python", *lines, "", *code, "```", *notes]


def _call(sample_loss: str | None) -> list[str]:
    """Return the lines that run a model on a text."""
    lines = ['inputs = tokenizer("a text as in the training data", return_tensors="pt")']
    if sample_loss not in LANGUAGE_LOSSES:
        return [*lines, "print(model(**inputs).logits)"]
    answer = "answer[0]" if sample_loss == "seq2seq" else "answer[0, inputs.input_ids.shape[1] :]"
    return [
        *lines,
        "answer = model.generate(",
        f"    input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens={MAX_NEW_TOKENS}",
        ")",
        f"print(tokenizer.decode({answer}, skip_special_tokens=True))",
    ]


def _task_of(model: nn.Module) -> str | None:
    """Return the task of a model by the name that the Hub gives it, as the Trainer's card; None if it is not known."""
    inner: Any = base_model_of(model)
    for task, classes in TASK_MAPPING.items():
        if f"'{type(inner).__name__}'" in str([*classes.values()]):
            return task
    return "text-classification" if type(inner).__name__.endswith("ForSequenceClassification") else None


def _home(kind: type) -> str | None:
    """Return the module that a class can be imported from in another program; None if there is none."""
    package = kind.__module__.partition(".")[0]
    # transformers_modules: code that came with the weights.
    if package in ("__main__", "transformers_modules") or "<locals>" in kind.__qualname__:
        return None
    return package if getattr(sys.modules.get(package), kind.__name__, None) is kind else kind.__module__


def _replaces_head(model: Any) -> bool:
    """Return whether a model has adapters and a head of classes that was trained with them."""
    settings = model.peft_config[model.active_adapter] if isinstance(model, PeftModel) else None
    return settings is not None and bool(settings.modules_to_save) and not can_generate(model)


def save_classes(model: Any, folder: Path) -> None:
    """Write the names of the classes next to adapters whose head was replaced."""
    if _replaces_head(model):
        config: Any = model.config
        write_json(folder / CLASSES_FILE, {name: getattr(config, name) for name in ("id2label", "problem_type")})


def read_classes(file: Path) -> dict[str, Any]:
    """Read what `save_classes` has written, as arguments of a configuration."""
    saved = read_json(file)
    names = saved.get("id2label") if isinstance(saved, dict) else None
    if not isinstance(names, dict) or not names or sorted(names) != sorted(map(str, range(len(names)))):
        raise DataError(f'{file}: expected the names of all classes, {{"id2label": {{"0": "...", "1": "...", ...}}}}')
    id2label = {int(number): str(name) for number, name in names.items()}
    classes = {"id2label": id2label, "label2id": {name: number for number, name in id2label.items()}}
    return {**classes, **({"problem_type": saved["problem_type"]} if saved.get("problem_type") else {})}
