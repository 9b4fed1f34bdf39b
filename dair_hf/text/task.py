"""Classification of counterfactual pairs as a task: settings, rows, models by name, CM in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from dair_hf.data.few_pairs import check_share
from dair_hf.errors import DataError
from dair_hf.evaluation.evaluator import PairEvaluation, PairEvaluator
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.evaluation.view_index import PairIndex
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
    """Texts and classes of a task.

    Attributes:
        title: Name of the data.
        texts: Columns of texts.
        labels: Class names, in the order of the class numbers.
    """

    title: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


TASKS = {
    "sentiment": TextTask("counterfactual reviews", ("text",), SENTIMENT_LABELS),
    "nli": TextTask("counterfactual inference", ("premise", "hypothesis"), NLI_LABELS),
}


@dataclass
class TextConfig:
    """Data and model of a classification of counterfactual pairs.

    Raises:
        DataError: An unknown choice, or a number out of range.

    Example:
        >>> TextConfig(task="nli").labels
        ('entailment', 'neutral', 'contradiction')
    """

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
        """Return the settings of the model of this kind.

        Raises:
            DataError: A pretrained model has no name, or another one has.

        Example:
            >>> TextConfig(model_kind="bilstm").complete(ModelConfig(model_settings={"hidden_size": 8})).model_settings
            {'model_type': 'dair_bilstm', 'segments': 1, 'hidden_size': 8}
        """
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
    """Read all splits.

    Returns:
        Paired rows of "train", "dev" and "test".

    Raises:
        DataError: `cad` is not set, or a reader raises.
    """
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


def is_correct(predictions: Sequence[Any], references: Sequence[int]) -> NDArray[np.bool_]:
    """Return which predicted classes are the labels, `[N]` bool.

    Example:
        >>> is_correct([1, 0], [1, 1])
        array([ True, False])
    """
    return np.asarray(predictions, dtype=np.int64) == np.asarray(references, dtype=np.int64)


@dataclass(frozen=True)
class TwoWayEvaluator(PairEvaluator):
    """`PairEvaluator` that adds CM from the revision to the original, and the accuracy over both views.

    `reverse_cm = P(H(z) = 1 | H(z~) = 1)`, with `reverse_cm_numerator` and `reverse_cm_denominator`, and
    `both_views_accuracy`, the mean accuracy of the originals and the revisions; all over the rows with a partner, from
    the same predictions as CM.

    Raises:
        DataError: As for `PairEvaluator`, or a subset has the name "reverse", whose CM would have the same key.

    Example:
        >>> metrics = TwoWayEvaluator(is_correct)([1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 1, 1], n_bootstrap=0)
        >>> metrics["cm"], metrics["reverse_cm"], round(metrics["both_views_accuracy"], 4)
        (0.5, 0.5, 0.6667)
    """

    def require_distinct_keys(self, subsets: Iterable[str] = ()) -> None:
        """Refuse names that give two metrics the same key, see `PairEvaluator.require_distinct_keys`."""
        names = list(subsets)
        super().require_distinct_keys(names)
        if "reverse" in names:
            raise DataError("subsets: 'reverse' adds the metric 'reverse_cm', which exists without it; choose another")

    def evaluate_views(
        self,
        index: PairIndex,
        predictions: list[Any],
        references: list[Any],
        clusters: Sequence[Any] | None = None,
        subsets: Mapping[str, Any] | None = None,
        n_bootstrap: int = 1000,
    ) -> PairEvaluation:
        """Evaluate the views of paired data, see `PairEvaluator.evaluate_views`."""
        evaluation = super().evaluate_views(index, predictions, references, clusters, subsets, n_bootstrap)
        original, augmented = index.by_row("correct", evaluation.correct)
        masks = {"": np.ones_like(index.has_partner)}
        masks |= {f"{name}_": np.asarray(mask, dtype=bool) for name, mask in (subsets or {}).items()}
        for prefix, mask in masks.items():
            pairs = index.partners & mask[:, None]
            of_revision = (augmented & pairs).sum(1)
            both = (original[:, None] & augmented & pairs).sum(1)
            right = (pairs * (original[:, None] * 0.5 + augmented * 0.5)).sum(1)
            ratios = {
                f"{prefix}reverse_cm": (both, of_revision),
                f"{prefix}both_views_accuracy": (right, pairs.sum(1)),
            }
            evaluation.metrics.update(ratios_with_intervals(ratios, clusters, n_bootstrap=n_bootstrap))
            evaluation.metrics[f"{prefix}reverse_cm_numerator"] = int(both.sum())
            evaluation.metrics[f"{prefix}reverse_cm_denominator"] = int(of_revision.sum())
        return evaluation


def text_evaluator() -> TwoWayEvaluator:
    """Return the evaluator of paired rows; its bootstrap resamples originals, with all their revisions."""
    return TwoWayEvaluator(is_correct, clusters="original_id")
