"""The vision models of the Hugging Face library as backbones: a picture in, a grid of features out."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from dair_hf.errors import DataError

HALVINGS = 5  # how often a pyramid of tokens (Swin and its like) halves its grid: less often than this


def feature_size(config: PreTrainedConfig) -> int:
    """Channels of the features that a backbone gives.

    Args:
        config: Configuration of a vision model: ResNet, ConvNeXt, ViT, DINOv2, Swin, CLIP's vision model, ...

    Returns:
        The width of its last stage, or of its tokens.

    Raises:
        DataError: The configuration names neither `hidden_sizes` nor `hidden_size`.

    Example:
        >>> from transformers import ResNetConfig, ViTConfig
        >>> feature_size(ResNetConfig(hidden_sizes=[8, 16], depths=[1, 1])), feature_size(ViTConfig(hidden_size=32))
        (16, 32)
    """
    if sizes := getattr(config, "hidden_sizes", None):
        return int(sizes[-1])
    if size := getattr(config, "hidden_size", None):
        return int(size)
    raise DataError(
        f"backbone_config: {type(config).__name__} (model_type={config.model_type!r}) has neither hidden_sizes nor "
        "hidden_size; give the configuration of a vision model, for CLIP and its like the vision_config within it"
    )


def new_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """A backbone with weights drawn anew, without the pooling layer that a grid of features has no use for.

    Args:
        config: Configuration of a vision model.

    Returns:
        The model.

    Raises:
        DataError: It is no model of pictures.

    Example:
        >>> from transformers import ViTConfig
        >>> backbone = new_backbone(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        >>> backbone.pooler is None
        True
    """
    # The type that is being loaded or built just now, not one that the backbone was once saved in.
    return _prepared(AutoModel.from_config(config, dtype=torch.get_default_dtype()))


def load_backbone(name_or_path: str | os.PathLike[str]) -> PreTrainedModel:
    """A pretrained backbone: only safetensors are read, and no code that comes with them is run.

    Args:
        name_or_path: A folder, or a name on the Hub. Of a model of pictures and text (CLIP) it is the vision part.

    Returns:
        The model, in float32.

    Raises:
        DataError: There is no such model, it has no weights as safetensors or not all, or it is no model of pictures.

    Example:
        >>> load_backbone("microsoft/resnet-152")  # doctest: +SKIP
    """
    try:
        config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False)
        config = getattr(config, "vision_config", config)
        backbone, report = AutoModel.from_pretrained(
            name_or_path,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        found = " ".join(str(error).split())
        raise DataError(f"backbone {os.fspath(name_or_path)!r}: {found[:400]}") from error
    backbone = _prepared(backbone)
    # Whatever the file lacks was drawn at random, with a mere warning: no backbone to start from.
    own = {name for name, _ in backbone.named_parameters()}
    if missing := sorted(own.intersection(report["missing_keys"])):
        raise DataError(
            f"backbone {os.fspath(name_or_path)!r}: its file lacks {len(missing)} of the weights of "
            f"{type(backbone).__name__} ({', '.join(missing[:3])}, ...); give a checkpoint of that model"
        )
    return backbone


def grid_features(backbone: nn.Module, pixel_values: Tensor) -> Tensor:
    """The last features of a backbone, laid out as they lie in the picture.

    A convolutional network gives them so. A transformer gives tokens: those of the patches are laid out row by row,
    the ones before them (class token, registers) are left out.

    Args:
        backbone: A vision model of the library, without its head.
        pixel_values: `[N, 3, H, W]` floating.

    Returns:
        `[N, C, h, w]` floating.

    Raises:
        DataError: The number of tokens fits no grid of patches.

    Example:
        >>> from transformers import ViTConfig
        >>> backbone = new_backbone(ViTConfig(
        ...     hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16))
        >>> grid_features(backbone, torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 8, 2, 2])
    """
    if pixel_values.device.type == "cpu" and not any(map(_writes_past_its_memory, backbone.modules())):
        # Convolutions are a quarter faster there with the channels of a pixel side by side, batch norm included.
        pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
    features = backbone(pixel_values).last_hidden_state
    if features.ndim == 4:
        return features
    height, width = _grid(backbone.config, features.shape[1], pixel_values.shape[-2:])
    patches = features[:, features.shape[1] - height * width :]
    return patches.transpose(1, 2).unflatten(2, (height, width))


def _writes_past_its_memory(module: nn.Module) -> bool:
    """A convolution whose gradient oneDNN computes wrongly, or crashes on, with channels side by side (its issue 6035).

    Those of 1 x 1 with a stride, of fewer channels than a register holds: 8 with AVX2, 16 with AVX-512.
    """
    return (
        isinstance(module, nn.Conv2d)
        and set(module.kernel_size) == {1}
        and set(module.stride) != {1}
        and module.in_channels < 16
    )


def _grid(config: Any, tokens: int, picture: torch.Size) -> tuple[int, int]:
    """Height and width of the grid of patches among `tokens` tokens."""
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int):
        # A class token, a second one for distillation, registers; none at all.
        in_front = {0, 1, 2, 1 + (getattr(config, "num_register_tokens", None) or 0)}
        for halvings in range(HALVINGS):
            height, width = (int(side) // (patch << halvings) for side in picture)
            if height * width and tokens - height * width in in_front:
                return height, width
    raise DataError(
        f"backbone {config.model_type!r}: {tokens} tokens for a picture of {picture[0]} x {picture[1]} pixels are no "
        f"grid of patches (patch_size={patch!r}); use another size of pictures, or another backbone"
    )


def _prepared(backbone: PreTrainedModel) -> PreTrainedModel:
    if backbone.main_input_name != "pixel_values":
        raise DataError(
            f"backbone: {type(backbone).__name__} takes {backbone.main_input_name}, not pictures; use a vision model"
        )
    # The weights of a pooling layer would never get a gradient, which several processes treat as an error.
    if any(True for _ in getattr(getattr(backbone, "pooler", None), "parameters", tuple)()):
        backbone.pooler = None
    return backbone
