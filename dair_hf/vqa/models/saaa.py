"""SAAA, the network of "Show, Ask, Attend, and Answer" (Kazemi and Elqursh, 2017), as the paper uses it for VQA."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from transformers import (
    AutoConfig,
    AutoModelForVisualQuestionAnswering,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import ImageClassifierOutput

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import soft_score
from dair_hf.settings import Count, Range, accepts
from dair_hf.vqa.models.backbone import feature_size, grid_features, new_backbone

MODEL_TYPE = "dair_saaa"
ANSWERS = 3000
RESNET_FEATURES = 2048
MIN_NORM = 1e-4  # shorter feature vectors are not normalized; the inverse is finite in float16
_SIZES = ("vocab_size", "embedding_size", "question_size", "image_feature_size", "attention_size", "glimpses")
_LIMITS = {
    **dict.fromkeys((*_SIZES, "hidden_size", "num_labels"), Count),
    "dropout": Annotated[float, Range(low=0, below=1)],
}


class SAAAConfig(PreTrainedConfig):
    """Configuration of `SAAA`; the defaults are the paper's.

    Args:
        vocab_size: Size of the question vocabulary, including padding and the unknown word.
        pad_token_id: Padding id of the questions.
        embedding_size: Width of the word embeddings.
        question_size: Width of the LSTM, and so of the encoded question.
        image_feature_size: Channels of the image features; None: the backbone's, or 2048 without one.
        attention_size: Width of the layer that combines question and image.
        glimpses: Number of attention maps, each giving one weighted sum of the image features.
        hidden_size: Width of the layer before the answers.
        dropout: Dropout probability at the input of every layer (LSTM, convolutions, linear layers).
        backbone_config: Configuration of a vision model of transformers, or its `to_dict()`. None: the model takes
            precomputed `image_features`.
        freeze_backbone: Whether the backbone gets no gradients and always runs in evaluation mode.
        num_labels: Number of answers, 3000 by default; or give their texts as `id2label`.

    Example:
        >>> from transformers import ResNetConfig
        >>> backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        >>> config = SAAAConfig(vocab_size=50, num_labels=10, backbone_config=backbone, freeze_backbone=False)
        >>> config.image_feature_size, config.question_size, config.num_labels
        (16, 1024, 10)
    """

    model_type = MODEL_TYPE
    vocab_size: int = 15000
    pad_token_id: int = 0
    embedding_size: int = 300
    question_size: int = 1024
    image_feature_size: int | None = None
    attention_size: int = 512
    glimpses: int = 2
    hidden_size: int = 1024
    dropout: float = 0.5
    backbone_config: dict[str, Any] | PreTrainedConfig | None = None
    freeze_backbone: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.id2label is None and kwargs.get("num_labels") is None:
            kwargs["num_labels"] = ANSWERS
        if isinstance(self.backbone_config, dict):
            self.backbone_config = AutoConfig.for_model(**self.backbone_config)
        if self.image_feature_size is None:
            self.image_feature_size = feature_size(self.backbone_config) if self.backbone_config else RESNET_FEATURES
        super().__post_init__(**kwargs)
        for name, limit in _LIMITS.items():
            if not accepts(limit, getattr(self, name)):
                raise DataError(f"SAAA: expected sizes >= 1 and 0 <= dropout < 1, got {name}={getattr(self, name)!r}")

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields to save: those that differ from the defaults, and always the answers."""
        # transformers omits its default of two labels, which would be read back as 3000.
        return {**super().to_diff_dict(), "id2label": self.id2label, "label2id": self.label2id}


class SAAA(PreTrainedModel):
    """Visual question answering with a question encoder, stacked attention and a classifier.

    The word embeddings go through tanh and an LSTM, whose last cell state is the question `q`. The features `v_l` of
    the positions `l`, normalized to length 1, are weighted by `glimpses` attention maps
    `alpha = softmax_l(W_2 relu(W_v v_l + W_q q + b_q) + b_2)`. The sums `sum_l alpha_l v_l` and `q` go through a hidden
    layer with ReLU to the answers. Dropout precedes every layer. Weights have Glorot's uniform initialization, biases
    are 0. With dropout two identical views have different losses, so that R > 0.

    Args:
        config: Sizes, and the backbone if there is one.

    Example:
        >>> model = SAAA(SAAAConfig(vocab_size=50, num_labels=10, image_feature_size=16)).eval()
        >>> words, mask = torch.tensor([[3, 4, 0], [5, 6, 7]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
        >>> outputs = model(words, mask, image_features=torch.rand(2, 16, 4, 4), output_attentions=True)
        >>> outputs.logits.shape, outputs.attentions.shape
        (torch.Size([2, 10]), torch.Size([2, 2, 4, 4]))
    """

    config_class = SAAAConfig
    main_input_name = "input_ids"

    def __init__(self, config: SAAAConfig) -> None:
        super().__init__(config)
        channels, question = config.image_feature_size, config.question_size
        assert channels is not None  # set by the configuration
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.lstm = nn.LSTM(config.embedding_size, question, batch_first=True)
        # Positions are flattened, so that 1 x 1 convolutions are linear layers.
        self.image_projection = nn.Linear(channels, config.attention_size, bias=False)
        self.question_projection = nn.Linear(question, config.attention_size)
        self.glimpses = nn.Linear(config.attention_size, config.glimpses)
        self.hidden = nn.Linear(config.glimpses * channels + question, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.dropout = nn.Dropout(config.dropout)
        self.backbone = None if config.backbone_config is None else new_backbone(config.backbone_config)
        self.post_init()
        self.train()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this only for weights that no checkpoint provides; a backbone initializes its own.
        if isinstance(module, nn.Linear):
            initialization.xavier_uniform_(module.weight)
            if module.bias is not None:
                initialization.zeros_(module.bias)
        elif isinstance(module, nn.LSTM):
            for name, values in module.named_parameters():
                if "bias" in name:
                    initialization.zeros_(values)
                elif not getattr(values, "_is_hf_initialized", False):
                    for gate in values.chunk(4):  # four matrices, stored as one
                        initialization.xavier_uniform_(gate)
        elif isinstance(module, nn.Embedding):
            initialization.xavier_uniform_(module.weight)
            if not getattr(module.weight, "_is_hf_initialized", False):
                initialization.zeros_(module.weight[module.padding_idx])

    def train(self, mode: bool = True) -> SAAA:
        """Set training or evaluation mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.backbone is not None and self.config.freeze_backbone:
            # Loading a checkpoint enables gradients and then calls this method.
            self.backbone.eval().requires_grad_(False)
        return self

    def encode_images(self, pixel_values: Tensor) -> Tensor:
        """Return the features of images `[N, 3, H, W]`, as `forward` takes them: `[N, image_feature_size, h, w]`."""
        assert self.backbone is not None, "pixel_values need a model with a backbone_config"
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_backbone):
            return grid_features(self.backbone, pixel_values)

    def encode_questions(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the questions, padded on the right, as vectors `[N, question_size]`: the last cell state of the LSTM.

        A question without words is read as one padding token.
        """
        mask = input_ids != self.config.pad_token_id if attention_mask is None else attention_mask != 0
        mask = mask.cpu()  # `pack_padded_sequence` needs the lengths on the CPU
        if (mask[:, 1:] & ~mask[:, :-1]).any():
            raise DataError("attention_mask: expected padding on the right, got words after padding")
        words = self.dropout(self.embed_tokens(input_ids).tanh())
        lengths = mask.sum(1).clamp(min=1)
        return self.lstm(pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False))[1][1][0]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_features: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
    ) -> ImageClassifierOutput:
        """Answer one question about each image.

        Args:
            input_ids: `[N, T]` int64, padded on the right.
            attention_mask: `[N, T]`, 1 on words; None: wherever `input_ids` is not the padding id.
            pixel_values: `[N, 3, H, W]` floating, for a model with a backbone. Give either this or
            image_features: `[N, image_feature_size, h, w]` floating.
            labels: `[N, A]` floating soft targets: the share of annotators who gave each answer. They give the loss.
            output_attentions: Whether to return the attention maps, `[N, glimpses, h, w]`.
        """
        if pixel_values is not None and image_features is None:
            features = self.encode_images(pixel_values)
        elif image_features is not None and pixel_values is None:
            features = image_features
        else:  # one of two would be ignored
            raise DataError("SAAA: expected either pixel_values or image_features, got both or neither")
        question = self.encode_questions(input_ids, attention_mask)
        attention, attended = self._attend(features, question)
        hidden = self.hidden(self.dropout(torch.cat([attended, question], dim=1))).relu()
        logits = self.classifier(self.dropout(hidden))
        with_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        return ImageClassifierOutput(
            loss=None if labels is None else soft_score(ImageClassifierOutput(logits=logits), labels).mean(),
            logits=logits,
            attentions=attention.unflatten(2, features.shape[2:]) if with_attentions else None,
        )

    def _attend(self, features: Tensor, question: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention maps `[N, G, h * w]` and the weighted sums of the features, `[N, G * C]`."""
        features = features.flatten(2).transpose(1, 2).contiguous()
        # Every use of a feature vector is linear, so it can be divided by its norm afterwards: normalizing the features
        # first, with 2048 channels, would take as long as all the rest.
        inverse = torch.linalg.vector_norm(features, dim=2, keepdim=True).clamp(min=MIN_NORM).reciprocal()
        image_part = self.image_projection(self.dropout(features)) * inverse
        question_part = self.question_projection(self.dropout(question))
        scores = self.glimpses(self.dropout((image_part + question_part[:, None]).relu()))
        attention = scores.transpose(1, 2).softmax(dim=2)
        return attention, ((attention * inverse.transpose(1, 2)) @ features).flatten(1)


AutoConfig.register(MODEL_TYPE, SAAAConfig, exist_ok=True)
AutoModelForVisualQuestionAnswering.register(SAAAConfig, SAAA, exist_ok=True)
