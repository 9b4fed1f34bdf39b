"""Pretrained vision-language models and their processors, from the Hub or a folder, optionally with LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import TaskType
from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    AutoModelForVisualQuestionAnswering,
    AutoProcessor,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.utils import is_torchvision_available, logging

from dair_hf.errors import DataError, explained
from dair_hf.metrics.vqa.answers import normalize_answer
from dair_hf.modeling import ModelConfig, add_adapters, load_pretrained, require_all_weights
from dair_hf.vqa.models.images_only import images_only_processor, takes_videos
from dair_hf.vqa.models.patches import take_padded_patches

logger = logging.get_logger(__name__)

# Sampling parameters of `generate`. transformers refuses to save a configuration that has them with `do_sample=False`.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")


def load_processor(config: ModelConfig) -> Any:
    """Load the processor of a model: its image processor and its tokenizer, with a padding token.

    The video processor of models that also take videos (Qwen2-VL, Qwen2.5-VL, InternVL, LLaVA-OneVision, SmolVLM) needs
    torchvision. Without torchvision it is replaced: see `images_only.images_only_processor`.

    Args:
        config: Names the model.

    Returns:
        The processor. If its tokenizer has no padding token, the end token is used.

    Raises:
        DataError: No model is named or found, the processor does not take both images and text, or a required package
            is not installed.
    """
    setting = f"model_name_or_path={config.model_name_or_path!r}"
    with explained(setting, Exception):
        processor = _load_processor(_name(config), setting, config.trust_remote_code)
    if not (hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")):
        raise DataError(
            f"{setting} has a {type(processor).__name__}, which does not take images and text together; name a "
            "vision-language model"
        )
    if processor.tokenizer.pad_token is None:
        processor.tokenizer.pad_token = processor.tokenizer.eos_token
    return processor


def _load_processor(name: str, setting: str, trust_remote_code: bool) -> Any:
    try:
        return load_pretrained(AutoProcessor, name, setting, trust_remote_code)
    except DataError as error:  # which of them depends on the files of the video processor
        is_candidate = isinstance(error.__cause__, (ImportError, ValueError)) and not is_torchvision_available()
        if not is_candidate or not takes_videos(name, trust_remote_code):
            raise
    return images_only_processor(name, trust_remote_code)


def load_classifier(config: ModelConfig, answers: Sequence[str], seed: int = 0) -> Any:
    """Load a model that chooses among fixed answers, such as ViLT.

    The output layer gets one row per answer. Answers that the checkpoint was trained on (those of its `id2label`,
    compared after normalization if necessary) keep their row, others get a random one. With LoRA the whole head is
    trained beside the adapters.

    Args:
        config: Names the model and its adapters.
        answers: Answer vocabulary, in the order of the ids.
        seed: Seed of the new rows and the adapters.

    Returns:
        The model, with the answers as `config.id2label`.

    Raises:
        DataError: No model is named or found, it is of another kind, or an answer is repeated.
    """
    if len(set(answers)) != len(answers):
        repeated = next(answer for index, answer in enumerate(answers) if answer in answers[:index])
        raise DataError(f"answer {repeated!r} is listed twice; each answer must have one id")
    torch.manual_seed(seed)
    model, report = _load_model(AutoModelForVisualQuestionAnswering, config)
    if model.can_generate():
        raise DataError(
            f"model_name_or_path={config.model_name_or_path!r}: {type(model).__name__} generates its answers and has "
            "no scores for fixed ones; name a model such as ViLT, or use load_generator"
        )
    head = [name for name, _ in model.named_children() if name != model.base_model_prefix]
    require_all_weights(model, report, f"model_name_or_path={config.model_name_or_path!r}", head)
    _replace_output_layer(model, head, answers)
    return add_adapters(model, config, None, head) if config.lora_rank else model


def load_generator(config: ModelConfig, processor: Any, seed: int = 0) -> Any:
    """Load a model that generates its answer: LLaVA, Idefics3, PaliGemma, Gemma 3, Qwen-VL, InternVL, ...

    Generation is greedy whatever the checkpoint's settings, so that two views never differ by chance. It also stops at
    the end token of the tokenizer, with which targets end.

    Args:
        config: Names the model and its adapters.
        processor: Processor from `load_processor`.
        seed: Seed of the adapters.

    Returns:
        An encoder-decoder or a decoder-only model.

    Raises:
        DataError: No model is named or found, or it is of another kind.
    """
    torch.manual_seed(seed)
    model, report = _load_model(AutoModelForImageTextToText, config)
    if getattr(type(model), "generate", None) is not GenerationMixin.generate:
        raise DataError(
            f"model_name_or_path={config.model_name_or_path!r}: {type(model).__name__} has its own `generate` with "
            "another layout of prompts and outputs; name a model such as LLaVA, Idefics3, PaliGemma or Qwen-VL"
        )
    require_all_weights(model, report, f"model_name_or_path={config.model_name_or_path!r}")
    _make_greedy(model, processor.tokenizer)
    take_padded_patches(model)
    if not config.lora_rank:
        return model
    task = TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM
    return add_adapters(model, config, task)


def _make_greedy(model: PreTrainedModel, tokenizer: Any) -> None:
    generation = model.generation_config
    generation.do_sample = False
    for name in SAMPLING:
        if hasattr(generation, name):
            setattr(generation, name, None)
    ends = generation.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    all_ends = [token for token in dict.fromkeys([*ends, tokenizer.eos_token_id]) if token is not None]
    generation.eos_token_id = all_ends or None
    generation.pad_token_id = tokenizer.pad_token_id


def _load_model(kind: Any, config: ModelConfig) -> tuple[Any, dict[str, Any]]:
    model, report = load_pretrained(
        kind,
        _name(config),
        f"model_name_or_path={config.model_name_or_path!r}",
        config.trust_remote_code,
        use_safetensors=True,
        attn_implementation=config.attn_implementation,
        output_loading_info=True,
    )
    return model, report


def _name(config: ModelConfig) -> str:
    if config.model_name_or_path is None:
        raise DataError("model_name_or_path is not set; name a model with a processor, on the Hub or in a folder")
    return config.model_name_or_path


def _replace_output_layer(model: PreTrainedModel, head: Sequence[str], answers: Sequence[str]) -> None:
    """Replace the output layer by one with a row per answer, and copy the rows of known answers."""
    old_rows = {text: row for row, text in model.config.id2label.items()}
    old_count = model.config.num_labels
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.split(".")[0] in head and module.out_features == old_count
    ]
    if not layers:
        raise DataError(
            f"{type(model).__name__} has no linear layer after its base model that scores its {old_count} answers; "
            "name a model such as ViLT"
        )
    name, old = layers[-1]
    new = nn.Linear(old.in_features, len(answers), device=old.weight.device, dtype=old.weight.dtype)
    new.weight.data.normal_(std=getattr(model.config, "initializer_range", 0.02))
    new.bias.data.zero_()
    normalized = {normalize_answer(text): row for text, row in reversed(old_rows.items())}
    matches = [old_rows.get(answer, normalized.get(normalize_answer(answer))) for answer in answers]
    pairs = [(row, old_row) for row, old_row in enumerate(matches) if old_row is not None]
    if pairs:
        to, of = torch.tensor(pairs, device=old.weight.device).T
        new.weight.data[to], new.bias.data[to] = old.weight.data[of], old.bias.data[of]
    logger.info(f"{len(pairs)} of {len(answers)} answers are known to the checkpoint; the others are initialized")
    model.set_submodule(name, new)
    model.config.id2label = dict(enumerate(answers))
    model.config.label2id = {answer: row for row, answer in enumerate(answers)}
    model.num_labels = len(answers)
