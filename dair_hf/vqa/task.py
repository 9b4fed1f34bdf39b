"""VQA tasks for the trainer: SAAA, a pretrained classifier of answers, or a model that generates them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from datasets import Dataset, concatenate_datasets
from torch import nn
from transformers.utils import logging

from dair_hf.errors import DataError, UndefinedMetricWarning
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.io.processes import rank_and_size
from dair_hf.modeling import ModelConfig
from dair_hf.settings import Count, Settings
from dair_hf.vqa.answers import AnswerJudge, AnswerVocabulary, encode_answers
from dair_hf.vqa.data import PARTS, VQAConfig, VQAData
from dair_hf.vqa.inputs.features import FeatureCache, Pixels
from dair_hf.vqa.inputs.processors import ClassifierCollator, GeneratorCollator, VQACollator, encode_questions
from dair_hf.vqa.models.backbone import load_backbone
from dair_hf.vqa.models.pretrained import load_classifier, load_generator, load_processor
from dair_hf.vqa.models.saaa import SAAA, SAAAConfig
from dair_hf.vqa.pairs import expand_edits
from dair_hf.word_tokenizer import build_word_tokenizer

logger = logging.get_logger(__name__)

# Fields of SAAAConfig that can be set; the others follow from the data and the backbone.
SAAA_FIELDS = ("embedding_size", "question_size", "attention_size", "glimpses", "hidden_size", "dropout")


@dataclass
class NetworkConfig(Settings):
    """VQA model to train."""

    PATH_FIELDS: ClassVar = ("features_folder",)  # not compared between runs: it holds what is computed again

    network: Literal["saaa", "classifier", "generator"] = field(
        default="saaa",
        metadata={
            "help": "saaa, classifier (a model such as ViLT with scores for fixed answers) or generator (a "
            "vision-language model that generates its answer); the last two are named by model_name_or_path."
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
    backbone_scenes: Count = field(
        default=6000,
        metadata={
            "help": "With source=scenes and no backbone: number of scenes, >= 1, on which a small backbone is trained "
            "for three epochs."
        },
    )
    image_size: Count = field(default=448, metadata={"help": "Height and width of the images of SAAA, in pixels."})
    features_folder: str = field(default="features", metadata={"help": "Folder of the cached backbone features."})
    features_dtype: Literal["float32", "float16", "bfloat16"] = field(
        default="float32", metadata={"help": "Storage type of the features."}
    )
    prompt: str = field(default="{question}", metadata={"help": "Prompt of a generator; contains {question}."})
    target: str = field(default="{answer}", metadata={"help": "Target of a generator; contains {answer}."})

    def check(self) -> None:
        """Refuse names and values of `saaa` that `SAAAConfig` ignores, or refuses only after features are computed."""
        if unknown := sorted(set(self.saaa) - set(SAAA_FIELDS)):
            raise DataError(f"saaa: expected sizes among {', '.join(SAAA_FIELDS)}, got {', '.join(unknown)}")
        SAAAConfig(**self.saaa)

    def check_model(self, model: ModelConfig) -> None:
        """Refuse a missing model, and settings that the network would ignore; call it before any data are read."""
        given = [name for name in ("model_name_or_path", "model_settings", "use_peft") if getattr(model, name)]
        if given if self.network == "saaa" else not model.model_name_or_path:
            expected = "backbone in place of a model" if self.network == "saaa" else "model_name_or_path"
            raise DataError(f"network={self.network}: expected {expected}, got {', '.join(given) or 'no model'}")


class VQATask(NamedTuple):
    """Model, data and evaluation of a VQA experiment."""

    data: VQAData
    make_model: Callable[[int], Any]
    collator: Any
    sample_loss: str | None
    judge: AnswerJudge
    processing_class: Any
    unknown_answers: dict[str, int] = {}


def prepare_task(
    network: NetworkConfig,
    model: ModelConfig,
    config: VQAConfig,
    data: VQAData,
    backbone: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> VQATask:
    """Build vocabulary, tokenizer and collator from the training rows, encode all rows, and cache image features.

    All processes of a run must call this function, since they split the computation of features on `device`. The
    backbone of SAAA is `backbone`, or the one that `network` names.

    Raises:
        DataError: A model is not named, not found or of the wrong kind, or an image cannot be read.
    """
    network.check_model(model)
    if network.network == "generator":
        return _pretrained(network, model, data, None)
    vocabulary = AnswerVocabulary.from_answers(data.train["answers"][:], config.answers)
    data = _map_parts(data, lambda rows: encode_answers(rows, vocabulary))
    unknown_answers = _count_unknown(data, len(vocabulary))
    if network.network == "classifier":
        task = _pretrained(network, model, data, vocabulary)
    else:
        task = _saaa(network, data, vocabulary, backbone, device)
    return task._replace(unknown_answers=unknown_answers)


def _saaa(
    network: NetworkConfig,
    data: VQAData,
    vocabulary: AnswerVocabulary,
    backbone: nn.Module | None,
    device: torch.device | str,
) -> VQATask:
    if backbone is None:
        if network.backbone is None:
            raise DataError("backbone: expected a vision model, such as microsoft/resnet-152, got none")
        backbone = load_backbone(network.backbone)
    tokenizer = build_word_tokenizer(data.train["question"][:], min_count=1)
    data = _map_parts(data, lambda rows: encode_questions(rows, tokenizer))
    images = _image_features(network, data, backbone.to(device))
    settings = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": vocabulary.id2label,
        "image_feature_size": int(images(data.train["image"][:1]).shape[1]),
        **network.saaa,
    }

    def make_model(seed: int) -> SAAA:
        torch.manual_seed(seed)
        return SAAA(SAAAConfig(**settings))

    collator = VQACollator(images, len(vocabulary), tokenizer.pad_token_id)
    return VQATask(data, make_model, collator, "soft_score", AnswerJudge(vocabulary), tokenizer)


def _pretrained(
    network: NetworkConfig, model: ModelConfig, data: VQAData, vocabulary: AnswerVocabulary | None
) -> VQATask:
    """Return the task of a generator, or of a classifier if there is a vocabulary."""
    processor = load_processor(model)

    def make_model(seed: int = 0) -> Any:
        if vocabulary is None:
            return load_generator(model, processor, seed)
        return load_classifier(model, vocabulary.spellings, seed)

    collator: Any
    if vocabulary is None:
        collator = GeneratorCollator.for_model(make_model(), processor, prompt=network.prompt, target=network.target)
    else:
        collator = ClassifierCollator.for_model(make_model(), processor)
    sample_loss = None if vocabulary is None else "soft_score"
    return VQATask(data, make_model, collator, sample_loss, AnswerJudge(vocabulary), processor)


def _image_features(network: NetworkConfig, data: VQAData, backbone: nn.Module) -> FeatureCache:
    pixels = Pixels(size=network.image_size)
    cache = FeatureCache(network.features_folder, backbone, pixels, getattr(torch, network.features_dtype))
    parts = [getattr(data, part) for part in PARTS] + ([data.familiar] if data.familiar else [])
    images = concatenate_datasets([part.select_columns(["image"]) for part in parts])
    cache.fill(images["image"][:])
    return cache


def _count_unknown(data: VQAData, size: int) -> dict[str, int]:
    """Count rows without an answer in the vocabulary by part, and warn if training loses any."""
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
