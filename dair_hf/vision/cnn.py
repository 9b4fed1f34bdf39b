"""Convolutional network of the paper's MNIST experiments as a `transformers` model."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

MODEL_TYPE = "dair_digit_cnn"


class DigitCNNConfig(PreTrainedConfig):
    """Configuration of a `DigitCNN`.

    Args:
        num_channels: Channels of the images: 1 gray, 3 color.
        num_labels: Number of classes; 1 gives a single logit, for binary labels.

    Example:
        >>> DigitCNNConfig(num_channels=3, num_labels=1).num_labels
        1
    """

    model_type = MODEL_TYPE
    num_channels: int = 1


class DigitCNN(PreTrainedModel):
    """CNN of the paper: three 4 x 4 convolutions with 6, 16 and 96 channels, 64 hidden units, and the logits.

    ReLU follows each layer, and max-pooling by 2 the first two convolutions; the third outputs one pixel for a 28 x 28
    image. Weights have PyTorch's default initialization.

    Example:
        >>> import torch
        >>> model = DigitCNN(DigitCNNConfig(num_channels=1, num_labels=10))
        >>> model(torch.zeros(2, 1, 28, 28)).logits.shape
        torch.Size([2, 10])
    """

    config_class = DigitCNNConfig
    main_input_name = "pixel_values"

    def __init__(self, config: DigitCNNConfig) -> None:
        super().__init__(config)
        self.conv1 = nn.Conv2d(config.num_channels, 6, 4)
        self.conv2 = nn.Conv2d(6, 16, 4)
        self.conv3 = nn.Conv2d(16, 96, 4)
        self.hidden = nn.Linear(96, 64)
        self.classifier = nn.Linear(64, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # Replaces the normal initialization of transformers; called only for weights missing from the checkpoint.
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Return `logits` `[N, num_labels]` of images `[N, num_channels, 28, 28]` in 0..1; with labels also `loss`."""
        # ReLU and max-pooling commute; after pooling there is only a quarter of the pixels.
        features = functional.relu(functional.max_pool2d(self.conv1(pixel_values), 2))
        features = functional.relu(functional.max_pool2d(self.conv2(features), 2))
        features = functional.relu(self.conv3(features)).flatten(1)
        logits = self.classifier(functional.relu(self.hidden(features)))
        return ImageClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels), logits=logits
        )


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy of a batch, in nats."""
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype))
    return functional.cross_entropy(logits, labels)


AutoConfig.register(MODEL_TYPE, DigitCNNConfig, exist_ok=True)
AutoModelForImageClassification.register(DigitCNNConfig, DigitCNN, exist_ok=True)
