"""Pre-activation ResNet (He et al., 2016) for small images as a `transformers` model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

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

from dair_hf.errors import DataError
from dair_hf.vision.cnn import classification_loss

MODEL_TYPE = "dair_preact_resnet"


class PreActResNetConfig(PreTrainedConfig):
    """Configuration of a `PreActResNet`; the defaults are the 18 layers commonly used on CIFAR."""

    model_type = MODEL_TYPE
    num_channels: int = 3
    depths: list[int] | tuple[int, ...] = (2, 2, 2, 2)
    hidden_sizes: list[int] | tuple[int, ...] = (64, 128, 256, 512)
    final_norm: bool = False
    image_mean: list[float] | tuple[float, ...] | None = None
    image_std: list[float] | tuple[float, ...] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.depths, self.hidden_sizes = list(self.depths), list(self.hidden_sizes)
        super().__post_init__(**kwargs)
        if len(self.depths) != len(self.hidden_sizes) or not self.depths:
            raise DataError(
                f"depths={self.depths} and hidden_sizes={self.hidden_sizes}: give one of each for every stage"
            )
        for name in ("num_channels", "num_labels", "depths", "hidden_sizes"):
            sizes = getattr(self, name)
            if not all(size >= 1 for size in (sizes if isinstance(sizes, list) else [sizes])):
                raise DataError(f"{name}={sizes} must be 1 or more")
        if self.image_mean is None and self.image_std is None:
            return
        if self.image_mean is None or self.image_std is None:
            raise DataError("image_mean and image_std must be given together, or neither")
        self.image_mean, self.image_std = list(self.image_mean), list(self.image_std)
        if not len(self.image_mean) == len(self.image_std) == self.num_channels:
            raise DataError(
                f"image_mean={self.image_mean} and image_std={self.image_std}: give one of each per channel "
                f"(num_channels={self.num_channels})"
            )
        if not all(map(math.isfinite, self.image_mean)) or not all(0 < value < math.inf for value in self.image_std):
            raise DataError(
                f"image_mean={self.image_mean}, image_std={self.image_std} must be finite, with image_std > 0"
            )


class Normalization(nn.Module):
    """Channel-wise `(x - mean) / std` with constants from the configuration.

    Args:
        mean: One number per channel.
        std: One number per channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.values = {"mean": mean, "std": std}
        for name, values in self.values.items():
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def reset(self) -> None:
        """Refill the buffers, which are empty after `from_pretrained`."""
        for name, values in self.values.items():
            tensor = getattr(self, name)
            initialization.copy_(tensor, torch.tensor(values).to(tensor)[:, None, None])

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Normalize `[N, C, H, W]`."""
        return (pixel_values - self.mean) / self.std


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
        self.normalization = None
        if config.image_mean is not None and config.image_std is not None:
            self.normalization = Normalization(config.image_mean, config.image_std)
        first, last = config.hidden_sizes[0], config.hidden_sizes[-1]
        self.embedder = nn.Conv2d(config.num_channels, first, 3, padding=1, bias=False)
        self.stages = nn.Sequential()
        for stage, (channels_in, channels) in enumerate(itertools.pairwise([first, *config.hidden_sizes])):
            blocks = [PreActBlock(channels_in, channels, stride=2 if stage else 1)]
            blocks += [PreActBlock(channels, channels, stride=1) for _ in range(config.depths[stage] - 1)]
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.BatchNorm2d(last) if config.final_norm else None
        self.classifier = nn.Linear(last, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this only for weights missing from the checkpoint.
        if isinstance(module, nn.Conv2d):
            initialization.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            initialization.uniform_(module.weight, -bound, bound)
            initialization.uniform_(module.bias, -bound, bound)
        elif isinstance(module, Normalization):
            module.reset()
        else:
            super()._init_weights(module)  # batch norm

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Classify images."""
        if self.normalization is not None:
            pixel_values = self.normalization(pixel_values)
        if pixel_values.device.type == "cpu":
            # Narrow networks are a third faster in channels-last layout on a CPU.
            pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
        features = self.stages(self.embedder(pixel_values))
        if self.norm is not None:
            features = functional.relu(self.norm(features))
        logits = self.classifier(features.mean(dim=(2, 3)))
        return ImageClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels), logits=logits
        )


AutoConfig.register(MODEL_TYPE, PreActResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(PreActResNetConfig, PreActResNet, exist_ok=True)
