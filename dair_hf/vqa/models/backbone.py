"""Vision models of transformers as backbones: images in, a grid of features out."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from dair_hf.errors import DataError
from dair_hf.modeling import load_pretrained, require_all_weights

MAX_HALVINGS = 5  # a hierarchical transformer such as Swin halves its grid less often than this


def feature_size(config: PreTrainedConfig) -> int:
    """Return the number of feature channels of a backbone: the width of its last stage, or of its tokens."""
    sizes = getattr(config, "hidden_sizes", None)
    return int(sizes[-1] if sizes else config.hidden_size)


def new_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a randomly initialized backbone, without a pooling layer.

    Args:
        config: Configuration of a vision model: ResNet, ConvNeXt, ViT, DINOv2, Swin, the vision model of CLIP, ...

    Example:
        >>> from transformers import ViTConfig
        >>> backbone = new_backbone(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        >>> backbone.pooler is None
        True
    """
    # The dtype in which a model is being built or loaded, not the one in which the backbone was saved.
    return _without_pooler(AutoModel.from_config(config, dtype=torch.get_default_dtype(), trust_remote_code=False))


def load_backbone(name_or_path: str | os.PathLike[str]) -> PreTrainedModel:
    """Load a pretrained backbone in float32, from safetensors only and without running remote code.

    Args:
        name_or_path: Folder or name on the Hub. From a model of images and text (CLIP) the vision model is loaded.

    Raises:
        DataError: The model does not exist, or its safetensors are missing or incomplete.
    """
    name = os.fspath(name_or_path)
    setting = f"backbone {name!r}"
    config = load_pretrained(AutoConfig, name, setting)
    config = getattr(config, "vision_config", config)
    backbone, report = load_pretrained(
        AutoModel, name, setting, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
    )
    backbone = _without_pooler(backbone)
    require_all_weights(backbone, report, setting)
    return backbone


def grid_features(backbone: nn.Module, pixel_values: Tensor) -> Tensor:
    """Return the last features of a backbone for images `[N, 3, H, W]` on the grid of the image: `[N, C, h, w]`.

    Convolutional networks return them in this form. The patch tokens of a transformer are arranged row by row, and the
    tokens before them (class token, registers) are dropped.

    Raises:
        DataError: The number of tokens does not fit a grid of patches.
    """
    if pixel_values.device.type == "cpu" and not any(map(_breaks_in_channels_last, backbone.modules())):
        # Convolutions and batch norm take a quarter less time on a CPU in this memory format.
        pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
    features = backbone(pixel_values).last_hidden_state
    if features.ndim == 4:
        return features
    height, width = _patch_grid(backbone.config, features.shape[1], pixel_values.shape[-2:])
    patches = features[:, features.shape[1] - height * width :]
    return patches.transpose(1, 2).unflatten(2, (height, width))


def _breaks_in_channels_last(module: nn.Module) -> bool:
    """Return whether oneDNN crashes or computes a wrong gradient for a channels-last convolution (issue 6035).

    It does for strided 1 x 1 convolutions with fewer channels than a register holds: 8 with AVX2, 16 with AVX-512.
    """
    return (
        isinstance(module, nn.Conv2d)
        and set(module.kernel_size) == {1}
        and set(module.stride) != {1}
        and module.in_channels < 16
    )


def _patch_grid(config: Any, tokens: int, image_size: torch.Size) -> tuple[int, int]:
    """Return height and width of the patch grid among `tokens` tokens."""
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int):
        # No token, a class token, a distillation token after it, or registers.
        prefixes = {0, 1, 2, 1 + (getattr(config, "num_register_tokens", None) or 0)}
        for halvings in range(MAX_HALVINGS):
            height, width = (int(side) // (patch << halvings) for side in image_size)
            if height * width and tokens - height * width in prefixes:
                return height, width
    # Without a check the tokens of other parts would be taken for patches.
    raise DataError(
        f"backbone {config.model_type!r}: expected tokens on a grid of patches of {patch} pixels, got {tokens} tokens "
        f"for an image of {image_size[0]} x {image_size[1]} pixels"
    )


def _without_pooler(backbone: PreTrainedModel) -> PreTrainedModel:
    # The weights of a pooling layer would never get a gradient, which DistributedDataParallel treats as an error.
    if any(True for _ in getattr(getattr(backbone, "pooler", None), "parameters", tuple)()):
        backbone.pooler = None
    return backbone
