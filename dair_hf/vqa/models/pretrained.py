"""Pretrained vision-language models and their processors, from the Hub or a folder, optionally with LoRA."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from peft import TaskType
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoModelForVisualQuestionAnswering,
    AutoProcessor,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.image_processing_base import ImageProcessingMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.models.auto.video_processing_auto import get_video_processor_config
from transformers.processing_utils import ProcessorMixin
from transformers.utils import PushToHubMixin, is_torchvision_available, logging

from dair_hf.errors import DataError, explained
from dair_hf.metrics.vqa.answers import normalize_answer
from dair_hf.modeling import ModelConfig, add_adapters, load_pretrained, require_all_weights

PIXELS, GRID, INPUT_IDS = "pixel_values", "image_grid_thw", "input_ids"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
logger = logging.get_logger(__name__)
# Sampling parameters of `generate`. transformers refuses to save a configuration that has them with `do_sample=False`.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
VIDEOS = "video_processor"
LOADERS = {"image_processor": AutoImageProcessor, "tokenizer": AutoTokenizer}


def one_row_per_image(batch: dict[str, Tensor], image_token_id: int | None = None) -> dict[str, Tensor]:
    """Return the batch with the patches or tiles of each image padded to a row."""
    if GRID in batch:
        patches = batch[PIXELS].split(batch[GRID].prod(-1).tolist())
        return batch | {PIXELS: pad_sequence(list(patches), batch_first=True)}
    pixels = batch.get(PIXELS)
    if image_token_id is None or pixels is None or len(pixels) == len(batch[INPUT_IDS]):
        return batch
    tokens = (batch[INPUT_IDS] == image_token_id).sum(1)
    tiles = tokens * len(pixels) // tokens.sum().clamp(min=1)
    if int(tiles.sum()) != len(pixels) or (tokens * len(pixels) != tiles * tokens.sum()).any():
        raise DataError(  # tiles would be assigned to the wrong images
            f"expected equal numbers of image tokens for {len(pixels)} tiles, got {tokens.tolist()} for the images"
        )
    return batch | {PIXELS: pad_sequence(list(pixels.split(tiles.tolist())), batch_first=True, padding_value=torch.nan)}


def take_padded_patches(model: Any) -> None:
    """Make a model of transformers accept the layouts of `one_row_per_image` besides its own, with the same outputs.

    A hook on its vision tower, the first module whose `forward` takes a `grid_thw` or whose name is `vision_tower`,
    removes the padding.
    """
    # Not on the whole model: `generate` computes image features separately, and adapters call the `forward` of the
    # model directly, which skips hooks.
    for name, module in model.named_modules():
        takes_patches = "grid_thw" in inspect.signature(type(module).forward).parameters
        if takes_patches or name.rpartition(".")[2] == "vision_tower":
            hook = _without_padded_patches if takes_patches else _without_padded_tiles
            module.register_forward_pre_hook(hook, with_kwargs=True)
            return


def _without_padded_patches(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    pixels, others = _pixels_of(args, kwargs)
    if pixels.ndim == 3:
        is_patch = torch.arange(pixels.shape[1], device=pixels.device) < kwargs["grid_thw"].prod(-1)[:, None]
        pixels = pixels[is_patch]
    return (pixels, *args[1:]), others


def _without_padded_tiles(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    pixels, others = _pixels_of(args, kwargs)
    if pixels.ndim == 5:
        pixels = pixels[~pixels[:, :, 0, 0, 0].isnan()]
    return (pixels, *args[1:]), others


def _pixels_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    others = {name: value for name, value in kwargs.items() if name != PIXELS}
    return args[0] if args else kwargs[PIXELS], others


def load_processor(config: ModelConfig) -> Any:
    """Load the processor of a model: its image processor and its tokenizer, with a padding token.

    The video processor of models that also take videos (Qwen2-VL, InternVL) needs torchvision. Without torchvision only
    its settings are loaded: the processor has the published class and handles images and text as with torchvision,
    except for the arithmetic of resizing.

    Args:
        config: Names the model.

    Returns:
        The processor. If its tokenizer has no padding token, the end token is used.

    Raises:
        DataError: No model is found, or a required package is not installed.
    """
    name, setting, trusts = _names(config)
    with explained(setting, Exception):  # of any type, if a file is damaged
        published = None if is_torchvision_available() else _processor_class(config)
        if published is not None and set(published.get_attributes()) == {*LOADERS, VIDEOS}:
            processor = _images_only_processor(config, published)
        else:
            processor = load_pretrained(AutoProcessor, name, setting, trusts, revision=config.model_revision)
        if processor.tokenizer.pad_token is None:
            processor.tokenizer.pad_token = processor.tokenizer.eos_token
    return processor


def load_classifier(config: ModelConfig, answers: Sequence[str], seed: int = 0) -> Any:
    """Load a model that chooses among fixed answers, such as ViLT.

    The output layer gets one row per answer. Answers that the checkpoint was trained on (its `id2label`,
    compared after normalization if necessary) keep their row, others get a random one. With LoRA the whole head is
    trained together with the adapters.

    Args:
        config: Names the model and its adapters.
        answers: Distinct answers of the vocabulary, in the order of the ids.
        seed: Seed of the new rows and the adapters.

    Returns:
        The model, with the answers as `config.id2label`.

    Raises:
        DataError: No model is found, or it has no scores for fixed answers.
    """
    torch.manual_seed(seed)
    model, report = _load_model(AutoModelForVisualQuestionAnswering, config)
    head = [name for name, _ in model.named_children() if name != model.base_model_prefix]
    require_all_weights(model, report, _names(config)[1], head)
    _replace_output_layer(model, head, answers)
    return add_adapters(model, config, None, head) if config.use_peft else model


def load_generator(config: ModelConfig, processor: Any, seed: int = 0) -> Any:
    """Load a model that generates its answer: LLaVA, PaliGemma, Gemma 3, Qwen-VL, InternVL, ...

    Generation is greedy, regardless of the checkpoint's settings, so that two views never differ by chance. It also
    stops at the end token of the tokenizer, with which targets end.

    Args:
        config: Names the model and its adapters.
        processor: Processor from `load_processor`.
        seed: Seed of the adapters.

    Returns:
        An encoder-decoder or a decoder-only model.

    Raises:
        DataError: No model is found, or it is of another kind.
    """
    torch.manual_seed(seed)
    model, report = _load_model(AutoModelForImageTextToText, config)
    setting = _names(config)[1]
    if getattr(type(model), "generate", None) is not GenerationMixin.generate:  # other prompts and outputs, as in BLIP
        raise DataError(f"{setting}: expected a model with the `generate` of transformers, got {type(model).__name__}")
    require_all_weights(model, report, setting)
    _make_greedy(model, processor.tokenizer)
    take_padded_patches(model)
    if not config.use_peft:
        return model
    task = TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM
    return add_adapters(model, config, task)


def _names(config: ModelConfig) -> tuple[str, str, bool]:
    """Return the name of a model, the name of its setting for messages, and whether its code may run."""
    return str(config.model_name_or_path), f"model_name_or_path={config.model_name_or_path!r}", config.trust_remote_code


def _load_model(kind: Any, config: ModelConfig) -> Any:
    """Return the model and the report of its loading."""
    name, setting, trusts = _names(config)
    options: dict[str, Any] = {"use_safetensors": True, "output_loading_info": True}
    return load_pretrained(kind, name, setting, trusts, **config.model_init_kwargs, **options)


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
        raise DataError(f"expected a model with scores for fixed answers, such as ViLT, got {type(model).__name__}")
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


class _UnusedVideoProcessor(PushToHubMixin):
    """Settings of a video processor, which its processor reads and saves; it cannot process videos."""

    _auto_class = None
    model_input_names: tuple[str, ...] = ()

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "settings":  # looked up when copying and unpickling
            raise AttributeError(name)
        return self.settings.get(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the published settings."""
        return dict(self.settings)


def _images_only_processor(config: ModelConfig, published: Any) -> Any:
    """Load a processor of a published class without its video processor, which needs torchvision."""

    class ImagesOnly(published):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            # Without torchvision, transformers has no class to check a video processor against.
            return None if argument_name == VIDEOS else super().check_argument_for_proper_class(argument_name, argument)

    name, setting, trusts = _names(config)
    parts = [
        _UnusedVideoProcessor(get_video_processor_config(name, revision=config.model_revision))
        if part == VIDEOS
        else load_pretrained(LOADERS[part], name, setting, trusts, revision=config.model_revision)
        for part in published.get_attributes()
    ]
    settings, options = published.get_processor_dict(name, revision=config.model_revision)
    processor = ImagesOnly.from_args_and_dict(parts, settings, **options)
    processor.__class__ = published  # the check is done; saving and pickling need the published class
    return processor


def _processor_class(config: ModelConfig) -> Any:
    """Return the class that the processor files name, or else the one of the model configuration, or None."""
    name, setting, trusts = _names(config)
    for read in (ProcessorMixin.get_processor_dict, ImageProcessingMixin.get_image_processor_dict):
        try:
            published = read(name, revision=config.model_revision)[0].get("processor_class")
        except OSError:
            continue
        if published is not None:
            return processor_class_from_name(published)
    settings = load_pretrained(AutoConfig, name, setting, trusts, revision=config.model_revision)
    return PROCESSOR_MAPPING.get(type(settings), None)
