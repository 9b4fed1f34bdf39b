"""Pre-activation ResNet (He et al., 2016) for small images as a `transformers` model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import ImageClassifierOutput

from dair_hf.vision.cnn import classification_loss

MODEL_TYPE = "dair_preact_resnet"


class PreActResNetConfig(PreTrainedConfig):
    """Configuration of a `PreActResNet`; the defaults are the 18 layers commonly used on CIFAR."""

    model_type = MODEL_TYPE
    num_channels: int = 3
    depths: list[int] | tuple[int, ...] = (2, 2, 2, 2)
    hidden_sizes: list[int] | tuple[int, ...] = (64, 128, 256, 512)


class PreActBlock(nn.Module):
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
    """Pre-activation ResNet: a 3 x 3 convolution, stages of `PreActBlock`, average pooling and a linear classifier.

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
            blocks = [PreActBlock(channels_in, channels, stride=2 if len(self.stages) else 1)]
            blocks += [PreActBlock(channels, channels, stride=1) for _ in range(depth - 1)]
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
            loss=None if labels is None else classification_loss(logits, labels), logits=logits
        )


AutoConfig.register(MODEL_TYPE, PreActResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(PreActResNetConfig, PreActResNet, exist_ok=True)
