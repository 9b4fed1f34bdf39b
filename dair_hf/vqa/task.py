"""VQA tasks for the trainer: SAAA, a pretrained classifier of answers, or a model that generates them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from datasets import Dataset, concatenate_datasets
from torch import nn
from transformers.utils import logging

from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.io.processes import rank_and_size
from dair_hf.modeling import ModelConfig
from dair_hf.vqa.answers import AnswerVocabulary, encode_answers
from dair_hf.vqa.correctness import AnswerJudge
from dair_hf.vqa.data import PARTS, VQAConfig, VQAData
from dair_hf.vqa.inputs.collator import ImageInputs, VQACollator
from dair_hf.vqa.inputs.features import FeatureCache
from dair_hf.vqa.inputs.pixels import Pixels
from dair_hf.vqa.inputs.processors import ClassifierCollator, GeneratorCollator
from dair_hf.vqa.inputs.questions import encode_questions
from dair_hf.vqa.models.backbone import load_backbone
from dair_hf.vqa.models.pretrained import load_classifier, load_generator, load_processor
from dair_hf.vqa.models.saaa import SAAA, SAAAConfig
from dair_hf.vqa.pairs import expand_edits
from dair_hf.word_tokenizer import build_word_tokenizer

logger = logging.get_logger(__name__)

NETWORKS = ("saaa", "classifier", "generator")
# Fields of SAAAConfig that can be set; the others follow from the data and the backbone.
SAAA_FIELDS = ("embedding_size", "question_size", "attention_size", "glimpses", "hidden_size", "dropout")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass
class NetworkConfig:
    """VQA model to train."""

    PATH_FIELDS: ClassVar = ("features_folder",)  # not compared between runs: it holds what is computed again

    network: str = field(
        default="saaa",
        metadata={
            "help": "saaa, classifier (a model such as ViLT with scores for fixed answers) or generator (a "
            "vision-language model that generates its answer); the last two are named by model_name_or_path.",
            "choices": NETWORKS,
        },
    )
    saaa: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": f"Sizes of SAAA that differ from the paper: any of {', '.join(SAAA_FIELDS)}."},
    )
    backbone: str | None = field(
        default=None,
        metadata={"help": "Vision model of SAAA: name on the Hub or folder. Optional with source=scenes."},
    )
    backbone_scenes: int = field(
        default=6000,
        metadata={
            "help": "With source=scenes and no backbone: number of scenes, >= 1, on which a small backbone is trained "
            "for three epochs."
        },
    )
    train_backbone: bool = field(
        default=False, metadata={"help": "Train the backbone of SAAA as well, instead of caching its features."}
    )
    image_size: int = field(default=448, metadata={"help": "Height and width of the images of SAAA, in pixels."})
    features_folder: str = field(default="features", metadata={"help": "Folder of the cached backbone features."})
    features_dtype: str = field(
        default="float32", metadata={"help": "Storage type of the features.", "choices": tuple(DTYPES)}
    )
    prompt: str = field(default="{question}", metadata={"help": "Prompt of a generator; contains {question}."})
    target: str = field(default="{answer}", metadata={"help": "Target of a generator; contains {answer}."})

    def __post_init__(self) -> None:
        for name, choices in (("network", NETWORKS), ("features_dtype", tuple(DTYPES))):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        if self.backbone_scenes < 1:
            raise DataError(f"backbone_scenes={self.backbone_scenes} must be at least 1")
        # SAAAConfig accepts any name, so a misspelled one would silently keep the default.
        if unknown := sorted(set(self.saaa) - set(SAAA_FIELDS)):
            raise DataError(f"saaa: unknown size {', '.join(unknown)}; use {', '.join(SAAA_FIELDS)}")
        for name, value in self.saaa.items():
            if type(value) is not int and not (name == "dropout" and type(value) is float):
                raise DataError(f"saaa: {name}={value!r} must be {'a number' if name == 'dropout' else 'an integer'}")
        SAAAConfig(**self.saaa)  # validates now, not after hours of computing features


class VQATask(NamedTuple):
    """Model, data and evaluation of a VQA experiment."""

    data: VQAData
    make_model: Callable[[int], Any]
    collator: Any
    sample_loss: str | None
    judge: AnswerJudge
    processing_class: Any
    unknown_answers: dict[str, int] = {}


def require_model(network: NetworkConfig, model: ModelConfig) -> None:
    """Check that a network has its model and no unused settings; call it before anything is read.

    Raises:
        DataError: The model is missing, or a setting would be ignored.

    Example:
        >>> require_model(NetworkConfig("classifier"), ModelConfig("dandelin/vilt-b32-finetuned-vqa", lora_rank=8))
    """
    if network.network == "saaa" and (model.model_name_or_path or model.model_settings or model.lora_rank):
        raise DataError(
            "network=saaa does not use model_name_or_path, model_settings and lora_rank; name its vision model by "
            "backbone, or set network to classifier or generator"
        )
    if network.network != "saaa" and not model.model_name_or_path:
        raise DataError(
            f"network={network.network} needs model_name_or_path: a model with its processor, on the Hub or in a folder"
        )


def prepare_task(
    network: NetworkConfig,
    model: ModelConfig,
    config: VQAConfig,
    data: VQAData,
    backbone: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> VQATask:
    """Build vocabulary, tokenizer and collator from the training rows, encode all rows, and cache image features.

    All processes of a run must call this function, since they split the computation of features.

    Args:
        network: Network to train.
        model: Name and adapters of a classifier or generator.
        config: Sizes of the vocabularies.
        data: Rows and edits.
        backbone: Backbone of SAAA; None loads `network.backbone`.
        device: Device that computes the features of a frozen backbone.

    Raises:
        DataError: A model is not named, not found or of the wrong kind, or an image cannot be read.
    """
    require_model(network, model)
    if network.network == "generator":
        return _generator(network, model, data)
    vocabulary = AnswerVocabulary.from_answers(data.train["answers"][:], config.answers)
    data = _map_parts(data, lambda rows: encode_answers(rows, vocabulary))
    unknown_answers = _count_unknown(data, len(vocabulary))
    if network.network == "classifier":
        task = _classifier(model, data, vocabulary)
    else:
        task = _saaa(network, config, data, vocabulary, backbone, device)
    return task._replace(unknown_answers=unknown_answers)


def _saaa(
    network: NetworkConfig,
    config: VQAConfig,
    data: VQAData,
    vocabulary: AnswerVocabulary,
    backbone: nn.Module | None,
    device: torch.device | str,
) -> VQATask:
    if backbone is None:
        if network.backbone is None:
            raise DataError("backbone is not set; name a vision model for SAAA, such as microsoft/resnet-152")
        backbone = load_backbone(network.backbone)
    tokenizer = build_word_tokenizer(data.train["question"][:], min_count=config.word_count)
    data = _map_parts(data, lambda rows: encode_questions(rows, tokenizer))
    images = _image_inputs(network, data, backbone.to(device))
    backbone_weights = backbone.state_dict()
    settings = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": vocabulary.id2label,
        **network.saaa,
    }
    if network.train_backbone:
        settings |= {"backbone_config": backbone.config, "freeze_backbone": False}
    else:
        settings["image_feature_size"] = int(images(data.train["image"][:1]).shape[1])

    def make_model(seed: int) -> SAAA:
        torch.manual_seed(seed)
        model = SAAA(SAAAConfig(**settings))
        if model.backbone is not None:
            model.backbone.load_state_dict(backbone_weights)
        return model

    collator = VQACollator(images, len(vocabulary), tokenizer.pad_token_id)
    return VQATask(data, make_model, collator, "soft_score", AnswerJudge(vocabulary), tokenizer)


def _classifier(model: ModelConfig, data: VQAData, vocabulary: AnswerVocabulary) -> VQATask:
    processor = load_processor(model)

    def make_model(seed: int = 0) -> Any:
        return load_classifier(model, vocabulary.spellings, seed)

    collator = ClassifierCollator.for_model(make_model(), processor)
    return VQATask(data, make_model, collator, "soft_score", AnswerJudge(vocabulary), processor)


def _generator(network: NetworkConfig, model: ModelConfig, data: VQAData) -> VQATask:
    processor = load_processor(model)

    def make_model(seed: int = 0) -> Any:
        return load_generator(model, processor, seed)

    collator = GeneratorCollator.for_model(make_model(), processor, prompt=network.prompt, target=network.target)
    return VQATask(data, make_model, collator, None, AnswerJudge(), processor)


def _image_inputs(network: NetworkConfig, data: VQAData, backbone: nn.Module) -> ImageInputs:
    pixels = Pixels(size=network.image_size)
    if network.train_backbone:
        return pixels
    cache = FeatureCache(os.fspath(network.features_folder), backbone, pixels, DTYPES[network.features_dtype])
    parts = [getattr(data, part) for part in PARTS] + ([data.familiar] if data.familiar else [])
    images = concatenate_datasets([part.select_columns(["image"]) for part in parts])
    cache.fill(images["image"][:])
    return cache


def _count_unknown(data: VQAData, size: int) -> dict[str, int]:
    """Count rows without an answer in the vocabulary by part, and warn of those that training loses."""
    counts = {part: sum(not ids for ids in getattr(data, part)["answer_ids"][:]) for part in PARTS}
    if (counts["train"] or counts["train_edits"]) and rank_and_size()[0] == 0:
        logger.warning(
            f"No answer in the vocabulary of {size}: {counts['train']} of {len(data.train)} training questions are not "
            f"trained on, and {counts['train_edits']} of {len(data.train_edits)} training edits are not used as "
            "partners. Raise `answers` to keep more of them."
        )
    return counts


def _map_parts(data: VQAData, encode: Callable[[Dataset], Dataset]) -> VQAData:
    parts = {part: encode(getattr(data, part)) for part in PARTS}
    return data._replace(**parts, familiar=None if data.familiar is None else encode(data.familiar))


def evaluate_edits(
    evaluate_pairs: Callable[..., dict[str, Any]], task: VQATask, predictions_file: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return CM and flips over all edits, and accuracy on test questions and on questions like the training ones."""
    judge, data = task.judge, task.data
    evaluator = PairEvaluator(
        judge.is_correct, judge.answers, {"vqa_accuracy": judge.accuracy}, references="answers", clusters="image_id"
    )
    pairs = expand_edits(data.test, data.test_edits)
    metrics = evaluate_pairs(pairs, evaluator, data_name=data.name, predictions_file=predictions_file)
    for name, rows in (("", data.test), ("familiar_", data.familiar)):
        if rows is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedMetricWarning)  # questions without edits have no CM
                single = evaluate_pairs(rows, evaluator, data_name=f"{data.name}, {name}questions")
            ends = ("", "_low", "_high")
            metrics |= {f"{name}vqa_accuracy{end}": single[f"original_vqa_accuracy{end}"] for end in ends}
    return metrics
