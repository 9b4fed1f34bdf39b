"""Networks of the image recipes: the paper's CNN for digits, pre-activation ResNets, and others by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    initialization,
)
from transformers.modeling_outputs import ImageClassifierOutput

from dair_hf.errors import DataError
from dair_hf.settings import Count, Settings

_DIGIT_CNN = "dair_digit_cnn"
_PREACT_RESNET = "dair_preact_resnet"


class DigitCNNConfig(PreTrainedConfig):
    """Configuration of a `DigitCNN`.

    Args:
        num_channels: Channels of the images: 1 gray, 3 color.
        num_labels: Number of classes; 1 gives a single logit, for binary labels.

    Example:
        >>> DigitCNNConfig(num_channels=3, num_labels=1).num_labels
        1
    """

    model_type = _DIGIT_CNN
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
            loss=None if labels is None else _classification_loss(logits, labels), logits=logits
        )


def _classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy of a batch, in nats."""
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype))
    return functional.cross_entropy(logits, labels)


AutoConfig.register(_DIGIT_CNN, DigitCNNConfig, exist_ok=True)
AutoModelForImageClassification.register(DigitCNNConfig, DigitCNN, exist_ok=True)


class PreActResNetConfig(PreTrainedConfig):
    """Configuration of a `PreActResNet`; the defaults are the 18 layers commonly used on CIFAR."""

    model_type = _PREACT_RESNET
    num_channels: int = 3
    depths: list[int] | tuple[int, ...] = (2, 2, 2, 2)
    hidden_sizes: list[int] | tuple[int, ...] = (64, 128, 256, 512)


class _PreActBlock(nn.Module):
    """Residual block `s(x) + W_2 r(n_2(W_1 a))` with `a = r(n_1(x))`, for batch norm n, ReLU r, 3 x 3 convolutions W.

    The shortcut `s(x)` is `x`, or a 1 x 1 convolution of `a` if the number of channels or the size changes.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        changes = stride != 1 or channels_in != channels
        self.shortcut = nn.Conv2d(channels_in, channels, 1, bias=False) if changes else None
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, channels_in, H, W]` to `[N, channels, ceil(H / stride), ceil(W / stride)]`."""
        active = functional.relu(self.norm1(x))
        residual = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        if self.shortcut is None:
            return residual + x
        # Slicing replaces the stride: on a CPU, strided 1 x 1 convolutions of few channels write out of bounds (oneDNN
        # issue 6035).
        return residual + self.shortcut(active[:, :, :: self.stride, :: self.stride])


class PreActResNet(PreTrainedModel):
    """Pre-activation ResNet: a 3 x 3 convolution, stages of `_PreActBlock`, average pooling and a linear classifier.

    Every stage but the first halves height and width: 32 x 32 pixels become 4 x 4. Convolutions have He's normal
    initialization (fan out), the classifier PyTorch's default. On the CPU the model runs in channels-last layout; on a
    GPU use `model.to(memory_format=torch.channels_last)`.
    """

    config_class = PreActResNetConfig
    main_input_name = "pixel_values"

    def __init__(self, config: PreActResNetConfig) -> None:
        super().__init__(config)
        channels_in = config.hidden_sizes[0]
        self.embedder = nn.Conv2d(config.num_channels, channels_in, 3, padding=1, bias=False)
        self.stages = nn.Sequential()
        for channels, depth in zip(config.hidden_sizes, config.depths, strict=True):
            blocks = [_PreActBlock(channels_in, channels, stride=2 if len(self.stages) else 1)]
            blocks += [_PreActBlock(channels, channels, stride=1) for _ in range(depth - 1)]
            self.stages.append(nn.Sequential(*blocks))
            channels_in = channels
        self.classifier = nn.Linear(channels_in, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this only for weights missing from the checkpoint.
        if isinstance(module, nn.Conv2d):
            initialization.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            initialization.uniform_(module.weight, -bound, bound)
            initialization.uniform_(module.bias, -bound, bound)
        else:
            super()._init_weights(module)  # batch norm

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Return `logits` `[N, num_labels]` of images `[N, C, H, W]`; with labels also `loss`."""
        if pixel_values.device.type == "cpu":
            # Narrow networks are a third faster in channels-last layout on a CPU.
            pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
        features = self.stages(self.embedder(pixel_values))
        logits = self.classifier(features.mean(dim=(2, 3)))
        return ImageClassifierOutput(
            loss=None if labels is None else _classification_loss(logits, labels), logits=logits
        )


AutoConfig.register(_PREACT_RESNET, PreActResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(PreActResNetConfig, PreActResNet, exist_ok=True)


@dataclass
class ImageNetworkConfig(Settings):
    """Network to train."""

    network: Literal["preact_resnet", "resnet", "digit_cnn"] = field(
        default="preact_resnet",
        metadata={
            "help": "preact_resnet: pre-activation ResNet, 18 layers by default; resnet: ResNet of transformers, 50 "
            "layers by default; digit_cnn: the paper's CNN for 28 x 28 pixels."
        },
    )
    hidden_sizes: list[Count] | None = field(
        default=None, metadata={"help": "Channels of each stage of a (pre-activation) ResNet; none: the defaults."}
    )
    depths: list[Count] | None = field(
        default=None, metadata={"help": "Blocks of each stage of a (pre-activation) ResNet; none: the defaults."}
    )

    def check(self) -> None:
        """Refuse settings that the network would ignore."""
        sizes, depths = self.hidden_sizes or [], self.depths or []
        if len(sizes) != len(depths) or (sizes and "resnet" not in self.network):
            raise DataError(
                f"network={self.network}, hidden_sizes={sizes}, depths={depths}: expected one of each for every stage "
                "of a ResNet"
            )


def make_network(config: ImageNetworkConfig, num_channels: int, num_labels: int) -> PreTrainedModel:
    """Create a network with new weights.

    Args:
        num_channels: Channels of the images: 1 or 3.

    Returns:
        A model from `pixel_values` `[N, num_channels, H, W]` to `logits` `[N, num_labels]`.

    Example:
        >>> make_network(ImageNetworkConfig(hidden_sizes=[8, 16], depths=[1, 1]), 3, 9).num_parameters()
        5185
    """
    common: dict[str, Any] = {"num_channels": num_channels, "num_labels": num_labels}
    if config.network == "digit_cnn":
        return DigitCNN(DigitCNNConfig(**common))
    if config.hidden_sizes is not None:
        common |= {"hidden_sizes": config.hidden_sizes, "depths": config.depths}
    if config.network == "preact_resnet":
        return PreActResNet(PreActResNetConfig(**common))
    # A stage of bottleneck blocks outputs four times the channels that it processes.
    if config.hidden_sizes is not None:
        common["embedding_size"] = max(1, config.hidden_sizes[0] // 4)
    return ResNetForImageClassification(ResNetConfig(**common))
