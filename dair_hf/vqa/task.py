"""What the trainer needs to know of a VQA model: SAAA, a classifier of answers, or a model that writes them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from dair_hf.vqa.data import VQAConfig, VQAData
from dair_hf.vqa.inputs.collator import ImageInputs, VQACollator
from dair_hf.vqa.inputs.features import FeatureCache
from dair_hf.vqa.inputs.pixels import Pixels
from dair_hf.vqa.inputs.processors import ClassifierCollator, GeneratorCollator
from dair_hf.vqa.inputs.questions import build_question_tokenizer, encode_questions
from dair_hf.vqa.models.backbone import load_backbone
from dair_hf.vqa.models.pretrained import load_classifier, load_generator, load_processor
from dair_hf.vqa.models.saaa import SAAA, SAAAConfig
from dair_hf.vqa.pairs import expand_edits

logger = logging.get_logger(__name__)

KINDS = ("saaa", "classifier", "generator")
# Of SAAAConfig; the others follow from the data and from the backbone.
SIZES = ("embedding_size", "question_size", "attention_size", "glimpses", "hidden_size", "dropout")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass
class NetworkConfig:
    """Which kind of VQA model is trained.

    Raises:
        DataError: An unknown kind or type, or sizes of SAAA that it does not know or refuses.

    Example:
        >>> NetworkConfig().network
        'saaa'
    """

    network: str = field(
        default="saaa",
        metadata={
            "help": "saaa; classifier (a model such as ViLT with scores for fixed answers) or generator (a "
            "vision-language model that writes its answer), both by model_name_or_path.",
            "choices": KINDS,
        },
    )
    saaa: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": f"Sizes of SAAA that differ from the paper's: any of {', '.join(SIZES)}."},
    )
    backbone: str | None = field(
        default=None,
        metadata={"help": "Vision model of SAAA: name on the Hub or folder. With source=scenes it may be left out."},
    )
    backbone_scenes: int = field(
        default=6000,
        metadata={
            "help": "With source=scenes and no backbone: scenes, >= 1, that a small one learns from for three epochs."
        },
    )
    train_backbone: bool = field(
        default=False, metadata={"help": "Train the backbone of SAAA too, from pixels; else its features are cached."}
    )
    image_size: int = field(default=448, metadata={"help": "Side to which images are resized for SAAA, pixels."})
    features_folder: str = field(default="features", metadata={"help": "Where features of the backbone are kept."})
    features_dtype: str = field(
        default="float32", metadata={"help": "Type they are kept in.", "choices": tuple(DTYPES)}
    )
    prompt: str = field(default="{question}", metadata={"help": "What a generator is asked; holds {question}."})
    target: str = field(default="{answer}", metadata={"help": "What a generator shall write; holds {answer}."})

    def __post_init__(self) -> None:
        for name, choices in (("network", KINDS), ("features_dtype", tuple(DTYPES))):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        if self.backbone_scenes < 1:
            raise DataError(f"backbone_scenes={self.backbone_scenes} must be at least 1")
        # A configuration takes any name, so that a misspelled one would silently leave the default in place.
        if unknown := sorted(set(self.saaa) - set(SIZES)):
            raise DataError(f"saaa: no size of that name: {', '.join(unknown)}; use {', '.join(SIZES)}")
        for name, value in self.saaa.items():
            if type(value) is not int and not (name == "dropout" and type(value) is float):
                raise DataError(f"saaa: {name}={value!r} must be a {'number' if name == 'dropout' else 'whole number'}")
        SAAAConfig(**self.saaa)  # refuses now what it would refuse after the hours in which features are computed


class VQATask(NamedTuple):
    """What is trained on which data.

    Attributes:
        data: Rows and edits with the columns that the collator reads.
        make_model: Seed -> a model to train.
        collator: Of single views.
        sample_loss: Name of the sample loss; None: it follows from the model.
        judge: Correctness, answers and accuracy of predictions.
        processing_class: Saved with the model: tokenizer or processor; that of a generator decodes its answers.
        unknown_answers: Part of the data (train, train_edits, test, test_edits) -> how many of its rows have no answer
            in the vocabulary. Such a question is not trained on, and such an edit is no partner.
    """

    data: VQAData
    make_model: Callable[[int], Any]
    collator: Any
    sample_loss: str | None
    judge: AnswerJudge
    processing_class: Any
    unknown_answers: dict[str, int] = {}


def require_model(network: NetworkConfig, model: ModelConfig) -> None:
    """Refuse, before anything is read, a network without its model or with settings that it would not look at.

    Raises:
        DataError: As said.

    Example:
        >>> require_model(NetworkConfig("classifier"), ModelConfig("dandelin/vilt-b32-finetuned-vqa", lora_rank=8))
    """
    if network.network == "saaa" and (model.model_name_or_path or model.model_settings or model.lora_rank):
        raise DataError(
            "network=saaa takes neither model_name_or_path, model_settings nor lora_rank; name its vision model by "
            "backbone, or set network to classifier or generator"
        )
    if network.network != "saaa" and not model.model_name_or_path:
        raise DataError(
            f"network={network.network} needs model_name_or_path: a model with its processor, from the Hub or a folder"
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

    The processes of a run share out the images whose features are computed: each must call this.

    Args:
        network: Which kind of model.
        model: Name and adapters of a classifier or generator.
        config: Sizes of the vocabularies.
        data: Rows and edits.
        backbone: The backbone of SAAA where it is no published one; None: `network.backbone` names it.
        device: Where the features of a frozen backbone are computed.

    Returns:
        The task.

    Raises:
        DataError: A model is not named, not found or not the network's, or an image cannot be read.
    """
    require_model(network, model)
    if network.network == "generator":
        return _generator(network, model, data)
    vocabulary = AnswerVocabulary.from_answers(data.train["answers"][:], config.answers)
    data = _mapped(data, lambda rows: encode_answers(rows, vocabulary))
    unknown = _unknown_answers(data, len(vocabulary))
    if network.network == "classifier":
        task = _classifier(model, data, vocabulary)
    else:
        task = _saaa(network, config, data, vocabulary, backbone, device)
    return task._replace(unknown_answers=unknown)


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
    tokenizer = build_question_tokenizer(data.train["question"][:], min_count=config.word_count)
    data = _mapped(data, lambda rows: encode_questions(rows, tokenizer))
    images = _images_of(network, data, backbone.to(device))
    start = backbone.state_dict()
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
            model.backbone.load_state_dict(start)
        return model

    collator = VQACollator(images, len(vocabulary), tokenizer.pad_token_id)
    return VQATask(data, make_model, collator, "soft_score", AnswerJudge(vocabulary), tokenizer)


def _classifier(model: ModelConfig, data: VQAData, vocabulary: AnswerVocabulary) -> VQATask:
    processor = load_processor(model)
    collator = ClassifierCollator.for_model(load_classifier(model, vocabulary.spellings), processor)

    def make_model(seed: int) -> Any:
        return load_classifier(model, vocabulary.spellings, seed)

    return VQATask(data, make_model, collator, "soft_score", AnswerJudge(vocabulary), processor)


def _generator(network: NetworkConfig, model: ModelConfig, data: VQAData) -> VQATask:
    processor = load_processor(model)
    collator = GeneratorCollator.for_model(
        load_generator(model, processor), processor, prompt=network.prompt, target=network.target
    )

    def make_model(seed: int) -> Any:
        return load_generator(model, processor, seed)

    return VQATask(data, make_model, collator, None, AnswerJudge(), processor)


def _images_of(network: NetworkConfig, data: VQAData, backbone: nn.Module) -> ImageInputs:
    if network.train_backbone:
        return Pixels(size=network.image_size)
    cache = FeatureCache(
        os.fspath(network.features_folder), backbone, Pixels(size=network.image_size), DTYPES[network.features_dtype]
    )
    parts = [data.train, data.train_edits, data.test, data.test_edits, *([data.familiar] if data.familiar else [])]
    images = concatenate_datasets([part.select_columns(["image"]) for part in parts])
    cache.fill(images["image"][:])
    return cache


def _unknown_answers(data: VQAData, size: int) -> dict[str, int]:
    """Rows without an answer in the vocabulary, by part of the data; warns of what training loses by it."""
    parts = ("train", "train_edits", "test", "test_edits")
    found = {name: sum(not ids for ids in getattr(data, name)["answer_ids"][:]) for name in parts}
    if (found["train"] or found["train_edits"]) and rank_and_size()[0] == 0:
        logger.warning(
            f"No answer in the vocabulary of {size}: {found['train']} of {len(data.train)} training questions, which "
            f"are not trained on, and {found['train_edits']} of {len(data.train_edits)} training edits, which are no "
            "partners. A larger `answers` keeps more of them."
        )
    return found


def _mapped(data: VQAData, encode: Callable[[Dataset], Dataset]) -> VQAData:
    return data._replace(
        train=encode(data.train),
        train_edits=encode(data.train_edits),
        test=encode(data.test),
        test_edits=encode(data.test_edits),
        familiar=None if data.familiar is None else encode(data.familiar),
    )


def evaluate_edits(
    evaluate_pairs: Callable[..., dict[str, Any]], task: VQATask, predictions_file: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return CM and flips over all edits, and accuracy on test questions and on questions like the training ones.

    Args:
        evaluate_pairs: Method of the trainer.
        task: Data and judge.
        predictions_file: JSON lines file to write.
    """
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
