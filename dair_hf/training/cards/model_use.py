"""Description of a trained model and of its use, for its model card."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import nn
from transformers import (
    BaseImageProcessor,
    FeatureExtractionMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from dair_hf.training.run_settings import CLASSES_FILE, replaces_head
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, base_model_of, derived_sample_loss

# The class that loads each kind of processing class; only the first is called with a text.
_LOADERS: tuple[tuple[type, str, str], ...] = (
    (PreTrainedTokenizerBase, "AutoTokenizer", "tokenizer"),
    (ProcessorMixin, "AutoProcessor", "processor"),
    (BaseImageProcessor, "AutoImageProcessor", "processor"),
    (FeatureExtractionMixin, "AutoFeatureExtractor", "processor"),
)
MAX_NEW_TOKENS = 64  # in the example of the card


@dataclass
class ModelFacts:
    """A trained model, as far as its card speaks of it.

    Attributes:
        model: The model, possibly with adapters.
        processing_class: Tokenizer or processor that is saved with it, or None.
        repo: Its repository on the Hub; None if it has none.
    """

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


def describe_model(facts: ModelFacts) -> list[str]:
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


def usage(facts: ModelFacts, folder: str) -> list[str]:
    """Return Markdown lines with the code that loads a model and, for texts, runs it.

    Args:
        facts: The model.
        folder: Folder to load it from if it has no repository.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1))
        >>> usage(ModelFacts(model), "you/tracker")[3]
        'model = GPT2LMHeadModel.from_pretrained("you/tracker")'
    """
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
        if replaces_head(facts.model):
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


def _home(kind: type) -> str | None:
    """Return the module that a class can be imported from in another program; None if there is none."""
    package = kind.__module__.partition(".")[0]
    # transformers_modules: code that came with the weights.
    if package in ("__main__", "transformers_modules") or "<locals>" in kind.__qualname__:
        return None
    return package if getattr(sys.modules.get(package), kind.__name__, None) is kind else kind.__module__
