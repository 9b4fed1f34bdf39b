"""Classification of counterfactual pairs as a task: settings, rows, models by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from dair_hf.data.view_columns import VIEW_PREFIXES
from dair_hf.errors import DataError
from dair_hf.modeling import ModelConfig, load_tokenizer
from dair_hf.settings import Count, Range, Settings
from dair_hf.text.counterfactual import NLI_LABELS, SENTIMENT_LABELS, SPLITS, read_nli, read_sentiment
from dair_hf.text.encoding import ClassifierEncoder, plain_text
from dair_hf.text.models import BagOfWordsConfig, BiLSTMConfig, EmbeddingsConfig
from dair_hf.word_tokenizer import build_word_tokenizer

PRETRAINED, TRANSFORMER = "pretrained", "transformer"
MAX_TOKENS = 400  # of a row, by default; longer rows lose the end of their longer text
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


class _TextTask(NamedTuple):
    """Texts and classes of a task."""

    title: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


TASKS = {
    "sentiment": _TextTask("counterfactual reviews", ("text",), SENTIMENT_LABELS),
    "nli": _TextTask("counterfactual inference", ("premise", "hypothesis"), NLI_LABELS),
}


@dataclass
class TextConfig(Settings):
    """Data and model of a classification of counterfactual pairs."""

    PATH_FIELDS: ClassVar = ("cad",)  # not compared between runs: the data have a fingerprint

    cad: str = field(
        metadata={
            "help": "Counterfactually augmented data: a clone of acmi-lab/counterfactually-augmented-data, or a folder "
            "or archive of its tsv files."
        },
    )
    task: Literal["sentiment", "nli"] = field(
        default="sentiment", metadata={"help": "sentiment (movie reviews) or nli (natural language inference)."}
    )
    revisions: Literal["both", "premise", "hypothesis"] = field(
        default="both",
        metadata={
            "help": "Revisions that are partners in nli: of the premise, of the hypothesis, or both. Each original has "
            "one row per revision, so two rows, or four with both. A review has one revision."
        },
    )
    pair_share: Annotated[float, Range(above=0, high=1)] = field(
        default=1.0,
        metadata={
            "help": "Share of the training rows that keep their partner; the others are trained on without one. The "
            "choice depends on the seed only."
        },
    )
    model_kind: Literal["bag_of_words", "embeddings", "bilstm", "transformer", "pretrained"] = field(
        default="bag_of_words",
        metadata={
            "help": "bag_of_words (logistic regression), embeddings (their mean, and a hidden layer), bilstm, "
            "transformer (a small BERT), all from scratch with sizes in model_settings; or pretrained: any "
            "AutoModelForSequenceClassification, named by model_name_or_path."
        },
    )
    min_count: Count = field(
        default=2,
        metadata={
            "help": "Minimum count of a known word in the training texts and the revisions that are kept; rarer words "
            "are unknown. All methods share the vocabulary."
        },
    )

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
                f"model_kind={self.model_kind}, model_name_or_path={model.model_name_or_path}: expected both "
                "model_kind=pretrained and a model, or neither"
            )
        if self.model_kind == PRETRAINED:
            return model
        size: dict[str, Any] = {"segments": len(self.texts)}
        if self.model_kind == TRANSFORMER:
            size = {"max_position_embeddings": MAX_TOKENS}
        return replace(model, model_settings={**SCRATCH[self.model_kind], **size, **(model.model_settings or {})})


def load_rows(config: TextConfig) -> dict[str, Dataset]:
    """Read all splits."""
    if config.task == "sentiment":
        return {split: read_sentiment(config.cad, split) for split in SPLITS}
    return {split: read_nli(config.cad, split, config.revisions) for split in SPLITS}


def classifier_tokenizer(train: Dataset, config: TextConfig, model: ModelConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a pretrained model, or one of the words of the training rows.

    All methods share it, so ERM knows the words that only partners contain, but never learns their weights. A text is
    counted once, even if several rows have it.
    """
    if model.model_name_or_path is not None:
        return load_tokenizer(model)
    texts = [text for view in VIEW_PREFIXES for name in config.texts for text in train[view + name] if text is not None]
    return build_word_tokenizer(
        map(plain_text, dict.fromkeys(texts)),
        min_count=config.min_count,
        model_max_length=MAX_TOKENS,
        delimiters=config.model_kind == TRANSFORMER,
    )


def encode_rows(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: TextConfig, max_length: int | None = None
) -> Dataset:
    """Tokenize both views of paired rows; None: rows of at most `MAX_TOKENS` tokens."""
    limit = min(max_length or MAX_TOKENS, tokenizer.model_max_length)  # beyond which a GPU fails without a reason
    return rows.map(ClassifierEncoder(tokenizer, config.texts, limit), batched=True, desc="Tokenizing")
