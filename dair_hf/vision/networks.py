"""Networks of the image recipes, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoModelForImageClassification, PreTrainedModel, ResNetConfig, ResNetForImageClassification

from dair_hf.errors import DataError
from dair_hf.modeling import load_pretrained, output_layers, renew_layers, require_all_weights
from dair_hf.vision.cnn import DigitCNN, DigitCNNConfig
from dair_hf.vision.image_pairs import require_choice
from dair_hf.vision.preact_resnet import PreActResNet, PreActResNetConfig

NETWORKS = ("preact_resnet", "resnet", "digit_cnn", "pretrained")


@dataclass
class NetworkConfig:
    """Network to train.

    Raises:
        DataError: An unknown network, inconsistent sizes, or a setting of another network.

    Example:
        >>> NetworkConfig(network="digit_cnn").hidden_sizes
    """

    network: str = field(
        default="preact_resnet",
        metadata={
            "help": "preact_resnet: pre-activation ResNet, 18 layers by default; resnet: ResNet of transformers, 50 "
            "layers by default; digit_cnn: the paper's CNN for 28 x 28 pixels; pretrained: load pretrained_model.",
            "choices": NETWORKS,
        },
    )
    hidden_sizes: list[int] | None = field(
        default=None, metadata={"help": "Channels of each stage of a (pre-activation) ResNet; none: the defaults."}
    )
    depths: list[int] | None = field(
        default=None, metadata={"help": "Blocks of each stage of a (pre-activation) ResNet; none: the defaults."}
    )
    pretrained_model: str | None = field(
        default=None,
        metadata={"help": "Image classifier from the Hub or a folder, safetensors only; its output layer is replaced."},
    )

    def __post_init__(self) -> None:
        require_choice("network", self.network, NETWORKS)
        if (self.network == "pretrained") != (self.pretrained_model is not None):
            raise DataError(
                f"network={self.network} and pretrained_model={self.pretrained_model!r} cannot be combined; give "
                "both network=pretrained and a model, or neither"
            )
        if self.network in ("digit_cnn", "pretrained") and (self.hidden_sizes or self.depths):
            raise DataError(f"network={self.network} has a fixed size; leave hidden_sizes and depths out")
        if (self.hidden_sizes is None) != (self.depths is None) or (
            self.hidden_sizes is not None and self.depths is not None and len(self.hidden_sizes) != len(self.depths)
        ):
            raise DataError(
                f"hidden_sizes={self.hidden_sizes} and depths={self.depths}: give one of each for every stage"
            )


def make_network(config: NetworkConfig, num_channels: int, num_labels: int) -> PreTrainedModel:
    """Create a network, with new weights unless it is pretrained.

    Args:
        num_channels: Channels of the images: 1 or 3.

    Returns:
        A model from `pixel_values` `[N, num_channels, H, W]` to `logits` `[N, num_labels]`.

    Raises:
        DataError: The pretrained model cannot be loaded from safetensors, lacks weights below its output layer, or has
            another number of channels.

    Example:
        >>> make_network(NetworkConfig(hidden_sizes=[8, 16], depths=[1, 1]), 3, 9).num_parameters()
        5185
    """
    sizes: dict[str, Any] = {}
    if config.hidden_sizes is not None:
        sizes = {"hidden_sizes": config.hidden_sizes, "depths": config.depths}
    common = {"num_channels": num_channels, "num_labels": num_labels}
    if config.network == "digit_cnn":
        return DigitCNN(DigitCNNConfig(**common))
    if config.network == "preact_resnet":
        return PreActResNet(PreActResNetConfig(**common, **sizes))
    if config.network == "resnet":
        # A stage of bottleneck blocks outputs four times the channels that it processes.
        if config.hidden_sizes is not None:
            sizes["embedding_size"] = max(1, config.hidden_sizes[0] // 4)
        return ResNetForImageClassification(ResNetConfig(**common, **sizes))
    return _pretrained(str(config.pretrained_model), num_channels, num_labels)


def _pretrained(name: str, num_channels: int, num_labels: int) -> PreTrainedModel:
    """Load a pretrained classifier and replace its output layer, even if the checkpoint has as many classes."""
    label = f"pretrained_model={name!r}"
    model, report = load_pretrained(
        AutoModelForImageClassification,
        name,
        label,
        num_labels=num_labels,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    if getattr(model.config, "num_channels", num_channels) != num_channels:
        raise DataError(
            f"{label} takes {model.config.num_channels} channels, the images have {num_channels}; give a model for "
            f"{num_channels} channels"
        )
    outputs = output_layers(model, num_labels, label)
    require_all_weights(model, report, label, outputs)
    renew_layers(model, outputs)
    return model
