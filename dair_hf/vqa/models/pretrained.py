"""Current vision-language models and their processors, from the Hub or a folder, with or without LoRA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    AutoModelForVisualQuestionAnswering,
    AutoProcessor,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import is_torchvision_available, logging

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.answers import normalize_answer
from dair_hf.modeling import ModelConfig
from dair_hf.vqa.inputs.patches import take_padded_patches
from dair_hf.vqa.models.images_only import images_only_processor, takes_videos

logger = logging.get_logger(__name__)

# What the library raises for files that are absent, of another kind or damaged.
UNUSABLE = (OSError, ValueError, ImportError, AttributeError, TypeError, KeyError, StrictDataclassError)
# What shapes the sampling of `generate`; beside `do_sample=False` the library refuses to save a configuration with it.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")


def load_processor(config: ModelConfig) -> Any:
    """The processor of a model: its image processor and its tokenizer, with a padding token.

    A model that also takes videos (Qwen2-VL, Qwen2.5-VL, InternVL, LLaVA-OneVision, SmolVLM) has a part for them, which
    needs torchvision. Where that is not installed the part is left out: `images_only.images_only_processor`.

    Args:
        config: Names the model.

    Returns:
        The processor; where its tokenizer has no padding token, the end token pads.

    Raises:
        DataError: No model is named, nothing is found by that name, what is found handles only text or only images, or
            a package that it needs is not installed.
    """
    processor = _stored(_load_processor, config)
    if not (hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")):
        raise DataError(
            f"model_name_or_path={config.model_name_or_path!r} has a {type(processor).__name__}, which does not take "
            "images and text together; name a vision-language model"
        )
    if processor.tokenizer.pad_token is None:
        processor.tokenizer.pad_token = processor.tokenizer.eos_token
    return processor


def _load_processor(name: str, trust_remote_code: bool) -> Any:
    try:
        return AutoProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (ImportError, ValueError):  # without torchvision, as the files of the part for videos lead the library
        if is_torchvision_available() or not takes_videos(name, trust_remote_code):
            raise
    return images_only_processor(name, trust_remote_code)


def load_classifier(config: ModelConfig, answers: Sequence[str], seed: int = 0) -> Any:
    """A model that chooses among fixed answers, such as ViLT.

    The output layer gets one row for each of `answers`: that of the checkpoint for the answers it was trained on (those
    of its `id2label`, else the same once normalised as in the official evaluation), a newly drawn one for all others.
    With adapters, the whole head is trained beside them.

    Args:
        config: Which model, and its adapters.
        answers: The answer vocabulary, in the order of the ids.
        seed: Seed of the new rows and of the adapters.

    Returns:
        The model; its `config.id2label` are the answers.

    Raises:
        DataError: No model is named, none is found, it is of another kind, or an answer is listed twice.
    """
    if len(set(answers)) != len(answers):
        twice = next(answer for place, answer in enumerate(answers) if answer in answers[:place])
        raise DataError(f"answer {twice!r} is listed twice; each answer has one id")
    torch.manual_seed(seed)
    model = _stored(AutoModelForVisualQuestionAnswering.from_pretrained, config, use_safetensors=True)
    if model.can_generate():
        raise DataError(
            f"model_name_or_path={config.model_name_or_path!r}: {type(model).__name__} writes its answers and has no "
            "scores for fixed ones; name a model such as ViLT, or one for load_generator"
        )
    head = [name for name, _ in model.named_children() if name != model.base_model_prefix]
    _choose_among(model, head, answers)
    return _adapted(model, config, None, head) if config.lora_rank else model


def load_generator(config: ModelConfig, processor: Any, seed: int = 0) -> Any:
    """A vision-language model that writes its answer: LLaVA, Idefics3, PaliGemma, Gemma 3, Qwen-VL, InternVL, ...

    It writes the most probable token at each step, whatever sampling the checkpoint prefers: two views must not differ
    by chance. It stops at the tokenizer's end token, with which targets end, besides its own.

    Args:
        config: Which model, and its adapters.
        processor: Of `load_processor`.
        seed: Seed of the adapters.

    Returns:
        An encoder-decoder or a decoder-only model.

    Raises:
        DataError: No model is named, none is found, or it is of another kind.
    """
    torch.manual_seed(seed)
    model = _stored(AutoModelForImageTextToText.from_pretrained, config, use_safetensors=True)
    if getattr(type(model), "generate", None) is not GenerationMixin.generate:
        raise DataError(
            f"model_name_or_path={config.model_name_or_path!r}: {type(model).__name__} does not write with the "
            "library's own `generate`, and lays prompts and outputs out differently; name a model such as LLaVA, "
            "Idefics3, PaliGemma or Qwen-VL"
        )
    _write_plainly(model, processor.tokenizer)
    take_padded_patches(model)
    if not config.lora_rank:
        return model
    return _adapted(model, config, TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM)


def _write_plainly(model: PreTrainedModel, tokenizer: Any) -> None:
    generation = model.generation_config
    generation.do_sample = False
    for name in SAMPLING:
        if hasattr(generation, name):
            setattr(generation, name, None)
    ends = generation.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    known = [token for token in dict.fromkeys([*ends, tokenizer.eos_token_id]) if token is not None]
    generation.eos_token_id = known or None
    generation.pad_token_id = tokenizer.pad_token_id


def _stored(load: Callable[..., Any], config: ModelConfig, **options: Any) -> Any:
    name = config.model_name_or_path
    if name is None:
        raise DataError("model_name_or_path is not set; a model with a processor comes from the Hub or from a folder")
    try:
        return load(name, trust_remote_code=config.trust_remote_code, **options)
    except UNUSABLE as error:
        raise DataError(f"model_name_or_path={name!r}: {' '.join(str(error).split())[:400]}") from error


def _choose_among(model: PreTrainedModel, head: Sequence[str], answers: Sequence[str]) -> None:
    """Give the model an output layer with one row an answer, known rows kept."""
    known = {text: row for row, text in model.config.id2label.items()}
    scored = model.config.num_labels
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.split(".")[0] in head and module.out_features == scored
    ]
    if not layers:
        raise DataError(
            f"{type(model).__name__} has no linear layer behind its base model that scores its {scored} answers; name "
            "a model such as ViLT"
        )
    name, old = layers[-1]
    new = nn.Linear(old.in_features, len(answers), device=old.weight.device, dtype=old.weight.dtype)
    new.weight.data.normal_(std=getattr(model.config, "initializer_range", 0.02))
    new.bias.data.zero_()
    alike = {normalize_answer(text): row for text, row in reversed(known.items())}
    found = [known.get(answer, alike.get(normalize_answer(answer))) for answer in answers]
    pairs = [(row, old_row) for row, old_row in enumerate(found) if old_row is not None]
    if pairs:
        to, of = torch.tensor(pairs, device=old.weight.device).T
        new.weight.data[to], new.bias.data[to] = old.weight.data[of], old.bias.data[of]
    logger.info(f"{len(pairs)} of {len(answers)} answers are known to the checkpoint; the others start anew")
    model.set_submodule(name, new)
    model.config.id2label = dict(enumerate(answers))
    model.config.label2id = {answer: row for row, answer in enumerate(answers)}
    model.num_labels = len(answers)


def _adapted(model: PreTrainedModel, config: ModelConfig, task: TaskType | None, head: Sequence[str] = ()) -> Any:
    names = config.lora_targets
    adapters = LoraConfig(
        task_type=task,
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=names if names == "all-linear" else names.split(","),
        # A new head is trained as it is, without adapters.
        exclude_modules=rf"(.*\.)?({'|'.join(head)})(\..*)?" if head else None,
        modules_to_save=list(head) or None,
        # GPT-2 keeps its weights transposed.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        return get_peft_model(model, adapters)
    except ValueError as error:
        raise DataError(f"lora_targets={names!r}: {' '.join(str(error).split())[:400]}") from error
