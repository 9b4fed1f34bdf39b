"""Small text classifiers without pretraining: bag of words, averaged embeddings, bidirectional LSTM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class BagOfWordsConfig(PreTrainedConfig):
    """Configuration of `BagOfWordsForSequenceClassification`."""

    model_type = "dair_bag_of_words"
    vocab_size: int = 2
    segments: int = 1


class EmbeddingsConfig(PreTrainedConfig):
    """Configuration of `EmbeddingsForSequenceClassification`."""

    model_type = "dair_embeddings"
    vocab_size: int = 2
    segments: int = 1
    embedding_size: int = 100
    hidden_size: int = 100
    dropout: float = 0.0
    initializer_range: float = 0.1


class BiLSTMConfig(EmbeddingsConfig):
    """Configuration of `BiLSTMForSequenceClassification`."""

    model_type = "dair_bilstm"
    embedding_size: int = 50
    hidden_size: int = 50


class _TextClassifier(PreTrainedModel):
    """Classifier of token ids; subclasses compute the logits."""

    main_input_name = "input_ids"

    def _init_weights(self, module: nn.Module) -> None:
        # Replaces the initialization of transformers: the defaults of torch, but smaller embeddings.
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, nn.Linear | nn.LSTM):
            module.reset_parameters()

    def logits(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Compute logits `[B, C]` of ids `[B, T]`; `mask` `[B, segments, T]` says which text a token belongs to."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classify texts."""
        kept = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        texts = torch.arange(self.config.segments, device=input_ids.device)
        mask = (types[:, None] == texts[:, None]) & kept.bool()[:, None]
        logits = self.logits(input_ids, mask)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class BagOfWordsForSequenceClassification(_TextClassifier):
    """Linear classifier of the words of a text: logistic regression.

    `logits = W x + b`, where `x_v` is 1 if the word `v` occurs (or its count). For two texts `x` has the words of each
    and the words that both contain (the product of both). The weights start at 0; for ERM and DA the loss is convex.
    """

    config_class = BagOfWordsConfig

    def __init__(self, config: BagOfWordsConfig) -> None:
        super().__init__(config)
        blocks = 1 if config.segments == 1 else 3
        self.classifier = nn.Linear(blocks * config.vocab_size, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    def logits(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Compute logits `[B, C]`."""
        weight = self.classifier.weight
        words = torch.zeros(*mask.shape[:2], self.config.vocab_size, dtype=weight.dtype, device=weight.device)
        ids = input_ids[:, None].expand(mask.shape)
        words.scatter_add_(2, ids, mask.to(words.dtype))
        words = (words > 0).to(words.dtype)
        features = words.flatten(1)
        if self.config.segments == 2:
            features = torch.cat([features, words[:, 0] * words[:, 1]], dim=1)
        return self.classifier(features)


class EmbeddingsForSequenceClassification(_TextClassifier):
    """Mean of the word embeddings of a text, a hidden layer with ReLU, and the logits.

    Two texts `u` and `v` are pooled separately; the hidden layer reads `[u, v, |u - v|, u * v]`.
    """

    config_class = EmbeddingsConfig

    def __init__(self, config: EmbeddingsConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)
        blocks = 1 if config.segments == 1 else 4
        self.hidden = nn.Linear(blocks * config.embedding_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        """Return the word embeddings."""
        return self.embeddings

    def logits(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Compute logits `[B, C]`."""
        texts = self.dropout(_compare_texts(_mean_of_texts(self.embeddings(input_ids), mask)))
        return self.classifier(self.dropout(self.hidden(texts).relu()))


class BiLSTMForSequenceClassification(_TextClassifier):
    """Bidirectional LSTM whose states are averaged over each text, and the logits.

    Two texts are read as one sequence, so that the states of the second depend on the first; their means `u` and `v`
    are compared as in `EmbeddingsForSequenceClassification`.
    """

    config_class = BiLSTMConfig

    def __init__(self, config: BiLSTMConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True, bidirectional=True)
        blocks = 1 if config.segments == 1 else 4
        self.classifier = nn.Linear(blocks * 2 * config.hidden_size, config.num_labels)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        """Return the word embeddings."""
        return self.embeddings

    def logits(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Compute logits `[B, C]`."""
        # Packed, so that the backward direction starts at the last token of a row and not at its padding.
        lengths = mask.any(1).sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.embeddings(input_ids)), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=input_ids.shape[1]
        )
        return self.classifier(self.dropout(_compare_texts(_mean_of_texts(states, mask))))


def _mean_of_texts(states: Tensor, mask: Tensor) -> Tensor:
    """Average the states of the tokens of each text; 0 for a text without tokens."""
    weights = mask.to(states.dtype)
    return weights @ states / weights.sum(2, keepdim=True).clamp(min=1)


def _compare_texts(texts: Tensor) -> Tensor:
    """Return the features of one text `u`, or `[u, v, |u - v|, u * v]` of two."""
    if texts.shape[1] == 1:
        return texts[:, 0]
    u, v = texts.unbind(1)
    return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


for _config, _model in (
    (BagOfWordsConfig, BagOfWordsForSequenceClassification),
    (EmbeddingsConfig, EmbeddingsForSequenceClassification),
    (BiLSTMConfig, BiLSTMForSequenceClassification),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForSequenceClassification.register(_config, _model, exist_ok=True)
