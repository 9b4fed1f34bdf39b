"""Language models, text classifiers and tokenizers: from the Hub, a folder or from scratch, with or without LoRA."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.pytorch_utils import Conv1D

from dair_hf.errors import DataError, explained
from dair_hf.settings import Count, Settings, Share

# Generation settings that checkpoints set for their own task. BART's are meant for summaries: four beams and no
# repeated trigrams, but belief states repeat a lot.
DECODING = (
    "num_beams", "early_stopping", "length_penalty", "no_repeat_ngram_size", "repetition_penalty", "min_length",
    "min_new_tokens", "max_length", "max_new_tokens", "do_sample", "temperature", "top_p", "top_k",
)  # fmt: skip


@dataclass
class ModelConfig(Settings):
    """Language model to train, either pretrained (`model_name_or_path`) or from scratch (`model_settings`).

    Example:
        >>> ModelConfig(model_settings={"model_type": "t5", "d_model": 64}).model_name_or_path is None
        True
    """

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Model id on the Hub or local folder, safetensors only."}
    )
    model_settings: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "To train from scratch: `model_type` and any fields of that model's configuration. The tokenizer, "
            "built from the training texts, sets the vocabulary size."
        },
    )
    neighbour_attention: float = field(
        default=0.0,
        metadata={
            "help": "For T5 models from scratch: initial preference of some heads for the neighboring token, in "
            "attention logits; 0 keeps the default initialization (`_start_at_neighbours`)."
        },
    )
    model_revision: str = field(
        default="main", metadata={"help": "Version of the model and tokenizer on the Hub: a branch, tag or commit."}
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="float32",
        metadata={
            "help": "Type of the loaded weights; auto: as they are stored. To train all weights use float32, with bf16 "
            "for mixed precision; with adapters bfloat16 saves memory."
        },
    )
    load_in_4bit: bool = field(
        default=False,
        metadata={"help": "Quantize the loaded weights to 4 bits (NF4), to train adapters; needs bitsandbytes."},
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "Attention of the model, as in `from_pretrained`: sdpa, eager, flash_attention_2 or "
            "flex_attention. Default: the default of transformers."
        },
    )
    use_peft: bool = field(default=False, metadata={"help": "Train LoRA adapters instead of all weights."})
    lora_r: Count = field(default=16, metadata={"help": "Rank of the adapters, > 0."})
    lora_alpha: Count = field(
        default=32, metadata={"help": "Scale of the LoRA update, > 0 (update = alpha / rank * BA)."}
    )
    lora_dropout: Share = field(
        default=0.0, metadata={"help": "Dropout of the adapters' inputs, in [0, 1]; both views get different masks."}
    )
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"],
        metadata={"help": "Modules that get adapters: names, or all-linear."},
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={"help": "Run code from the model's repository on the Hub. Enable only after reading that code."},
    )

    def check(self) -> None:
        """Refuse two models."""
        if self.model_name_or_path and self.model_settings:
            raise DataError("model_name_or_path and model_settings: expected one of them, got both")

    @property
    def model_init_kwargs(self) -> dict[str, Any]:
        """Arguments of `from_pretrained` for the weights."""
        quantization = None
        if self.load_in_4bit:
            compute = None if self.dtype == "auto" else self.dtype
            quantization = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
            )
        return {
            "revision": self.model_revision,
            "dtype": self.dtype,
            "attn_implementation": self.attn_implementation,
            "quantization_config": quantization,
        }


def load_pretrained(
    kind: Any, name: str | os.PathLike[str], setting: str, trust_remote_code: bool = False, **options: Any
) -> Any:
    """Call `kind.from_pretrained` for a model, configuration, tokenizer or processor that the user names.

    Code of the model runs only with `trust_remote_code`. By default transformers would ask on standard input.
    `setting` names the model in messages.
    """
    with explained(setting, Exception):  # of any type, if a file is damaged
        return kind.from_pretrained(name, trust_remote_code=trust_remote_code, **options)


def load_tokenizer(config: ModelConfig) -> Any:
    """Load the tokenizer of a pretrained model; its end token pads if it has no padding token."""
    setting = f"model_name_or_path={str(config.model_name_or_path)!r}: its tokenizer"
    tokenizer = load_pretrained(
        AutoTokenizer, str(config.model_name_or_path), setting, config.trust_remote_code, revision=config.model_revision
    )
    # Without a file of the vocabulary, transformers builds a tokenizer for which every word is unknown.
    if not any(map(str.isalnum, "".join(tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)))):
        raise DataError(f"{setting}: expected a file with its vocabulary")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_named_model(
    name: str,
    setting: str | None = None,
    *,
    kind: Any = None,
    config: Any = None,
    new_modules: Collection[str] = (),
    **options: Any,
) -> Any:
    """Load a model with all its weights, except in `new_modules`, of class `kind` or its configuration's."""
    setting = setting or name
    if config is None:
        config = load_pretrained(AutoConfig, name, setting)
    if kind is None:
        with explained(f"{setting}: architectures in its config.json", AttributeError, TypeError, LookupError):
            kind = getattr(transformers, config.architectures[0])
    model, report = load_pretrained(
        kind, name, setting, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    require_all_weights(model, report, setting, new_modules)
    return model


def load_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> PreTrainedModel:
    """Load a pretrained model or initialize one from scratch, and add LoRA adapters if configured.

    The generation settings of the checkpoint are removed, so that it decodes greedily unless the training arguments
    say otherwise (`generation_num_beams`).

    Raises:
        DataError: Neither a name nor settings are given, the model is not found, or a setting is unknown or invalid.
    """
    torch.manual_seed(seed)
    if config.model_name_or_path is not None:
        setting = f"model_name_or_path={config.model_name_or_path!r}"
        settings = load_pretrained(
            AutoConfig, config.model_name_or_path, setting, config.trust_remote_code, revision=config.model_revision
        )
        model, report = _load(_class_for(settings), config, setting)
        require_all_weights(model, report, setting)
        for parameter in DECODING:
            setattr(model.generation_config, parameter, None)
    else:
        settings = _settings_of(config.model_settings, tokenizer)
        model = _build(_class_for(settings), config, settings)
        if config.neighbour_attention:
            _start_at_neighbours(model, config.neighbour_attention)
    if config.use_peft:
        task = TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM
        return add_adapters(model, config, task)
    return model


def load_text_classifier(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], seed: int = 0
) -> Any:
    """Load a pretrained text classifier with a new output layer, or initialize one from scratch.

    The output layer is new even if the checkpoint has as many classes, which may be in another order. With LoRA the
    whole head is trained together with the adapters.
    """
    torch.manual_seed(seed)
    classes = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: row for row, label in enumerate(labels)},
        "problem_type": "single_label_classification",  # the checkpoint may have another
    }
    if config.model_name_or_path is None:
        settings = _settings_of(config.model_settings, tokenizer, **classes)
        model, head = _build(AutoModelForSequenceClassification, config, settings), []
    else:
        setting = f"model_name_or_path={config.model_name_or_path!r}"
        model, report = _load(AutoModelForSequenceClassification, config, setting, **classes)
        outputs = output_layers(model, len(labels), setting)
        head = list(outputs)
        if hasattr(model, model.base_model_prefix or " "):
            parts = [part for part, module in model.named_children() if any(True for _ in module.parameters())]
            head = [part for part in parts if part != model.base_model_prefix]
        require_all_weights(model, report, setting, head)
        _renew_layers(model, outputs)
        if model.config.pad_token_id is None:
            model.config.pad_token_id = tokenizer.pad_token_id
    return add_adapters(model, config, TaskType.SEQ_CLS, head) if config.use_peft else model


def _load(kind: Any, config: ModelConfig, setting: str, **options: Any) -> tuple[Any, Mapping[str, Any]]:
    """Load a pretrained model, and the report on its weights (`require_all_weights`)."""
    model, report = load_pretrained(
        kind,
        str(config.model_name_or_path),
        setting,
        config.trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused by `require_all_weights`
        **config.model_init_kwargs,
        **options,
    )
    return model, report


def _build(kind: Any, config: ModelConfig, settings: Any) -> Any:
    """Initialize a model from scratch."""
    with explained(f"model_settings of {settings.model_type!r}", Exception):
        return kind.from_config(settings, attn_implementation=config.attn_implementation, trust_remote_code=False)


def output_layers(model: PreTrainedModel, num_labels: int, setting: str) -> dict[str, nn.Linear]:
    """Return name -> linear layer with one output per class, outside the base model of a classifier."""
    base = f"{model.base_model_prefix}."
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == num_labels and not name.startswith(base)
    }
    if not layers:  # the old head would stay
        raise DataError(f"{setting}: expected a linear output layer of {num_labels} classes in {type(model).__name__}")
    # DeiT has two output layers; a model without a base model may have hidden layers of that size.
    return layers if hasattr(model, model.base_model_prefix or " ") else dict(list(layers.items())[-1:])


def _renew_layers(model: PreTrainedModel, layers: Mapping[str, nn.Linear]) -> None:
    """Replace linear layers of a model by new ones, with the initialization of the model."""
    for name, old in layers.items():
        layer = nn.Linear(old.in_features, old.out_features, bias=old.bias is not None, dtype=old.weight.dtype)
        model._init_weights(layer)
        model.set_submodule(name, layer)


def add_adapters(
    model: PreTrainedModel, config: ModelConfig, task: TaskType | None, new_modules: Sequence[str] = ()
) -> Any:
    """Add LoRA adapters to a model; its new modules are trained as a whole."""
    setting, targets = f"lora_target_modules={config.lora_target_modules}", config.lora_target_modules
    if targets != ["all-linear"]:
        names = [f".{name}" for name, _ in model.named_modules() if not set(name.split(".")) & set(new_modules)]
        # peft leaves out a target that it does not find if it finds another one.
        if absent := [target for target in targets if not any(name.endswith(f".{target}") for name in names)]:
            found = f"no {', '.join(absent)} in {type(model).__name__}"
            raise DataError(f"{setting}: expected names of modules, got {found}")
    adapters = LoraConfig(
        task_type=task,
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets if targets != ["all-linear"] else "all-linear",
        exclude_modules=rf"(.*\.)?({'|'.join(new_modules)})(\..*)?" if new_modules else None,
        modules_to_save=list(new_modules) or None,
        # GPT-2 stores transposed weights.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with explained(setting, ValueError):
        return get_peft_model(model, adapters)


def require_all_weights(
    model: PreTrainedModel, report: Mapping[str, Any], setting: str, new_modules: Collection[str] = ()
) -> None:
    """Refuse a model whose checkpoint lacks weights, except of new modules; transformers would only warn.

    `report` is the second result of `from_pretrained(..., output_loading_info=True)`.
    """
    absent = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    prefixes = tuple(f"{name}." for name in new_modules)
    names = [name for name, _ in model.named_parameters() if name in absent and not name.startswith(prefixes)]
    if names:
        shown = ", ".join(names[:3])
        raise DataError(f"{setting}: expected all weights of {type(model).__name__}, {len(names)} are missing: {shown}")


def _start_at_neighbours(model: PreTrainedModel, strength: float = 4.0) -> int:
    """Add `strength` to the relative position biases of two heads per stack, in place.

    To copy a word letter by letter, a model must attend to the neighboring letter. T5's relative position biases start
    near 0 and move by about the learning rate per step, so a model trained from scratch needs a thousand steps before
    any head attends to a neighbor; with this initialization it needs none. In the encoder, head 0 prefers the previous
    token and head 1 the next one. In the decoder, head 0 prefers the previous token and head 1 the one before it. The
    biases are trained like all other weights.
    """
    changed = 0
    for name, module in model.named_modules():
        if not name.endswith("relative_attention_bias") or not isinstance(module, nn.Embedding):
            continue
        # In T5, bucket k is offset -k for small k; the encoder's upper half contains the positive offsets.
        second = 2 if ".decoder." in f".{name}" else len(module.weight) // 2 + 1
        with torch.no_grad():
            module.weight[1, 0] += strength
            module.weight[second, 1] += strength
        changed += 1
    if not changed:
        raise DataError(f"neighbour_attention: expected relative attention biases as in T5, got {type(model).__name__}")
    return changed


def _class_for(settings: Any) -> Any:
    return AutoModelForSeq2SeqLM if settings.is_encoder_decoder else AutoModelForCausalLM


def _settings_of(settings: dict[str, Any] | None, tokenizer: PreTrainedTokenizerBase, **fields: Any) -> Any:
    """Return the configuration of a model from scratch; `fields` and the tokenizer give its defaults."""
    kind = (settings or {}).get("model_type")
    with explained(f"model_settings: model_type={kind!r}", Exception):
        default_config = AutoConfig.for_model(kind)
    defaults = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
        **fields,
    }
    # Configurations accept any name, so a misspelled one would silently have no effect.
    if unknown := [name for name in settings or () if name not in defaults and not hasattr(default_config, name)]:
        raise DataError(f"model_settings: expected fields of {type(default_config).__name__}, got {', '.join(unknown)}")
    with explained(f"model_settings of {kind!r}", Exception):  # of any type, for values that do not fit together
        return AutoConfig.for_model(**{**defaults, **(settings or {})})
