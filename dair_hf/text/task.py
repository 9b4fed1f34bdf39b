"""Classification of counterfactual pairs as a task: settings, rows, models by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from dair_hf.data.few_pairs import check_share
from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_classes
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.modeling import ModelConfig, load_tokenizer
from dair_hf.text.counterfactual import NLI_LABELS, REVISIONS, SENTIMENT_LABELS, SPLITS, read_nli, read_sentiment
from dair_hf.text.encoding import TextEncoder, tokenizer_of_texts
from dair_hf.text.models import BagOfWordsConfig, BiLSTMConfig, EmbeddingsConfig

PRETRAINED, TRANSFORMER = "pretrained", "transformer"
# Value of `model_kind` -> settings of a model from scratch; `model_settings` takes precedence.
SCRATCH: Mapping[str, Mapping[str, Any]] = {
    "bag_of_words": {"model_type": BagOfWordsConfig.model_type},
    "embeddings": {"model_type": EmbeddingsConfig.model_type, "dropout": 0.5},
    "bilstm": {"model_type": BiLSTMConfig.model_type},
    TRANSFORMER: {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128,
    },
}  # fmt: skip
MODEL_KINDS = (*SCRATCH, PRETRAINED)


class TextTask(NamedTuple):
    """Texts and classes of a task."""

    title: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


TASKS = {
    "sentiment": TextTask("counterfactual reviews", ("text",), SENTIMENT_LABELS),
    "nli": TextTask("counterfactual inference", ("premise", "hypothesis"), NLI_LABELS),
}


@dataclass
class TextConfig:
    """Data and model of a classification of counterfactual pairs."""

    PATH_FIELDS: ClassVar = ("cad",)  # not compared between runs: the data have a fingerprint

    cad: str | None = field(
        default=None,
        metadata={
            "help": "Counterfactually augmented data: a clone of acmi-lab/counterfactually-augmented-data, or a folder "
            "or archive of its tsv files."
        },
    )
    task: str = field(
        default="sentiment",
        metadata={"help": "sentiment (movie reviews) or nli (natural language inference).", "choices": tuple(TASKS)},
    )
    revisions: str = field(
        default="both",
        metadata={
            "help": "Revisions that are partners in nli: of the premise, of the hypothesis, or both. Each original has "
            "one row per revision, so two rows, or four with both.",
            "choices": tuple(REVISIONS),
        },
    )
    pair_share: float = field(
        default=1.0,
        metadata={
            "help": "Share of the training rows that keep their partner, in (0, 1]; the others are trained on without "
            "one. The choice depends on the seed only."
        },
    )
    model_kind: str = field(
        default="bag_of_words",
        metadata={
            "help": "bag_of_words (logistic regression), embeddings (their mean, and a hidden layer), bilstm, "
            "transformer (a small BERT), all from scratch with sizes in model_settings; or pretrained: any "
            "AutoModelForSequenceClassification, named by model_name_or_path.",
            "choices": MODEL_KINDS,
        },
    )
    min_count: int = field(
        default=2,
        metadata={
            "help": "Minimum count, >= 1, of a known word in the training texts and the revisions that are kept; rarer "
            "words are unknown. All methods share the vocabulary."
        },
    )
    max_tokens: int = field(
        default=400, metadata={"help": "Maximum tokens of a row, >= 8; the end of its longer text is cut off."}
    )

    def __post_init__(self) -> None:
        for name, choices in (("task", tuple(TASKS)), ("revisions", tuple(REVISIONS)), ("model_kind", MODEL_KINDS)):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        check_share("pair_share", self.pair_share)
        for name, lowest in (("min_count", 1), ("max_tokens", 8)):
            if getattr(self, name) < lowest:
                raise DataError(f"{name}={getattr(self, name)}; it must be at least {lowest}")
        if self.task == "sentiment" and self.revisions != "both":
            raise DataError(f"revisions={self.revisions!r} is for task=nli; a review has one revision, leave it out")

    @property
    def title(self) -> str:
        """Name of the data."""
        return TASKS[self.task].title

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of texts."""
        return TASKS[self.task].texts

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names, in the order of the class numbers."""
        return TASKS[self.task].labels

    def complete(self, model: ModelConfig) -> ModelConfig:
        """Return the settings of the model of this kind."""
        if (self.model_kind == PRETRAINED) != bool(model.model_name_or_path):
            raise DataError(
                f"model_kind={self.model_kind} and model_name_or_path={model.model_name_or_path!r} cannot be combined; "
                "give both model_kind=pretrained and a model, or neither"
            )
        if self.model_kind == PRETRAINED:
            return model
        size: dict[str, Any] = {"segments": len(self.texts)}
        if self.model_kind == TRANSFORMER:
            size = {"max_position_embeddings": self.max_tokens}
        return replace(model, model_settings={**SCRATCH[self.model_kind], **size, **(model.model_settings or {})})


def load_rows(config: TextConfig) -> dict[str, Dataset]:
    """Read all splits."""
    if config.cad is None:
        raise DataError("cad is not set; give --cad a clone of acmi-lab/counterfactually-augmented-data, or its files")
    if config.task == "sentiment":
        return {split: read_sentiment(config.cad, split) for split in SPLITS}
    return {split: read_nli(config.cad, split, config.revisions) for split in SPLITS}


def tokenizer_for(train: Dataset, config: TextConfig, model: ModelConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a pretrained model, or one of the words of the training rows.

    Raises:
        DataError: The tokenizer is not found, or its model takes fewer tokens than `max_tokens`.
    """
    if model.model_name_or_path is not None:
        tokenizer = load_tokenizer(model)
        if config.max_tokens > tokenizer.model_max_length:
            raise DataError(
                f"max_tokens={config.max_tokens}: {model.model_name_or_path} takes {tokenizer.model_max_length} "
                "tokens; lower it"
            )
        return tokenizer
    delimiters = config.model_kind == TRANSFORMER
    return tokenizer_of_texts(train, config.texts, config.min_count, config.max_tokens, delimiters)


def encode_rows(rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: TextConfig) -> Dataset:
    """Tokenize both views of paired rows."""
    return rows.map(TextEncoder(tokenizer, config.texts, config.max_tokens), batched=True, desc="Tokenizing")


def text_evaluator() -> PairEvaluator:
    """Return the evaluator of paired rows; the units of its intervals are originals, with all their revisions."""
    return PairEvaluator(same_classes, clusters="original_id")
